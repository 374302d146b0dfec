package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	ovnVersion    = "v1.14.41"
	ovnGroup      = "kubeovn.io"
	ovnController = "kube-ovn-controller"
	ovnFinalizer  = "kubeovn.io/kube-ovn-controller"
	ovnProvider   = "ovn"
	ovnDefault    = "ovn-default"
	ovnVPC        = "ovn-cluster"

	ovnSubnetLabel   = "ovn.kubernetes.io/subnet"
	ovnNodeLabel     = "ovn.kubernetes.io/node-name"
	ovnReservedLabel = "ovn.kubernetes.io/ip_reserved"
	ovnSwitch        = "ovn.kubernetes.io/logical_switch"

	migrationJobAnnotation = "kubevirt.io/migrationJobName"
)

// ovnKey is an annotation of one of a pod's networks (Kube-OVN docs, multi-nic: <provider>.kubernetes.io/<key>).
func ovnKey(provider, key string) string { return provider + ".kubernetes.io/" + key }

// kubeOVN is Kube-OVN as the primary CNI. kube-ovn-controller is one process that allocates: its lock
// is ours, its memory of what it gave back is ours, and what it would read at a restart is in IP objects.
type kubeOVN struct {
	multus
	cidrs   []netip.Prefix
	gcAfter time.Duration

	subnets    table[ovnSubnet]
	ips        table[ovnIP]
	pods       table[corev1.Pod]
	namespaces table[corev1.Namespace]

	mu sync.Mutex
	// used remembers, for each subnet, what was ever in use since the controller started: a free
	// address that was used before comes after all that never were.
	used map[string]map[netip.Addr]bool
	// lost are ports whose addresses were given back by a request that failed after that. Their IP
	// object still names them, and a restarted controller believes the object.
	lost map[string]bool
}

func newKubeOVN(o Options) (Driver, error) {
	k, err := newKube(o.Config)
	if err != nil {
		return nil, err
	}
	r := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: ovnGroup, Version: "v1", Resource: resource}
	}
	d := &kubeOVN{
		multus: newMultus(k), cidrs: o.PodCIDRs, gcAfter: o.GCAfter,
		subnets:    newTable[ovnSubnet](k, r("subnets"), "Subnet"),
		ips:        newTable[ovnIP](k, r("ips"), "IP"),
		pods:       newTable[corev1.Pod](k, corev1.SchemeGroupVersion.WithResource("pods"), "Pod"),
		namespaces: newTable[corev1.Namespace](k, corev1.SchemeGroupVersion.WithResource("namespaces"), "Namespace"),
		used:       map[string]map[netip.Addr]bool{},
		lost:       map[string]bool{},
	}
	if d.gcAfter == 0 {
		d.gcAfter = 360 * time.Second // --gc-interval
	}
	return d, nil
}

func (d *kubeOVN) Name() string { return "kube-ovn" }

type ovnSubnet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ovnSubnetSpec  `json:"spec"`
	Status            map[string]any `json:"status,omitempty"`
}

type ovnSubnetSpec struct {
	Default     bool     `json:"default"`
	VPC         string   `json:"vpc,omitempty"`
	Protocol    string   `json:"protocol,omitempty"`
	CIDRBlock   string   `json:"cidrBlock"`
	Gateway     string   `json:"gateway"`
	ExcludeIPs  []string `json:"excludeIps,omitempty"`
	Provider    string   `json:"provider,omitempty"`
	GatewayType string   `json:"gatewayType,omitempty"`
	NATOutgoing bool     `json:"natOutgoing"`
	Private     bool     `json:"private"`
	VLAN        string   `json:"vlan,omitempty"`
	EnableDHCP  bool     `json:"enableDHCP,omitempty"`
	EnableLB    *bool    `json:"enableLb,omitempty"`
}

type ovnIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ovnIPSpec `json:"spec"`
}

type ovnIPSpec struct {
	PodName       string   `json:"podName"`
	Namespace     string   `json:"namespace"`
	Subnet        string   `json:"subnet"`
	AttachSubnets []string `json:"attachSubnets"`
	NodeName      string   `json:"nodeName"`
	IPAddress     string   `json:"ipAddress"`
	V4IPAddress   string   `json:"v4IpAddress"`
	V6IPAddress   string   `json:"v6IpAddress"`
	AttachIPs     []string `json:"attachIps"`
	MACAddress    string   `json:"macAddress"`
	AttachMACs    []string `json:"attachMacs"`
	ContainerID   string   `json:"containerID"`
	PodType       string   `json:"podType"`
}

