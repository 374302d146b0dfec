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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// The annotations that Calico reads and writes (Calico docs, use-specific-ip, configure-cni-plugins).
const (
	calicoPrefix        = "cni.projectcalico.org/"
	calicoIPAddrs       = calicoPrefix + "ipAddrs"
	calicoIPAddrsNoIPAM = calicoPrefix + "ipAddrsNoIpam"
	calicoHWAddr        = calicoPrefix + "hwAddr"
	calicoFloatingIPs   = calicoPrefix + "floatingIPs"
	calicoIPv4Pools     = calicoPrefix + "ipv4pools"
	calicoIPv6Pools     = calicoPrefix + "ipv6pools"
	calicoPodIP         = calicoPrefix + "podIP"
	calicoPodIPs        = calicoPrefix + "podIPs"
	calicoContainerID   = calicoPrefix + "containerID"
)

const (
	calicoGroup   = "crd.projectcalico.org"
	calicoNetwork = "k8s-pod-network"
)

// calico is Calico from the manifest (KDD, crd.projectcalico.org/v1) with calico-ipam and BGP.
// Up to 3.31 it knows nothing of VMs: an allocation belongs to a container. Since 3.32 it belongs to
// the VM (Calico docs 3.32, kubevirt-networking; calico PRs 11865, 12038, 11971).
type calico struct {
	multus
	name, version string
	persistence   bool // has KubeVirtVMAddressPersistence
	cidrs         []netip.Prefix
	gcAfter       time.Duration

	pools        table[calicoPool]
	reservations table[calicoReservation]
	configs      table[calicoIPAMConfig]
	affinities   table[calicoAffinity]
	blocks       table[calicoBlock]
	handles      table[calicoHandle]

	// locks are the plugin's lock files, one a node: they spare retries, the API keeps order.
	locks sync.Map
}

func newCalico331(o Options) (Driver, error) { return newCalico(o, "calico-3.31", "v3.31.5", false) }
func newCalico332(o Options) (Driver, error) { return newCalico(o, "calico-3.32", "v3.32.1", true) }

func newCalico(o Options, name, version string, persistence bool) (Driver, error) {
	k, err := newKube(o.Config)
	if err != nil {
		return nil, err
	}
	r := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: resource}
	}
	d := &calico{
		multus: newMultus(k), name: name, version: version, persistence: persistence, cidrs: o.PodCIDRs, gcAfter: o.GCAfter,
		pools:        newTable[calicoPool](k, r("ippools"), "IPPool"),
		reservations: newTable[calicoReservation](k, r("ipreservations"), "IPReservation"),
		configs:      newTable[calicoIPAMConfig](k, r("ipamconfigs"), "IPAMConfig"),
		affinities:   newTable[calicoAffinity](k, r("blockaffinities"), "BlockAffinity"),
		blocks:       newTable[calicoBlock](k, r("ipamblocks"), "IPAMBlock"),
		handles:      newTable[calicoHandle](k, r("ipamhandles"), "IPAMHandle"),
	}
	if d.gcAfter == 0 {
		d.gcAfter = 15 * time.Minute // KubeControllersConfiguration, leakGracePeriod
	}
	return d, nil
}

func (d *calico) Name() string { return d.name }

