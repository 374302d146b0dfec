package cni

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

const (
	spiderVersion    = "v1.2.2"
	spiderGroup      = "spiderpool.spidernet.io"
	spiderFinalizer  = spiderGroup
	spiderDefaultNAD = "macvlan-default"

	spiderPoolAnnotation  = "ipam.spidernet.io/ippool"
	spiderPoolsAnnotation = "ipam.spidernet.io/ippools"
	spiderCIDRLabel       = "ipam.spidernet.io/ippool-cidr"
)

// spiderpool is Spiderpool as IPAM of a macvlan default network, with Multus from its own chart. A VM's
// addresses are in a SpiderEndpoint that is called as the VM (Spiderpool docs, kubevirt).
type spiderpool struct {
	multus
	cidrs   []netip.Prefix
	gcAfter time.Duration

	pools     table[spiderPool]
	endpoints table[spiderEndpoint]
	reserved  table[spiderReservedIP]
}

func newSpiderpool(o Options) (Driver, error) {
	k, err := newKube(o.Config)
	if err != nil {
		return nil, err
	}
	r := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: spiderGroup, Version: "v2beta1", Resource: resource}
	}
	d := &spiderpool{
		multus: newMultus(k), cidrs: o.PodCIDRs, gcAfter: o.GCAfter,
		pools:     newTable[spiderPool](k, r("spiderippools"), "SpiderIPPool"),
		endpoints: newTable[spiderEndpoint](k, r("spiderendpoints"), "SpiderEndpoint"),
		reserved:  newTable[spiderReservedIP](k, r("spiderreservedips"), "SpiderReservedIP"),
	}
	if d.gcAfter == 0 {
		d.gcAfter = 600 * time.Second // gc.gcAll.intervalInSecond
	}
	return d, nil
}

func (d *spiderpool) Name() string { return "spiderpool" }

type spiderPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              spiderPoolSpec `json:"spec"`
	Status            struct {
		AllocatedIPs     *string `json:"allocatedIPs,omitempty"`
		AllocatedIPCount *int64  `json:"allocatedIPCount,omitempty"`
		TotalIPCount     *int64  `json:"totalIPCount,omitempty"`
	} `json:"status,omitzero"`
}

type spiderPoolSpec struct {
	IPVersion         *int64                `json:"ipVersion,omitempty"`
	Subnet            string                `json:"subnet"`
	IPs               []string              `json:"ips,omitempty"`
	ExcludeIPs        []string              `json:"excludeIPs,omitempty"`
	Gateway           *string               `json:"gateway,omitempty"`
	Default           *bool                 `json:"default,omitempty"`
	Disable           *bool                 `json:"disable,omitempty"`
	NodeName          []string              `json:"nodeName,omitempty"`
	NodeAffinity      *metav1.LabelSelector `json:"nodeAffinity,omitempty"`
	NamespaceName     []string              `json:"namespaceName,omitempty"`
	NamespaceAffinity *metav1.LabelSelector `json:"namespaceAffinity,omitempty"`
	PodAffinity       *metav1.LabelSelector `json:"podAffinity,omitempty"`
	MultusName        []string              `json:"multusName,omitempty"`
}

// ranges are the pool's addresses, in the order of its spec.
func (p *spiderPool) ranges() spans {
	return parseRanges(p.Spec.IPs).without(parseRanges(p.Spec.ExcludeIPs))
}

func parseRanges(list []string) spans {
	var out spans
	for _, s := range list {
		if r, err := parseSpan(s, "-"); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// spiderRecord is a pool's record of an address. pod is namespace/name, of the VM for a launcher.
type spiderRecord struct {
	Pod    string `json:"pod"`
	PodUID string `json:"podUid"`
}

func (p *spiderPool) records() (map[string]spiderRecord, error) {
	out := map[string]spiderRecord{}
	if p.Status.AllocatedIPs == nil {
		return out, nil
	}
	return out, json.Unmarshal([]byte(*p.Status.AllocatedIPs), &out)
}

func (p *spiderPool) setRecords(r map[string]spiderRecord) error {
	p.Status.AllocatedIPs, p.Status.AllocatedIPCount = nil, new(int64(len(r)))
	if len(r) == 0 {
		return nil
	}
	b, err := json.Marshal(r)
	text := string(b)
	p.Status.AllocatedIPs = &text
	return err
}

type spiderEndpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Current struct {
			UID  string     `json:"uid"`
			Node string     `json:"node"`
			IPs  []spiderIP `json:"ips"`
		} `json:"current"`
		OwnerControllerType string `json:"ownerControllerType"`
		OwnerControllerName string `json:"ownerControllerName"`
	} `json:"status"`
}