func (d *kubeOVN) definitions() []crd {
	spec := props{
		"vpc": text, "default": boolean, "protocol": enum("IPv4", "IPv6", "Dual"), "cidrBlock": text, "namespaces": listOf(text), "gateway": text,
		"provider": text, "excludeIps": listOf(text), "gatewayType": text, "gatewayNode": text, "natOutgoing": boolean, "private": boolean,
		"vlan": text, "disableGatewayCheck": boolean, "enableDHCP": boolean, "dhcpV4Options": text, "dhcpV6Options": text,
		"enableIPv6RA": boolean, "ipv6RAConfigs": text, "enableLb": boolean, "mtu": integer, "logicalGateway": boolean,
	}
	return []crd{
		{group: ovnGroup, version: "v1", kind: "Subnet", plural: "subnets", short: []string{"subnet"}, status: true,
			fields: props{"spec": object(spec), "status": anything},
			columns: []apiext.CustomResourceColumnDefinition{
				column("Provider", "string", ".spec.provider"), column("Vpc", "string", ".spec.vpc"), column("Protocol", "string", ".spec.protocol"),
				column("CIDR", "string", ".spec.cidrBlock"), column("Default", "boolean", ".spec.default"), column("V4Used", "number", ".status.v4usingIPs"),
				column("V4Available", "number", ".status.v4availableIPs"), column("ExcludeIPs", "string", ".spec.excludeIps")}},
		{group: ovnGroup, version: "v1", kind: "IP", plural: "ips", short: []string{"ip"},
			fields: props{"spec": object(props{
				"podName": text, "namespace": text, "subnet": text, "attachSubnets": listOf(text), "nodeName": text, "ipAddress": text, "v4IpAddress": text,
				"v6IpAddress": text, "attachIps": listOf(text), "macAddress": text, "attachMacs": listOf(text), "containerID": text, "podType": text})},
			columns: []apiext.CustomResourceColumnDefinition{
				column("V4IP", "string", ".spec.v4IpAddress"), column("V6IP", "string", ".spec.v6IpAddress"), column("Mac", "string", ".spec.macAddress"),
				column("Node", "string", ".spec.nodeName"), column("Subnet", "string", ".spec.subnet")}},
		{group: ovnGroup, version: "v1", kind: "IPPool", plural: "ippools", short: []string{"ippool"}, status: true, fields: props{"spec": anything, "status": anything}},
		{group: ovnGroup, version: "v1", kind: "Vpc", plural: "vpcs", short: []string{"vpc"}, status: true, fields: props{"spec": anything, "status": anything}},
	}
}

func (d *kubeOVN) Install(ctx context.Context) error {
	if err := d.install(ctx, true); err != nil {
		return err
	}
	if err := d.ensureCRDs(ctx, d.definitions()...); err != nil {
		return err
	}
	cidrs, gateways := make([]string, len(d.cidrs)), make([]string, len(d.cidrs))
	for i, p := range d.cidrs {
		cidrs[i], gateways[i] = p.Masked().String(), gateway(p).String()
	}
	cidr, gw := strings.Join(cidrs, ","), strings.Join(gateways, ",")
	image := "docker.io/kubeovn/kube-ovn:" + ovnVersion
	if err := d.ensureDeployment(ctx, workload{
		namespace: kubeSystem, name: ovnController, labels: map[string]string{"app": ovnController, "component": "network", "type": "infra"},
		container: ovnController, image: image,
		args: []string{"/kube-ovn/start-controller.sh", "--default-cidr=" + cidr, "--default-gateway=" + gw, "--default-exclude-ips=",
			"--node-switch-cidr=100.64.0.0/16", "--network-type=geneve", "--pod-nic-type=veth-pair", "--gc-interval=360", "--keep-vm-ip=true",
			"--enable-live-migration-optimize=true", "--image=" + image},
	}); err != nil {
		return err
	}
	for name, app := range map[string]string{"kube-ovn-cni": "kube-ovn-cni", "ovs-ovn": "ovs"} {
		if err := d.ensureDaemonSet(ctx, workload{
			namespace: kubeSystem, name: name, labels: map[string]string{"app": app, "component": "network", "type": "infra"},
			container: map[string]string{"kube-ovn-cni": "cni-server", "ovs-ovn": "openvswitch"}[name], image: image,
		}); err != nil {
			return err
		}
	}
	s := &ovnSubnet{ObjectMeta: metav1.ObjectMeta{Name: ovnDefault}}
	s.Spec = ovnSubnetSpec{Default: true, CIDRBlock: cidr, Gateway: gw, NATOutgoing: true}
	s.format()
	if err := d.subnets.ensure(ctx, "", s); err != nil {
		return err
	}
	return d.refresh(ctx, ovnDefault)
}