func (d *calico) Install(ctx context.Context) error {
	if err := d.install(ctx, true); err != nil {
		return err
	}
	if err := d.ensureCRDs(ctx, d.definitions()...); err != nil {
		return err
	}
	v4, v6 := families(d.cidrs)
	ipam := map[string]any{"type": "calico-ipam"}
	if v6 != nil {
		ipam["assign_ipv4"], ipam["assign_ipv6"] = fmt.Sprint(v4 != nil), "true"
	}
	conf, err := json.MarshalIndent(map[string]any{
		"name": calicoNetwork, "cniVersion": "0.3.1",
		"plugins": []any{
			map[string]any{"type": "calico", "datastore_type": "kubernetes", "nodename": "__KUBERNETES_NODE_NAME__", "ipam": ipam, "policy": map[string]any{"type": "k8s"}},
			map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]any{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := d.ensureConfigMap(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubeSystem, Name: "calico-config"},
		Data:       map[string]string{"calico_backend": "bird", "cni_network_config": string(conf), "typha_service_name": "none", "veth_mtu": "0"},
	}); err != nil {
		return err
	}
	if err := d.ensureDaemonSet(ctx, workload{
		namespace: kubeSystem, name: "calico-node", labels: map[string]string{"k8s-app": "calico-node"},
		container: "calico-node", image: "quay.io/calico/node:" + d.version,
		env: map[string]string{"DATASTORE_TYPE": "kubernetes", "CALICO_NETWORKING_BACKEND": "bird", "CLUSTER_TYPE": "k8s,bgp"},
	}); err != nil {
		return err
	}
	if err := d.ensureDeployment(ctx, workload{
		namespace: kubeSystem, name: "calico-kube-controllers", labels: map[string]string{"k8s-app": "calico-kube-controllers"},
		container: "calico-kube-controllers", image: "quay.io/calico/kube-controllers:" + d.version,
		env: map[string]string{"ENABLED_CONTROLLERS": "node,loadbalancer", "DATASTORE_TYPE": "kubernetes"},
	}); err != nil {
		return err
	}
	if err := d.ensureFixed(ctx); err != nil {
		return err
	}
	for _, p := range d.cidrs {
		pool := &calicoPool{ObjectMeta: metav1.ObjectMeta{Name: "default-ipv4-ippool"}}
		pool.Spec = calicoPoolSpec{CIDR: p.Masked().String(), BlockSize: 26, IPIPMode: "Never", VXLANMode: "Never", NodeSelector: "all()", AllowedUses: []string{"Workload", "Tunnel"}}
		switch {
		case p.Addr().Is6():
			pool.Name, pool.Spec.BlockSize = "default-ipv6-ippool", 122
		case !d.persistence: // the manifest's default; 3.32 with KubeVirt needs plain BGP and no NAT
			pool.Spec.IPIPMode, pool.Spec.NATOutgoing = "Always", true
		}
		// A pool smaller than a block is refused by Calico's validation.
		pool.Spec.BlockSize = max(pool.Spec.BlockSize, p.Bits())
		if err := d.pools.ensure(ctx, "", pool); err != nil {
			return err
		}
	}
	return nil
}

// ensureFixed creates the objects that calico-node and kube-controllers create when they start.
func (d *calico) ensureFixed(ctx context.Context) error {
	for _, o := range []struct {
		resource, kind string
		spec           map[string]any
	}{
		{"clusterinformations", "ClusterInformation", map[string]any{
			"calicoVersion": d.version, "clusterGUID": strings.ReplaceAll(string(uuid.NewUUID()), "-", ""), "clusterType": "k8s,bgp,kdd", "datastoreReady": true}},
		{"felixconfigurations", "FelixConfiguration", map[string]any{"floatingIPs": "Disabled", "logSeverityScreen": "Info", "reportingInterval": "0s"}},
		{"kubecontrollersconfigurations", "KubeControllersConfiguration", map[string]any{
			"controllers": map[string]any{"node": map[string]any{"hostEndpoint": map[string]any{"autoCreate": "Disabled"}, "leakGracePeriod": "15m0s", "reconcilerPeriod": "5m0s", "syncLabels": "Enabled"}}}},
	} {
		t := newTable[settings](d.kube, schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: o.resource}, o.kind)
		if err := t.ensure(ctx, "", &settings{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: o.spec}); err != nil {
			return err
		}
	}
	return nil
}

