package profile

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Calico keeps its records as custom resources of one of two groups: crd.projectcalico.org, or
// projectcalico.org in the newer mode without an API server of its own
// (manifests/v3_projectcalico_org.yaml).
const (
	calicoCRDs   = "crd.projectcalico.org"
	calicoNative = "projectcalico.org"
	tigeraGroup  = "operator.tigera.io"

	calicoIPAM = "calico-ipam"
)

// calicoFacts is what was detected of Calico.
type calicoFacts struct {
	present presence
	version setting[string]
	// native is set where records are in the group projectcalico.org.
	native bool
	// node is the DaemonSet; its zero value where it was not read.
	node workload
	// ipam is the type of the IPAM plugin in the CNI configuration.
	ipam setting[string]
	// network is the name of the CNI network, a part of the handles of VMs.
	network string
	pools   setting[[]calicoPool]
	// persistent is KubeVirtVMAddressPersistence, which Calico has since 3.32: Enabled unless it
	// says Disabled.
	persistent setting[bool]
	wireguard  setting[bool]
}

// calicoPool is an IPPool.
type calicoPool struct {
	name      string
	cidr      netip.Prefix
	blockBits int
	overlay   string // "IPIP Always" and the like, "" for none
	disabled  bool
}

func (f calicoFacts) gvr(resource string) schema.GroupVersionResource {
	if f.native {
		if resource == "ipamconfigs" {
			resource = "ipamconfigurations"
		}
		return schema.GroupVersionResource{Group: calicoNative, Version: "v3", Resource: resource}
	}
	return schema.GroupVersionResource{Group: calicoCRDs, Version: "v1", Resource: resource}
}

func (f calicoFacts) unread() []error {
	if !f.present.value && f.present.failed() == nil {
		return nil
	}
	return []error{f.present.failed(), f.version.failed(), f.ipam.failed(), f.pools.failed(), f.persistent.failed(), f.wireguard.failed()}
}

func detectCalico(ctx context.Context, r Reader, g groups) calicoFacts {
	if g.missing(calicoCRDs) && g.missing(calicoNative) {
		none := fmt.Errorf("calico %w", errNotDetected)
		return calicoFacts{present: known(false), version: unknown[string](none), ipam: unknown[string](none), pools: unknown[[]calicoPool](none), persistent: unknown[bool](none), wireguard: unknown[bool](none)}
	}
	f := calicoFacts{native: g.missing(calicoCRDs), network: "k8s-pod-network"}
	f.detectNetworking(ctx, r, g)
	f.detectVersion(ctx, r)
	f.pools = calicoPools(ctx, r, f)
	f.detectPersistence(ctx, r)
	return f
}

// detectNetworking finds out whether Calico makes the pods' interfaces, and with which IPAM. CRDs
// alone don't say so: Calico may be there for policy only.
func (f *calicoFacts) detectNetworking(ctx context.Context, r Reader, g groups) {
	cniType, ipam, operatorErr := tigeraInstallation(ctx, r, g)
	node, err := r.daemonSet(ctx, "calico-system/calico-node", "kube-system/calico-node", "kube-system/canal", "kube-system/rke2-canal")
	f.node = node
	switch {
	case cniType != "" && cniType != "Calico":
		f.present = known(false)
		f.ipam = unknown[string](fmt.Errorf("the installation names %s as the CNI plugin", cniType))
		return
	case err == nil, cniType == "Calico":
		f.present = known(true)
	case absent(err):
		f.present = known(false)
	default:
		f.present = unknown[bool](err)
	}
	switch {
	case ipam == "Calico":
		f.ipam = known(calicoIPAM)
	case ipam == "HostLocal":
		f.ipam = known("host-local")
	case ipam != "":
		f.ipam = known(ipam)
	case operatorErr != nil && !absent(operatorErr):
		f.ipam = unknown[string](operatorErr)
	case strings.HasSuffix(node.name, "canal"):
		f.ipam = f.configured(ctx, r, node.name+"-config")
	default:
		f.ipam = f.configured(ctx, r, "calico-config")
	}
}

// tigeraInstallation reads how the operator set Calico up.
func tigeraInstallation(ctx context.Context, r Reader, g groups) (cniType, ipam string, err error) {
	if g.missing(tigeraGroup) {
		return "", "", nil
	}
	o, err := r.get(ctx, schema.GroupVersionResource{Group: tigeraGroup, Version: "v1", Resource: "installations"}, "", "default")
	if err != nil {
		return "", "", err
	}
	cniType, _, _ = unstructured.NestedString(o.Object, "spec", "cni", "type")
	ipam, _, _ = unstructured.NestedString(o.Object, "spec", "cni", "ipam", "type")
	return cniType, ipam, nil
}