// spiderIP is an endpoint's record of one interface.
type spiderIP struct {
	Interface    string  `json:"interface"`
	IPv4         *string `json:"ipv4,omitempty"`
	IPv4Pool     *string `json:"ipv4Pool,omitempty"`
	IPv4Gateway  *string `json:"ipv4Gateway,omitempty"`
	IPv6         *string `json:"ipv6,omitempty"`
	IPv6Pool     *string `json:"ipv6Pool,omitempty"`
	IPv6Gateway  *string `json:"ipv6Gateway,omitempty"`
	VLAN         *int64  `json:"vlan,omitempty"`
	CleanGateway *bool   `json:"cleanGateway,omitempty"`
}

// addrs are the interface's addresses with the pools they are from.
func (i *spiderIP) addrs() (addrs []netip.Addr, pools []string) {
	for _, f := range []struct{ cidr, pool *string }{{i.IPv4, i.IPv4Pool}, {i.IPv6, i.IPv6Pool}} {
		if f.cidr == nil {
			continue
		}
		if p, err := netip.ParsePrefix(*f.cidr); err == nil && f.pool != nil {
			addrs, pools = append(addrs, p.Addr()), append(pools, *f.pool)
		}
	}
	return addrs, pools
}

type spiderReservedIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		IPVersion *int64   `json:"ipVersion,omitempty"`
		IPs       []string `json:"ips,omitempty"`
	} `json:"spec"`
}

func (d *spiderpool) definitions() []crd {
	version := integer
	version.Enum = []apiext.JSON{{Raw: []byte("4")}, {Raw: []byte("6")}}
	selector := anything
	ip := props{"interface": text, "ipv4": text, "ipv4Pool": text, "ipv4Gateway": text, "ipv6": text, "ipv6Pool": text, "ipv6Gateway": text,
		"vlan": withDefault(integer, "0"), "cleanGateway": boolean, "mac": text, "routes": listOf(object(props{"dst": text, "gw": text}, "dst", "gw"))}
	def := func(kind, plural, short string, namespaced, status bool, fields props, columns ...apiext.CustomResourceColumnDefinition) crd {
		return crd{group: spiderGroup, version: "v2beta1", kind: kind, plural: plural, short: []string{short}, category: "spiderpool",
			namespaced: namespaced, status: status, fields: fields, columns: columns}
	}
	return []crd{
		def("SpiderIPPool", "spiderippools", "sp", false, true, props{
			"spec": object(props{
				"ipVersion": version, "subnet": text, "ips": listOf(text), "excludeIPs": listOf(text), "gateway": text,
				"default": withDefault(boolean, "false"), "disable": withDefault(boolean, "false"), "nodeName": listOf(text), "nodeAffinity": selector,
				"namespaceName": listOf(text), "namespaceAffinity": selector, "podAffinity": selector, "multusName": listOf(text),
				"routes": listOf(object(props{"dst": text, "gw": text}, "dst", "gw"))}, "subnet"),
			"status": object(props{"allocatedIPs": text, "allocatedIPCount": integer, "totalIPCount": integer})},
			column("VERSION", "string", ".spec.ipVersion"), column("SUBNET", "string", ".spec.subnet"),
			column("ALLOCATED-IP-COUNT", "integer", ".status.allocatedIPCount"), column("TOTAL-IP-COUNT", "integer", ".status.totalIPCount"),
			column("DEFAULT", "boolean", ".spec.default")),
		def("SpiderEndpoint", "spiderendpoints", "se", true, false, props{
			"status": object(props{
				"current":             object(props{"uid": text, "node": text, "ips": listOf(object(ip, "interface"))}, "ips", "node", "uid"),
				"ownerControllerType": text, "ownerControllerName": text}, "current", "ownerControllerName", "ownerControllerType")},
			column("INTERFACE", "string", ".status.current.ips[0].interface"), column("IPV4POOL", "string", ".status.current.ips[0].ipv4Pool"),
			column("IPV4", "string", ".status.current.ips[0].ipv4"), column("IPV6POOL", "string", ".status.current.ips[0].ipv6Pool"),
			column("IPV6", "string", ".status.current.ips[0].ipv6"), column("NODE", "string", ".status.current.node")),
		def("SpiderReservedIP", "spiderreservedips", "sr", false, false, props{"spec": object(props{"ipVersion": version, "ips": listOf(text)})},
			column("VERSION", "string", ".spec.ipVersion")),
		def("SpiderSubnet", "spidersubnets", "ss", false, true, props{"spec": anything, "status": anything}),
		def("SpiderCoordinator", "spidercoordinators", "scc", false, true, props{"spec": anything, "status": anything}),
		def("SpiderMultusConfig", "spidermultusconfigs", "smc", true, false, props{"spec": anything}),
	}
}