// definitions are the CRDs that matter to addresses. Fields that came with 3.32 are missing before it.
func (d *calico) definitions() []crd {
	attribute := props{"handle_id": text, "secondary": mapOf(text)}
	block := props{
		"affinity": text, "cidr": text, "deleted": boolean, "strictAffinity": boolean,
		"attributes": listOf(object(attribute)), "unallocated": listOf(integer),
		"sequenceNumber": integer, "sequenceNumberForAllocation": mapOf(integer),
	}
	nullable := integer
	nullable.Nullable = true
	block["allocations"] = listOf(nullable)
	config := props{"autoAllocateBlocks": boolean, "maxBlocksPerHost": integer, "strictAffinity": boolean}
	if d.persistence {
		attribute["alternateOwnerAttrs"] = mapOf(text)
		block["affinityClaimTime"] = dateTime
		config["kubeVirtVMAddressPersistence"] = enum("Enabled", "Disabled")
	}
	var defs []crd
	add := func(kind, plural string, p props, required ...string) {
		defs = append(defs, crd{group: calicoGroup, version: "v1", kind: kind, plural: plural, fields: props{"spec": object(p, required...)}})
	}
	add("IPPool", "ippools", props{
		"allowedUses": listOf(text), "assignmentMode": enum("Automatic", "Manual"), "blockSize": integer, "cidr": text, "disableBGPExport": boolean,
		"disabled": boolean, "ipipMode": text, "namespaceSelector": text, "natOutgoing": boolean, "nodeSelector": text, "vxlanMode": text}, "cidr")
	add("IPReservation", "ipreservations", props{"reservedCIDRs": listOf(text)})
	add("IPAMConfig", "ipamconfigs", config, "autoAllocateBlocks", "strictAffinity")
	add("BlockAffinity", "blockaffinities", props{"cidr": text, "deleted": text, "node": text, "state": text, "type": text}, "cidr", "deleted", "node", "state")
	add("IPAMBlock", "ipamblocks", block, "allocations", "attributes", "cidr", "strictAffinity", "unallocated")
	add("IPAMHandle", "ipamhandles", props{"block": mapOf(integer), "deleted": boolean, "handleID": text}, "block", "handleID")
	for plural, kind := range map[string]string{
		"clusterinformations": "ClusterInformation", "felixconfigurations": "FelixConfiguration", "bgpconfigurations": "BGPConfiguration",
		"kubecontrollersconfigurations": "KubeControllersConfiguration",
	} {
		defs = append(defs, crd{group: calicoGroup, version: "v1", kind: kind, plural: plural, fields: props{"spec": anything}})
	}
	return defs
}

func (d *calico) Add(ctx context.Context, req Request) (Result, error) { return d.add(ctx, req, d) }

func (d *calico) delegate() (string, string) { return "calico", calicoNetwork }

// secondary is another network of type calico. It reads the same annotations as the first one: an address
// that was meant for one interface is asked for by each (calico issue 10554).
func (d *calico) secondary(ctx context.Context, req Request, pod *corev1.Pod, a attachment) (nic, bool, error) {
	if a.conf.Type != "calico" {
		return nic{}, false, nil
	}
	if t := a.conf.IPAM.Type; t != "calico-ipam" {
		if pod.Annotations[calicoIPAddrs] != "" {
			return nic{}, true, fmt.Errorf("ipAddrs is not compatible with configured IPAM: %s", t)
		}
		return nic{}, true, fmt.Errorf("IPAM %q of network %s is not modelled", t, a.conf.Name)
	}
	ips, err := d.addresses(ctx, req, pod, a.conf.Name)
	if err != nil {
		return nic{}, true, err
	}
	mac, err := d.interfaceFor(pod, ips)
	return nic{ips: ips, mac: mac}, true, err
}

func (d *calico) primary(ctx context.Context, req Request, pod *corev1.Pod) (nic, error) {
	if _, err := d.core.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{}); err != nil {
		return nic{}, err
	}
	ips, err := d.addresses(ctx, req, pod, calicoNetwork)
	if err != nil {
		return nic{}, err
	}
	n := nic{ips: ips}
	if n.mac, err = d.interfaceFor(pod, ips); err != nil {
		// What the IPAM part gave is handed back when the interface cannot be made.
		return nic{}, errors.Join(err, d.ipamDel(ctx, req, calicoNetwork))
	}
	nets := make([]string, len(ips))
	for i, a := range ips {
		nets[i] = single(a).String()
	}
	n.annotations = map[string]string{calicoPodIP: nets[0], calicoPodIPs: strings.Join(nets, ","), calicoContainerID: req.ContainerID}
	return n, nil
}