// format fills in what the controller fills in; it says whether anything was missing.
func (s *ovnSubnet) format() (changed bool) {
	set := func(field *string, value string) {
		if *field == "" && value != "" {
			*field, changed = value, true
		}
	}
	p := s.prefixes()
	set(&s.Spec.Provider, ovnProvider)
	if s.ovn() {
		set(&s.Spec.VPC, ovnVPC)
		set(&s.Spec.GatewayType, "distributed")
	}
	if len(p) == 0 {
		return changed
	}
	gateways := make([]string, len(p))
	for i := range p {
		gateways[i] = gateway(p[i]).String()
	}
	set(&s.Spec.Protocol, map[bool]string{true: "Dual", false: map[bool]string{true: "IPv4", false: "IPv6"}[p[0].Addr().Is4()]}[len(p) == 2])
	set(&s.Spec.Gateway, strings.Join(gateways, ","))
	for g := range strings.SplitSeq(s.Spec.Gateway, ",") {
		if a, err := netip.ParseAddr(g); err == nil && !s.excluded().contains(a) {
			s.Spec.ExcludeIPs, changed = append(s.Spec.ExcludeIPs, g), true
		}
	}
	if s.Spec.EnableLB == nil {
		s.Spec.EnableLB, changed = new(true), true
	}
	if !slices.Contains(s.Finalizers, ovnFinalizer) {
		s.Finalizers, changed = append(s.Finalizers, ovnFinalizer), true
	}
	return changed
}

// ovn says whether addresses are configured by OVN, or by another plugin that only asks Kube-OVN for them.
func (s *ovnSubnet) ovn() bool {
	return s.Spec.Provider == "" || s.Spec.Provider == ovnProvider || strings.HasSuffix(s.Spec.Provider, "."+ovnProvider)
}