// spiderConfig is what is read of spiderpool-conf's conf.yml. The agent reads it at its start; here a
// change counts at once.
type spiderConfig struct {
	EnableIPv4             bool `json:"enableIPv4"`
	EnableIPv6             bool `json:"enableIPv6"`
	EnableKubevirtStaticIP bool `json:"enableKubevirtStaticIP"`
}

func (d *spiderpool) config(ctx context.Context) (spiderConfig, error) {
	var c spiderConfig
	m, err := d.core.CoreV1().ConfigMaps(kubeSystem).Get(ctx, "spiderpool-conf", metav1.GetOptions{})
	if err != nil {
		return c, err
	}
	return c, yaml.Unmarshal([]byte(m.Data["conf.yml"]), &c)
}

func (d *spiderpool) Install(ctx context.Context) error {
	if err := d.install(ctx, false); err != nil {
		return err
	}
	if err := d.ensureCRDs(ctx, d.definitions()...); err != nil {
		return err
	}
	v4, v6 := families(d.cidrs)
	conf, err := yaml.Marshal(map[string]any{
		"ipamUnixSocketPath": "/var/run/spidernet/spiderpool.sock", "enableIPv4": v4 != nil, "enableIPv6": v6 != nil, "enableStatefulSet": true,
		"enableKubevirtStaticIP": true, "enableCleanOutdatedEndpoint": false, "enableSpiderSubnet": false, "enableAutoPoolForApplication": false,
		"enableIPConflictDetection": false, "enableGatewayDetection": false, "enableValidatingResourcesDeletedWebhook": false,
	})
	if err != nil {
		return err
	}
	if err := d.ensureConfigMap(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubeSystem, Name: "spiderpool-conf", Labels: spiderLabels("spiderpool-controller")},
		Data:       map[string]string{"clusterNetwork": spiderDefaultNAD, "conf.yml": string(conf)},
	}); err != nil {
		return err
	}
	for _, w := range []workload{
		{name: "spiderpool-agent", image: "ghcr.io/spidernet-io/spiderpool/spiderpool-agent:" + spiderVersion, command: []string{"/usr/bin/spiderpool-agent"},
			args: []string{"daemon", "--config-path=/tmp/spiderpool/config-map/conf.yml"}, env: map[string]string{"MULTUS_CLUSTER_NETWORK": kubeSystem + "/" + spiderDefaultNAD}},
		{name: "spiderpool-multus", image: "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.1.4"},
	} {
		w.namespace, w.container, w.labels = kubeSystem, w.name, spiderLabels(w.name)
		if err := d.ensureDaemonSet(ctx, w); err != nil {
			return err
		}
	}
	if err := d.ensureDeployment(ctx, workload{
		namespace: kubeSystem, name: "spiderpool-controller", container: "spiderpool-controller", labels: spiderLabels("spiderpool-controller"),
		image:   "ghcr.io/spidernet-io/spiderpool/spiderpool-controller:" + spiderVersion,
		command: []string{"/usr/bin/spiderpool-controller"}, args: []string{"daemon", "--config-path=/tmp/spiderpool/config-map/conf.yml"},
	}); err != nil {
		return err
	}
	coordinators := newTable[settings](d.kube, schema.GroupVersionResource{Group: spiderGroup, Version: "v2beta1", Resource: "spidercoordinators"}, "SpiderCoordinator")
	if err := coordinators.ensure(ctx, "", &settings{ObjectMeta: metav1.ObjectMeta{Name: "default", Finalizers: []string{spiderFinalizer}},
		Spec: map[string]any{"mode": "auto", "podCIDRType": "auto", "detectGateway": false, "detectIPConflict": false, "tunePodRoutes": true}}); err != nil {
		return err
	}
	nad := &netAttachDef{ObjectMeta: metav1.ObjectMeta{Namespace: kubeSystem, Name: spiderDefaultNAD}}
	nad.Spec.Config = `{"cniVersion":"0.3.1","name":"` + spiderDefaultNAD + `","plugins":[{"type":"macvlan","master":"eth0","mode":"bridge","ipam":{"type":"spiderpool"}},{"type":"coordinator"}]}`
	if err := d.nads.ensure(ctx, kubeSystem, nad); err != nil {
		return err
	}
	for _, p := range d.cidrs {
		if err := d.pools.ensure(ctx, "", defaultSpiderPool(p)); err != nil {
			return err
		}
	}
	return nil
}