// interfaceFor is what can fail once there are addresses: the MAC and the addresses on the link.
func (d *calico) interfaceFor(pod *corev1.Pod, ips []netip.Addr) (string, error) {
	mac := randomMAC()
	if v, ok := pod.Annotations[calicoHWAddr]; ok {
		m, err := net.ParseMAC(v)
		if err != nil {
			return "", fmt.Errorf("failed to parse MAC address %v provided via %s: %w", v, calicoHWAddr, err)
		}
		mac = m.String()
	}
	// The kernel refuses an address that the link already has. That is where 3.32 ends up with two
	// addresses for a VM: each call of its IPAM answers with the VM's first one.
	if len(ips) == 2 && ips[0] == ips[1] {
		return "", errors.New(`failed to add IP addr to "eth0": file exists`)
	}
	if pod.Annotations[calicoFloatingIPs] != "" {
		return "", errors.New("requested feature is not enabled: floating_ips")
	}
	return mac, nil
}

// addresses chooses between an address that was asked for and an automatic one.
func (d *calico) addresses(ctx context.Context, req Request, pod *corev1.Pod, network string) ([]netip.Addr, error) {
	want, noIPAM := pod.Annotations[calicoIPAddrs], pod.Annotations[calicoIPAddrsNoIPAM]
	switch {
	case want == "" && noIPAM == "":
		return d.ipamAdd(ctx, req, pod, network, netip.Addr{})
	case want != "" && noIPAM != "":
		return nil, errors.New("can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time")
	case noIPAM != "":
		return nil, errors.New("requested feature is not enabled: ip_addrs_no_ipam")
	}
	// The pod's endpoint is there from an earlier sandbox: its addresses would conflict with themselves.
	if old := pod.Annotations[calicoPodIPs]; old != "" && network == calicoNetwork {
		for s := range strings.SplitSeq(old, ",") {
			if p, err := netip.ParsePrefix(s); err == nil {
				if err := d.releaseAddress(ctx, p.Addr(), ""); err != nil {
					return nil, fmt.Errorf("failed to release ipAddrs: %w", err)
				}
			}
		}
	}
	list, err := parseIPAddrs(want)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, a := range list {
		got, err := d.ipamAdd(ctx, req, pod, network, a)
		if err != nil {
			return nil, fmt.Errorf("error getting IP from IPAM: %w", err)
		}
		ips = append(ips, got[0]) // one call an address, and only the first of each answer counts
	}
	return ips, nil
}

// parseIPAddrs reads the ipAddrs annotation: a JSON array of bare addresses, one a family at most.
func parseIPAddrs(value string) ([]netip.Addr, error) {
	var list []string
	if err := json.Unmarshal([]byte(value), &list); err != nil {
		return nil, fmt.Errorf("failed to parse IPs %s for annotation \"%s\": failed to parse '%s' as JSON: %w", value, calicoIPAddrs, value, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("annotation \"%s\" specified but empty", calicoIPAddrs)
	}
	var ips []netip.Addr
	for _, s := range list {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("invalid IP format: %s", s)
		}
		a = a.Unmap()
		if slices.ContainsFunc(ips, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			return nil, fmt.Errorf("cannot have more than one IPv%d address for \"%s\" annotation", version(a), calicoIPAddrs)
		}
		ips = append(ips, a)
	}
	return ips, nil
}

