package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	networksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	networkStatusAnnotation  = "k8s.v1.cni.cncf.io/network-status"
	defaultNetworkAnnotation = "v1.multus-cni.io/default-network"
)

// plugin is what Multus delegates to.
type plugin interface {
	// delegate names the CNI type and the network of the cluster's default network.
	delegate() (cniType, network string)
	// primary is ADD of that network on eth0.
	primary(ctx context.Context, req Request, pod *corev1.Pod) (nic, error)
	// secondary is ADD of an attachment. ok is false where the plugin has no part in it.
	secondary(ctx context.Context, req Request, pod *corev1.Pod, a attachment) (n nic, ok bool, err error)
}

// nic is the result of one delegate.
type nic struct {
	ips         []netip.Addr
	mac         string
	annotations map[string]string
}

// netAttachDef is a NetworkAttachmentDefinition.
type netAttachDef struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Config string `json:"config,omitempty"`
	} `json:"spec"`
}

// selection is an element of the networks annotation (Multus docs, network selection element).
type selection struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace,omitempty"`
	Interface string   `json:"interface,omitempty"`
	MAC       string   `json:"mac,omitempty"`
	IPs       []string `json:"ips,omitempty"`
}

// attachment is a selection with the configuration of its network.
type attachment struct {
	selection
	conf netConf
}

// provider is Kube-OVN's name of the attachment, without its own suffix.
func (a attachment) provider() string { return a.Name + "." + a.Namespace }

// netConf is what is read of a CNI configuration.
type netConf struct {
	Name     string    `json:"name,omitempty"`
	Type     string    `json:"type"`
	Provider string    `json:"provider,omitempty"`
	Plugins  []netConf `json:"plugins,omitempty"`
	IPAM     struct {
		Type      string `json:"type,omitempty"`
		Provider  string `json:"provider,omitempty"`
		Addresses []struct {
			Address netip.Prefix `json:"address"`
		} `json:"addresses,omitempty"`
		IPv4Pools []string `json:"default_ipv4_ippool,omitempty"`
		IPv6Pools []string `json:"default_ipv6_ippool,omitempty"`
	} `json:"ipam"`
}

// parseSelections reads a networks annotation: JSON, or a comma list of [namespace/]name[@interface].
func parseSelections(value, namespace string) ([]selection, error) {
	var list []selection
	if strings.ContainsAny(value, `[{"`) {
		if err := json.Unmarshal([]byte(value), &list); err != nil {
			return nil, fmt.Errorf("parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: %w", err)
		}
	} else {
		for item := range strings.SplitSeq(value, ",") {
			var s selection
			item = strings.TrimSpace(item)
			item, s.Interface, _ = strings.Cut(item, "@")
			if ns, name, ok := strings.Cut(item, "/"); ok {
				s.Namespace, s.Name = ns, name
			} else {
				s.Name = item
			}
			list = append(list, s)
		}
	}
	for i := range list {
		if list[i].Namespace == "" {
			list[i].Namespace = namespace
		}
		if list[i].Interface == "" {
			list[i].Interface = fmt.Sprintf("net%d", i+1)
		}
	}
	return list, nil
}

// networkStatus is an element of the network-status annotation.
type networkStatus struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface,omitempty"`
	IPs       []string `json:"ips,omitempty"`
	MAC       string   `json:"mac,omitempty"`
	Default   bool     `json:"default,omitempty"`
	DNS       struct{} `json:"dns"`
}

var netAttachDefGVR = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// multus plays the meta plugin: every driver's ADD goes through it, as in a cluster with KubeVirt
// and secondary networks.
type multus struct {
	*kube
	nads table[netAttachDef]
}

func newMultus(k *kube) multus {
	return multus{k, newTable[netAttachDef](k, netAttachDefGVR, "NetworkAttachmentDefinition")}
}

// install is Multus itself, without a DaemonSet where the plugin brings its own copy.
func (m multus) install(ctx context.Context, daemonSet bool) error {
	if err := m.ensureNamespace(ctx, kubeSystem); err != nil {
		return err
	}
	if err := m.ensureCRDs(ctx, crd{
		group: netAttachDefGVR.Group, version: netAttachDefGVR.Version, kind: "NetworkAttachmentDefinition",
		plural: netAttachDefGVR.Resource, short: []string{"net-attach-def"}, namespaced: true,
		fields: props{"spec": object(props{"config": text})},
	}); err != nil || !daemonSet {
		return err
	}
	return m.ensureDaemonSet(ctx, workload{
		namespace: kubeSystem, name: "kube-multus-ds", labels: map[string]string{"app": "multus", "tier": "node", "name": "multus"},
		container: "kube-multus", image: "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.3.0-thick", command: []string{"/usr/src/multus-cni/bin/multus-daemon"},
	})
}