func spiderLabels(component string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "spiderpool", "app.kubernetes.io/instance": "spiderpool", "app.kubernetes.io/component": component}
}

// defaultSpiderPool is the cluster's default pool: the upper half of a subnet, as an administrator leaves
// room for pools of single addresses. Two pools of a subnet must not overlap.
func defaultSpiderPool(p netip.Prefix) *spiderPool {
	h := hosts(p)
	if half, err := advanceHalf(p); err == nil {
		h.first = half
	}
	if h.first.Is6() { // a pool keeps no more records than 5000, a /64 is no use to it
		if end := advance(h.first, big.NewInt(4095)); end.Less(h.last) {
			h.last = end
		}
	}
	pool := &spiderPool{ObjectMeta: metav1.ObjectMeta{Name: "default-v4-ippool"}}
	version := int64(4)
	if p.Addr().Is6() {
		pool.Name, version = "default-v6-ippool", 6
	}
	pool.Spec = spiderPoolSpec{IPVersion: &version, Subnet: p.Masked().String(), IPs: []string{h.String()}, Gateway: new(gateway(p).String()), Default: new(true), Disable: new(false)}
	pool.Labels, pool.Finalizers = map[string]string{spiderCIDRLabel: cidrName(p.Masked())}, []string{spiderFinalizer}
	return pool
}

// advanceHalf is the first address of a prefix's upper half.
func advanceHalf(p netip.Prefix) (netip.Addr, error) {
	if p.Addr().BitLen()-p.Bits() < 3 {
		return netip.Addr{}, errors.New("too small to halve")
	}
	n := count(p)
	return advance(p.Masked().Addr(), n.Rsh(n, 1)), nil
}

func (d *spiderpool) Add(ctx context.Context, req Request) (Result, error) { return d.add(ctx, req, d) }

func (d *spiderpool) delegate() (string, string) {
	return "macvlan", kubeSystem + "/" + spiderDefaultNAD
}

func (d *spiderpool) primary(ctx context.Context, req Request, pod *corev1.Pod) (nic, error) {
	return d.link(ctx, req, pod, spiderNIC{name: "eth0"})
}

func (d *spiderpool) secondary(ctx context.Context, req Request, pod *corev1.Pod, a attachment) (nic, bool, error) {
	if a.conf.IPAM.Type != "spiderpool" {
		return nic{}, false, nil
	}
	n, err := d.link(ctx, req, pod, spiderNIC{name: a.Interface, v4: a.conf.IPAM.IPv4Pools, v6: a.conf.IPAM.IPv6Pools})
	if a.MAC != "" {
		n.mac = a.MAC
	}
	return n, true, err
}