func version(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

// requestedPools are the pools that the pod or its namespace names, by name or CIDR.
func (d *calico) requestedPools(ctx context.Context, pod *corev1.Pod, all []calicoPool) (v4, v6 []netip.Prefix, err error) {
	ns, err := d.core.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("failed to get namespace %s: %w", pod.Namespace, err)
	}
	resolve := func(key string, is4 bool) ([]netip.Prefix, error) {
		value := pod.Annotations[key]
		if value == "" {
			value = ns.Annotations[key]
		}
		if value == "" {
			return nil, nil
		}
		var names []string
		if err := json.Unmarshal([]byte(value), &names); err != nil {
			return nil, err
		}
		var out []netip.Prefix
		for _, n := range names {
			p, err := netip.ParsePrefix(n)
			if err != nil {
				i := slices.IndexFunc(all, func(p calicoPool) bool { return p.Name == n })
				if i < 0 {
					return nil, fmt.Errorf("error parsing pool %q: invalid CIDR address: %s", n, n)
				}
				p = all[i].prefix()
			}
			if p.Addr().Is4() != is4 {
				return nil, fmt.Errorf("%q isn't a IPv%d address", p.Addr(), map[bool]int{true: 4, false: 6}[is4])
			}
			out = append(out, p.Masked())
		}
		return out, nil
	}
	if v4, err = resolve(calicoIPv4Pools, true); err != nil {
		return nil, nil, err
	}
	v6, err = resolve(calicoIPv6Pools, false)
	return v4, v6, err
}

// ipamAdd is one call of calico-ipam: for the address want, or for one of each family.
func (d *calico) ipamAdd(ctx context.Context, req Request, pod *corev1.Pod, network string, want netip.Addr) ([]netip.Addr, error) {
	o := allocation{handle: network + "." + req.ContainerID, host: req.Node, attrs: map[string]string{
		"node": req.Node, "timestamp": time.Now().UTC().String(), "pod": pod.Name, "namespace": pod.Namespace}}
	if d.persistence {
		ips, done, err := d.vmAddresses(ctx, pod, network, &o)
		if err != nil || done {
			return ips, err
		}
	}
	defer d.lock(req.Node)()
	if want.IsValid() {
		return []netip.Addr{want}, d.assign(ctx, want, o)
	}
	all, err := d.pools.list(ctx, "")
	if err != nil {
		return nil, err
	}
	v4, v6, err := d.requestedPools(ctx, pod, all)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	c4, c6 := families(d.cidrs)
	for _, f := range []struct {
		assign    bool
		bits      int
		requested []netip.Prefix
	}{{c4 != nil, 32, v4}, {c6 != nil, 128, v6}} {
		if !f.assign {
			continue
		}
		a, err := d.autoAssign(ctx, f.bits, f.requested, all, pod.Namespace, o)
		if err != nil {
			for _, got := range ips { // one family is of no use without the other
				err = errors.Join(err, d.releaseAddress(ctx, got, ""))
			}
			return nil, err
		}
		ips = append(ips, a)
	}
	return ips, nil
}

func (d *calico) lock(node string) func() {
	m, _ := d.locks.LoadOrStore(node, new(sync.Mutex))
	m.(*sync.Mutex).Lock()
	return m.(*sync.Mutex).Unlock
}

func (d *calico) Del(ctx context.Context, req Request) error {
	pod, err := d.pod(ctx, req)
	if err == nil && pod.Annotations[calicoContainerID] == req.ContainerID && pod.Annotations[calicoPodIP] != "" {
		// The container ID stays, so that a second DEL still knows whose it is.
		if err := d.annotate(ctx, pod, map[string]any{calicoPodIP: "", calicoPodIPs: ""}); err != nil {
			return err
		}
	}
	networks := []string{calicoNetwork}
	if atts, err := d.attachments(ctx, req.Pod); err == nil { // Multus has them from its cache
		for _, a := range atts {
			if a.conf.Type == "calico" {
				networks = append(networks, a.conf.Name)
			}
		}
	}
	for _, n := range networks {
		if err := d.ipamDel(ctx, req, n); err != nil {
			return err
		}
	}
	return nil
}

func (d *calico) ipamDel(ctx context.Context, req Request, network string) error {
	if d.persistence {
		if done, err := d.vmRelease(ctx, req, network); err != nil || done {
			return err
		}
	}
	return d.releaseHandle(ctx, network+"."+req.ContainerID)
}