// placeholder is what the manifest's CNI configuration has where install-cni puts a number.
var placeholder = regexp.MustCompile(`:\s*__\w+__`)

// configured reads the IPAM type and the network's name from the ConfigMap of a manifest.
func (f *calicoFacts) configured(ctx context.Context, r Reader, name string) setting[string] {
	m, err := r.Core.CoreV1().ConfigMaps("kube-system").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return unknown[string](unreadable("configmap kube-system/"+name, err))
	}
	var conf cniConfig
	text := placeholder.ReplaceAllString(m.Data["cni_network_config"], ": 0")
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return unknown[string](fmt.Errorf("configmap kube-system/%s: cni_network_config can't be parsed: %w", name, err))
	}
	if conf.Name != "" {
		f.network = conf.Name
	}
	i := slices.IndexFunc(conf.Plugins, func(p cniConfig) bool { return p.IPAM.Type != "" })
	switch {
	case conf.IPAM.Type != "":
		return known(conf.IPAM.Type)
	case i >= 0:
		return known(conf.Plugins[i].IPAM.Type)
	}
	return unknown[string](fmt.Errorf("configmap kube-system/%s: cni_network_config names no ipam", name))
}

func (f *calicoFacts) detectVersion(ctx context.Context, r Reader) {
	o, err := r.get(ctx, f.gvr("clusterinformations"), "", "default")
	if err == nil {
		if v, _, _ := unstructured.NestedString(o.Object, "spec", "calicoVersion"); parseVersion(v) != nil {
			f.version = known(v)
			return
		}
		err = fmt.Errorf("clusterinformation default names no version")
	}
	if v := f.node.version(); v != "" {
		f.version = known(v)
		return
	}
	f.version = unknown[string](err)
}

func calicoPools(ctx context.Context, r Reader, f calicoFacts) setting[[]calicoPool] {
	list, err := r.Dynamic.Resource(f.gvr("ippools")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown[[]calicoPool](unreadable("calico ippools", err))
	}
	var pools []calicoPool
	for _, o := range list.Items {
		spec, _, _ := unstructured.NestedMap(o.Object, "spec")
		text, _ := spec["cidr"].(string)
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			continue // Calico's own validation keeps it out
		}
		p := calicoPool{name: o.GetName(), cidr: cidr.Masked(), blockBits: 26}
		if cidr.Addr().Is6() {
			p.blockBits = 122
		}
		if n, ok := spec["blockSize"].(int64); ok && n > 0 {
			p.blockBits = int(n)
		}
		p.disabled, _ = spec["disabled"].(bool)
		for _, mode := range []struct{ key, name string }{{"ipipMode", "IPIP"}, {"vxlanMode", "VXLAN"}} {
			if v, _ := spec[mode.key].(string); v != "" && v != "Never" {
				p.overlay = mode.name + " " + v
			}
		}
		pools = append(pools, p)
	}
	return known(pools)
}

// detectPersistence reads what decides whether an address may be at two pods during a migration.
// Nothing written means enabled, and no encryption.
func (f *calicoFacts) detectPersistence(ctx context.Context, r Reader) {
	f.persistent, f.wireguard = known(true), known(false)
	if old, ok := before(f.version.value, 3, 32); ok && old {
		f.persistent = known(false)
		return
	}
	o, err := r.get(ctx, f.gvr("ipamconfigs"), "", "default")
	switch {
	case err == nil:
		v, _, _ := unstructured.NestedString(o.Object, "spec", "kubeVirtVMAddressPersistence")
		f.persistent = known(v != "Disabled")
	case !absent(err):
		f.persistent = unknown[bool](err)
	}
	o, err = r.get(ctx, f.gvr("felixconfigurations"), "", "default")
	switch {
	case err == nil:
		v4, _, _ := unstructured.NestedBool(o.Object, "spec", "wireguardEnabled")
		v6, _, _ := unstructured.NestedBool(o.Object, "spec", "wireguardEnabledV6")
		f.wireguard = known(v4 || v6)
	case !absent(err):
		f.wireguard = unknown[bool](err)
	}
}