func (s *ovnSubnet) prefixes() []netip.Prefix {
	var out []netip.Prefix
	for c := range strings.SplitSeq(s.Spec.CIDRBlock, ",") {
		if p, err := netip.ParsePrefix(c); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// family is the subnet's prefix for an address's family.
func (s *ovnSubnet) family(a netip.Addr) (netip.Prefix, bool) {
	for _, p := range s.prefixes() {
		if p.Addr().BitLen() == a.BitLen() {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func (s *ovnSubnet) excluded() spans {
	var out spans
	for _, e := range s.Spec.ExcludeIPs {
		if r, err := parseSpan(e, ".."); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// available is the number of free addresses that the status gives for a family. The controller goes by
// it, not by its own lists, when it chooses a pod's subnet.
func (s *ovnSubnet) available(bits int) float64 {
	switch v := s.Status[map[int]string{32: "v4availableIPs", 128: "v6availableIPs"}[bits]].(type) {
	case float64:
		return v
	case int64:
		return float64(v)
	}
	return 0
}

func (d *kubeOVN) Add(ctx context.Context, req Request) (Result, error) { return d.add(ctx, req, d) }

func (d *kubeOVN) delegate() (string, string) { return "kube-ovn", "kube-ovn" }

// Del does nothing to addresses: kube-ovn-cni removes the port, the controller frees by what happens to the pod.
func (d *kubeOVN) Del(context.Context, Request) error { return nil }

// controllerError is an event of the controller's. What the pod's sandbox fails with is another
// sentence: the CNI server waited in vain.
type controllerError struct{ reason, message string }

func (e *controllerError) Error() string { return e.message }

// waited turns the controller's failure into what kube-ovn-cni says.
func waited(pod *corev1.Pod, provider string, err error) error {
	out := &Error{Message: fmt.Sprintf("RPC failed; request ip return 500 no address allocated to pod %s/%s provider %s, please see %s logs to find errors",
		pod.Namespace, pod.Name, provider, ovnController)}
	if e, ok := errors.AsType[*controllerError](err); ok {
		out.Events = []Event{{Type: corev1.EventTypeWarning, Reason: e.reason, Message: e.message, Component: ovnController}}
	}
	return out
}

func (d *kubeOVN) primary(ctx context.Context, req Request, pod *corev1.Pod) (nic, error) {
	if err := validatePodNetwork(pod.Annotations); err != nil {
		return nic{}, waited(pod, ovnProvider, &controllerError{"ValidatePodNetworkFailed", err.Error()})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ensureNamespaceSwitch(ctx, pod.Namespace); err != nil {
		return nic{}, err
	}
	subnet, err := d.defaultSubnet(ctx, pod)
	if err != nil {
		return nic{}, waited(pod, ovnProvider, err)
	}
	atts, err := d.attachments(ctx, pod)
	if err != nil {
		return nic{}, err
	}
	for _, a := range atts { // before the default network, and nothing is patched on the pod before all are done
		if _, ok, err := d.attach(ctx, req, pod, a); err != nil && ok {
			return nic{}, waited(pod, ovnProvider, err)
		}
	}
	n, err := d.allocate(ctx, req, pod, ovnNet{provider: ovnProvider, subnet: subnet, first: true})
	if err != nil {
		return nic{}, waited(pod, ovnProvider, err)
	}
	n.annotations[ovnKey(ovnProvider, "routed")] = "true"
	return n, nil
}

func (d *kubeOVN) secondary(ctx context.Context, req Request, pod *corev1.Pod, a attachment) (nic, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok, err := d.attach(ctx, req, pod, a)
	if err != nil {
		return nic{}, true, waited(pod, a.provider()+"."+ovnProvider, err)
	}
	return n, ok, nil
}

// attach allocates for an attachment: of type kube-ovn, or another plugin's that has a subnet of its
// own (Kube-OVN docs, multi-nic). ok is false where Kube-OVN has no part in it.
func (d *kubeOVN) attach(ctx context.Context, req Request, pod *corev1.Pod, a attachment) (nic, bool, error) {
	net := ovnNet{provider: a.provider(), mac: a.MAC, ip: strings.Join(a.IPs, ",")}
	own := a.conf.Type == "kube-ovn"
	if own {
		net.provider += "." + ovnProvider
		// The port is the VM's on both nodes while it migrates.
		net.shared = pod.Annotations[migrationJobAnnotation] != ""
	}
	subnets, err := d.subnets.list(ctx, "")
	if err != nil {
		return nic{}, true, err
	}
	if name := pod.Annotations[ovnKey(net.provider, "logical_switch")]; name != "" && own {
		if net.subnet, err = d.subnets.get(ctx, "", name); err != nil {
			return nic{}, true, err
		}
	} else if i := slices.IndexFunc(subnets, func(s ovnSubnet) bool { return s.Spec.Provider == net.provider }); i >= 0 {
		net.subnet = &subnets[i]
	} else if !own {
		return nic{}, false, nil
	} else if net.subnet, err = d.defaultSubnet(ctx, pod); err != nil {
		return nic{}, true, err
	}
	n, err := d.allocate(ctx, req, pod, net)
	if err != nil {
		return nic{}, true, err
	}
	if own {
		n.annotations[ovnKey(net.provider, "routed")] = "true"
	} else if n.mac = a.MAC; n.mac == "" {
		n.mac = randomMAC()
	}
	return n, true, nil
}

// validatePodNetwork is the controller's check of the primary network's annotations. It splits on the
// comma and trims nothing.
func validatePodNetwork(annotations map[string]string) error {
	const ip, mac = "ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/mac_address"
	var bad []string
	if v := annotations[ip]; v != "" {
		for s := range strings.SplitSeq(v, ",") {
			_, err := netip.ParseAddr(s)
			if strings.Contains(s, "/") {
				_, err = netip.ParsePrefix(s)
			}
			if err != nil {
				bad = append(bad, s+" is not a valid "+ip)
			}
		}
	}
	if v := annotations[mac]; v != "" {
		if _, err := net.ParseMAC(v); err != nil {
			bad = append(bad, v+" is not a valid "+mac)
		}
	}
	switch len(bad) {
	case 0:
		return nil
	case 1:
		return errors.New(bad[0])
	}
	return errors.New("[" + strings.Join(bad, ", ") + "]")
}

// keepVMIP reads the controller's own argument, so that a test can change it as an administrator does.
func (d *kubeOVN) keepVMIP(ctx context.Context) bool {
	dep, err := d.core.AppsV1().Deployments(kubeSystem).Get(ctx, ovnController, metav1.GetOptions{})
	return err != nil || !slices.Contains(dep.Spec.Template.Spec.Containers[0].Args, "--keep-vm-ip=false")
}

// podName is the name that a pod's addresses are kept under: the VM's for a launcher. The owner
// reference alone counts, and the VM is taken to be called as its VMI.
func (d *kubeOVN) podName(ctx context.Context, pod *corev1.Pod) (name string, vm bool) {
	for _, r := range pod.OwnerReferences {
		if r.Kind == "VirtualMachineInstance" && strings.HasPrefix(r.APIVersion, "kubevirt.io") && d.keepVMIP(ctx) {
			return r.Name, true
		}
	}
	return pod.Name, false
}

func podType(pod *corev1.Pod) string {
	if owner(pod, "VirtualMachineInstance") != nil {
		return "VirtualMachine"
	}
	return ""
}

// ensureNamespaceSwitch annotates a namespace with its subnet, as the controller does for every namespace.
func (d *kubeOVN) ensureNamespaceSwitch(ctx context.Context, name string) error {
	ns, err := d.core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return d.annotateNamespace(ctx, ns)
}

func (d *kubeOVN) annotateNamespace(ctx context.Context, ns *corev1.Namespace) error {
	if ns.Annotations[ovnSwitch] != "" || ns.DeletionTimestamp != nil {
		return nil
	}
	s, err := d.subnets.get(ctx, "", ovnDefault)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		ovnSwitch: s.Name, "ovn.kubernetes.io/cidr": s.Spec.CIDRBlock, "ovn.kubernetes.io/exclude_ips": strings.Join(s.Spec.ExcludeIPs, ","),
	}}})
	if err != nil {
		return err
	}
	_, err = d.core.CoreV1().Namespaces().Patch(ctx, ns.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return ignoreNotFound(err)
}

// namespaceSubnets are the subnets that a namespace is bound to.
func (d *kubeOVN) namespaceSubnets(ctx context.Context, namespace string) ([]*ovnSubnet, error) {
	ns, err := d.core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var out []*ovnSubnet
	for name := range strings.SplitSeq(ns.Annotations[ovnSwitch], ",") {
		s, err := d.subnets.get(ctx, "", name)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

var errNoAvailable = errors.New("NoAvailableAddress")

// defaultSubnet is the subnet of the primary network: the pod's own, or the first of the namespace's
// with a free address. A VM that has an address in a full one is no exception.
func (d *kubeOVN) defaultSubnet(ctx context.Context, pod *corev1.Pod) (*ovnSubnet, error) {
	if name := pod.Annotations[ovnSwitch]; name != "" {
		return d.subnets.get(ctx, "", name)
	}
	list, err := d.namespaceSubnets(ctx, pod.Namespace)
	if err != nil {
		return nil, err
	}
	for _, s := range list {
		full := slices.ContainsFunc(s.prefixes(), func(p netip.Prefix) bool { return s.available(p.Addr().BitLen()) == 0 })
		if !full || d.fromExcluded(pod, s) {
			return s, nil
		}
	}
	return nil, errNoAvailable // logged, without an event
}

// fromExcluded says that the pod asks for addresses that the subnet keeps out of automatic allocation.
func (d *kubeOVN) fromExcluded(pod *corev1.Pod, s *ovnSubnet) bool {
	for v := range strings.SplitSeq(pod.Annotations[ovnKey(ovnProvider, "ip_address")], ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(v)); err == nil && s.excluded().contains(a) {
			return true
		}
	}
	return false
}