// attachments loads the configuration of every network that the pod selects, before any delegate runs.
func (m multus) attachments(ctx context.Context, pod *corev1.Pod) ([]attachment, error) {
	value := pod.Annotations[networksAnnotation]
	if value == "" {
		return nil, nil
	}
	list, err := parseSelections(value, pod.Namespace)
	if err != nil {
		return nil, err
	}
	who := fmt.Sprintf("Multus: [%s/%s/%s]", pod.Namespace, pod.Name, pod.UID)
	var out []attachment
	for _, s := range list {
		nad, err := m.nads.get(ctx, s.Namespace, s.Name)
		if err != nil {
			return nil, fmt.Errorf("%s: error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: "+
				"GetNetworkDelegates: failed getting the delegate: getKubernetesDelegate: cannot find a network-attachment-definition (%s) in namespace (%s): %w",
				who, s.Name, s.Namespace, err)
		}
		a := attachment{selection: s}
		if err := json.Unmarshal([]byte(nad.Spec.Config), &a.conf); err != nil {
			return nil, fmt.Errorf("%s: LoadDelegateNetConf: error unmarshalling delegate config: %w", who, err)
		}
		if len(a.conf.Plugins) > 0 { // a list: the first plugin makes the interface
			name := a.conf.Name
			a.conf = a.conf.Plugins[0]
			a.conf.Name = name
		}
		if a.conf.Name == "" {
			a.conf.Name = s.Name
		}
		out = append(out, a)
	}
	return out, nil
}

// add is ADD of all of a pod's networks.
func (m multus) add(ctx context.Context, req Request, p plugin) (Result, error) {
	cniType, network := p.delegate()
	pod, err := m.pod(ctx, req)
	if err != nil {
		return Result{}, failed("multus", err)
	}
	atts, err := m.attachments(ctx, pod)
	if err != nil {
		return Result{}, failed("multus", err)
	}
	first, err := p.primary(ctx, req, pod)
	if err != nil {
		return Result{}, failed(cniType, err)
	}
	res := Result{IPs: v4First(first.ips), MAC: first.mac, Annotations: map[string]string{}}
	maps.Copy(res.Annotations, first.annotations)
	statuses := []networkStatus{{Name: network, Interface: "eth0", IPs: texts(first.ips), MAC: first.mac, Default: true}}
	for _, a := range atts {
		n, ok, err := p.secondary(ctx, req, pod, a)
		if err == nil && !ok {
			n, err = plain(a)
		}
		if err != nil {
			return Result{}, failed(a.conf.Type, err)
		}
		maps.Copy(res.Annotations, n.annotations)
		statuses = append(statuses, networkStatus{Name: a.Namespace + "/" + a.Name, Interface: a.Interface, IPs: texts(v4First(n.ips)), MAC: n.mac})
	}
	status, err := json.MarshalIndent(statuses, "", "    ")
	if err != nil {
		return Result{}, err
	}
	res.Annotations[networkStatusAnnotation] = string(status)
	return res, nil
}

// pod reads the pod anew: plugins look it up themselves, and the runtime's copy may be old.
func (k *kube) pod(ctx context.Context, req Request) (*corev1.Pod, error) {
	pod, err := k.core.CoreV1().Pods(req.Pod.Namespace).Get(ctx, req.Pod.Name, metav1.GetOptions{})
	if err == nil && pod.UID != req.Pod.UID {
		return nil, fmt.Errorf("pod %s/%s was replaced: expected pod UID %q but got %q from Kube API", pod.Namespace, pod.Name, req.Pod.UID, pod.UID)
	}
	return pod, err
}

// annotate changes annotations of a pod that may be gone. A value of nil removes.
func (k *kube) annotate(ctx context.Context, pod *corev1.Pod, a map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": a}})
	if err != nil {
		return err
	}
	_, err = k.core.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if raced(err) { // another pod of that name
		return nil
	}
	return ignoreNotFound(err)
}

// linkPlugins make an interface on their own and leave addresses to their IPAM plugin.
var linkPlugins = []string{"bridge", "cnv-bridge", "dummy", "host-device", "ipvlan", "macvlan", "ovs", "ptp", "sriov", "tap", "vlan"}

// plain is an attachment that no driver cares for: a link without addresses, or with those that a
// static IPAM has in its configuration. static keeps no record and sees no conflict (CNI docs, static).
func plain(a attachment) (nic, error) {
	if !slices.Contains(linkPlugins, a.conf.Type) {
		return nic{}, fmt.Errorf("failed to find plugin %q in path [/opt/cni/bin]", a.conf.Type)
	}
	n := nic{mac: a.MAC}
	if n.mac == "" {
		n.mac = randomMAC()
	}
	switch a.conf.IPAM.Type {
	case "":
	case "static":
		for _, x := range a.conf.IPAM.Addresses {
			n.ips = append(n.ips, x.Address.Addr())
		}
	default:
		return nic{}, fmt.Errorf("failed to find plugin %q in path [/opt/cni/bin]", a.conf.IPAM.Type)
	}
	return n, nil
}

// failed is an error as libcni reports it.
func failed(cniType string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Message = fmt.Sprintf("plugin type=%q failed (add): %s", cniType, e.Message)
		return e
	}
	return &Error{Message: fmt.Sprintf("plugin type=%q failed (add): %v", cniType, err)}
}

func texts(addrs []netip.Addr) []string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return s
}
