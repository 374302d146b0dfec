package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	errOutOfRange = errors.New("AddressOutOfRange")
	errConflict   = errors.New("AddressConflict")
)

// ovnNet is one of a pod's networks.
type ovnNet struct {
	provider string
	subnet   *ovnSubnet
	first    bool   // the primary network, whose static addresses may come from any of the namespace's subnets
	shared   bool   // no conflict check
	ip, mac  string // asked for in the networks annotation
}

// ovnPort is one port's share of the controller's memory: what it has, and whose it is.
type ovnPort struct {
	name, key string // <pod>.<namespace>[.<provider>] and namespace/pod
	v4, v6    netip.Addr
	mac       string
}

func (p *ovnPort) addr(bits int) *netip.Addr {
	if bits == 32 {
		return &p.v4
	}
	return &p.v6
}

// ovnMemory is the controller's view of a subnet, read from IP objects as at its start.
type ovnMemory struct {
	subnet *ovnSubnet
	ports  map[string]*ovnPort
	used   map[netip.Addr]bool // since the start, see kubeOVN.used
}

// memory builds the view of a subnet. Objects without the controller's finalizer were made by somebody
// else and not taken in yet; objects that are being deleted are given back.
func (d *kubeOVN) memory(ctx context.Context, s *ovnSubnet) (*ovnMemory, error) {
	list, err := d.ips.list(ctx, "")
	if err != nil {
		return nil, err
	}
	if d.used[s.Name] == nil {
		d.used[s.Name] = map[netip.Addr]bool{}
	}
	m := &ovnMemory{subnet: s, ports: map[string]*ovnPort{}, used: d.used[s.Name]}
	for _, ip := range list {
		if ip.Spec.Subnet != s.Name || ip.DeletionTimestamp != nil || !slices.Contains(ip.Finalizers, ovnFinalizer) || d.lost[ip.Name] {
			continue
		}
		p := &ovnPort{name: ip.Name, key: ip.Spec.Namespace + "/" + ip.Spec.PodName, mac: ip.Spec.MACAddress}
		p.v4, _ = netip.ParseAddr(ip.Spec.V4IPAddress)
		p.v6, _ = netip.ParseAddr(ip.Spec.V6IPAddress)
		m.ports[p.name] = p
		m.used[p.v4], m.used[p.v6] = true, true
	}
	return m, nil
}

// holders are the ports that have an address.
func (m *ovnMemory) holders(a netip.Addr) []*ovnPort {
	var out []*ovnPort
	for _, p := range m.ports {
		if *p.addr(a.BitLen()) == a {
			out = append(out, p)
		}
	}
	return out
}

// port returns the port's memory, empty for a new one.
func (m *ovnMemory) port(name, key string) *ovnPort {
	if p := m.ports[name]; p != nil {
		return p
	}
	p := &ovnPort{name: name, key: key}
	m.ports[name] = p
	return p
}

// next is the next address that nobody has: ascending, and those that were used once come last.
func (m *ovnMemory) next(p netip.Prefix) (netip.Addr, error) {
	excluded := m.subnet.excluded()
	taken := map[netip.Addr]bool{}
	for _, port := range m.ports {
		taken[port.v4], taken[port.v6] = true, true
	}
	free := func(a netip.Addr) bool { return !taken[a] && !excluded.contains(a) }
	all := spans{hosts(p)}
	if a, ok := all.next(func(a netip.Addr) bool { return free(a) && !m.used[a] }); ok {
		return a, nil
	}
	a, ok := all.next(free)
	if !ok {
		return netip.Addr{}, errNoAvailable
	}
	clear(m.used)
	return a, nil
}

// setMAC gives a port the MAC that was asked for, its own, or a new one.
func (m *ovnMemory) setMAC(p *ovnPort, want *string, check bool) error {
	inUse := func(mac string) bool {
		for _, o := range m.ports {
			if o.key != p.key && o.mac == mac {
				return true
			}
		}
		return false
	}
	switch {
	case want == nil:
		for p.mac == "" || inUse(p.mac) {
			p.mac = randomMAC()
		}
	case *want == "":
		p.mac = ""
	case check && inUse(*want):
		return errConflict
	default:
		p.mac = *want
	}
	return nil
}

// random allocates without a request. A port that has addresses keeps them, and its MAC too, whatever
// MAC is asked for now.
func (m *ovnMemory) random(p *ovnPort, mac *string, check bool) error {
	for _, prefix := range m.subnet.prefixes() {
		if err := m.randomFamily(p, prefix, mac, check); err != nil {
			return err
		}
	}
	return nil
}

func (m *ovnMemory) randomFamily(p *ovnPort, prefix netip.Prefix, mac *string, check bool) error {
	slot := p.addr(prefix.Addr().BitLen())
	if slot.IsValid() && (p.mac != "" || mac != nil && *mac == "") {
		return nil
	}
	a, err := m.next(prefix)
	if err != nil {
		return err
	}
	*slot = a
	return m.setMAC(p, mac, check)
}

// static allocates the addresses asked for, and completes a dual-stack subnet's other family. It gives
// back what the port had before it looks whether the new address can be had.
func (m *ovnMemory) static(p *ovnPort, want []netip.Addr, mac *string, check bool) error {
	for _, a := range want {
		prefix, ok := m.subnet.family(a)
		if !ok {
			return errOutOfRange
		}
		if slot := p.addr(a.BitLen()); slot.IsValid() && *slot != a {
			*slot = netip.Addr{}
			if !p.v4.IsValid() && !p.v6.IsValid() {
				p.mac = "" // the MAC goes with the last address
			}
		}
		if !hosts(prefix).contains(a) {
			return errOutOfRange
		}
		if err := m.setMAC(p, mac, check); err != nil {
			return err
		}
		holders := m.holders(a)
		if check && len(holders) > 0 && !slices.ContainsFunc(holders, func(o *ovnPort) bool { return o.key == p.key }) {
			p.v4, p.v6 = ovnRelease(p, want, a)
			return errConflict
		}
		*p.addr(a.BitLen()) = a
	}
	for _, prefix := range m.subnet.prefixes() {
		if !p.addr(prefix.Addr().BitLen()).IsValid() {
			if err := m.randomFamily(p, prefix, mac, check); err != nil {
				return err
			}
		}
	}
	return nil
}

// ovnRelease is what a port has left after a conflict: nothing, if one of its new addresses had
// been taken already (Kube-OVN 1.14.41).
func ovnRelease(p *ovnPort, want []netip.Addr, conflict netip.Addr) (v4, v6 netip.Addr) {
	if want[0] != conflict {
		return netip.Addr{}, netip.Addr{}
	}
	return p.v4, p.v6
}

// allocate finds a pod's addresses on a network and records them.
func (d *kubeOVN) allocate(ctx context.Context, req Request, pod *corev1.Pod, n ovnNet) (nic, error) {
	name, _ := d.podName(ctx, pod)
	port, key := ovnPortName(name, pod.Namespace, n.provider), pod.Namespace+"/"+name
	event := func(err error) error { return &controllerError{"AcquireAddressFailed", err.Error()} }

	mac, err := ovnMAC(pod, n)
	if err != nil {
		return nic{}, event(err)
	}
	want, pools := n.ip, pod.Annotations[ovnKey(n.provider, "ip_pool")]
	if want == "" {
		want = pod.Annotations[ovnKey(n.provider, "ip_address")]
	}
	subnets := []*ovnSubnet{n.subnet}
	if n.first && want != "" {
		more, err := d.namespaceSubnets(ctx, pod.Namespace)
		if err != nil {
			return nic{}, event(err)
		}
		for _, s := range more {
			if s.Name != n.subnet.Name {
				subnets = append(subnets, s)
			}
		}
	}
	var got *ovnPort
	subnet := n.subnet
	for _, s := range subnets {
		var m *ovnMemory
		if m, err = d.memory(ctx, s); err != nil {
			return nic{}, err
		}
		got, subnet = m.port(port, key), s
		before := *got
		switch {
		case want != "":
			var addrs []netip.Addr
			if addrs, err = parseStatic(want); err == nil {
				err = m.static(got, addrs, mac, !n.shared)
			}
		case pools != "":
			err = m.fromList(got, pools, mac, !n.shared)
		default:
			err = m.random(got, mac, !n.shared)
		}
		if err == nil {
			break
		}
		if before.v4 != got.v4 || before.v6 != got.v6 {
			d.lost[port] = true
		}
	}
	if err != nil {
		return nic{}, event(err)
	}
	out := nic{mac: got.mac, annotations: map[string]string{}}
	for _, a := range []netip.Addr{got.v4, got.v6} {
		if a.IsValid() {
			out.ips = append(out.ips, a)
		}
	}
	if err := validateBroadcast(subnet, out.ips); err != nil {
		return nic{}, &controllerError{"ValidatePodNetworkFailed", err.Error()}
	}
	if err := d.record(ctx, req, pod, name, got, subnet); err != nil {
		return nic{}, fmt.Errorf("failed to create ips CR %s.%s: %w", name, pod.Namespace, err)
	}
	delete(d.lost, port)
	set := func(key, value string) { out.annotations[ovnKey(n.provider, key)] = value }
	set("ip_address", strings.Join(texts(out.ips), ","))
	set("cidr", subnet.Spec.CIDRBlock)
	set("gateway", subnet.Spec.Gateway)
	set("allocated", "true")
	if got.mac != "" {
		set("mac_address", got.mac)
	}
	if name != pod.Name {
		set("virtualmachine", name)
	}
	if subnet.ovn() {
		set("logical_switch", subnet.Name)
		set("logical_router", subnet.Spec.VPC)
		set("pod_nic_type", "veth-pair")
	}
	return out, d.refresh(ctx, subnet.Name)
}

func ovnPortName(pod, namespace, provider string) string {
	if provider == ovnProvider {
		return pod + "." + namespace
	}
	return pod + "." + namespace + "." + provider
}

// ovnMAC is the MAC that a pod asks for on a network: nil for any, "" where OVN does not set it.
func ovnMAC(pod *corev1.Pod, n ovnNet) (*string, error) {
	if !n.subnet.ovn() {
		return new(string), nil
	}
	v := n.mac
	if v == "" {
		v = pod.Annotations[ovnKey(n.provider, "mac_address")]
	}
	if v == "" {
		return nil, nil
	}
	if _, err := net.ParseMAC(v); err != nil {
		return nil, err
	}
	return &v, nil
}

// parseStatic reads ip_address: a comma list without spaces.
func parseStatic(value string) ([]netip.Addr, error) {
	var out []netip.Addr
	for s := range strings.SplitSeq(value, ",") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("failed to parse IP %s", s)
		}
		out = append(out, a)
	}
	return out, nil
}

// fromList takes the first of the listed addresses that nobody else has: "a,b", or "v4,v6;v4,v6".
// Named pools are not modelled.
func (m *ovnMemory) fromList(p *ovnPort, pools string, mac *string, check bool) error {
	sep := ","
	if strings.Contains(pools, ";") {
		sep = ";"
	}
	for item := range strings.SplitSeq(pools, sep) {
		addrs, err := parseStatic(strings.TrimSpace(item))
		if err != nil || slices.ContainsFunc(m.holders(addrs[0]), func(o *ovnPort) bool { return o.key != p.key }) {
			continue
		}
		if m.static(p, addrs, mac, check) == nil {
			return nil
		}
	}
	return errNoAvailable
}

func validateBroadcast(s *ovnSubnet, ips []netip.Addr) error {
	for _, a := range ips {
		p, ok := s.family(a)
		switch {
		case !ok:
		case p.IsSingleIP():
			return fmt.Errorf("subnet %s is configured with /32 or /128 netmask", p)
		case a == lastAddr(p):
			return fmt.Errorf("%s is the broadcast ip in cidr %s", a, p)
		case a == p.Addr():
			return fmt.Errorf("%s is the network number ip in cidr %s", a, p)
		}
	}
	return nil
}

// record writes the IP object, the record that survives.
func (d *kubeOVN) record(ctx context.Context, req Request, pod *corev1.Pod, name string, p *ovnPort, s *ovnSubnet) error {
	spec := ovnIPSpec{PodName: name, Namespace: pod.Namespace, Subnet: s.Name, NodeName: req.Node, MACAddress: p.mac, PodType: podType(pod),
		AttachIPs: []string{}, AttachMACs: []string{}, AttachSubnets: []string{}}
	var all []string
	if p.v4.IsValid() {
		spec.V4IPAddress = p.v4.String()
		all = append(all, spec.V4IPAddress)
	}
	if p.v6.IsValid() {
		spec.V6IPAddress = p.v6.String()
		all = append(all, spec.V6IPAddress)
	}
	spec.IPAddress = strings.Join(all, ",")
	return swap(ctx, func() error {
		ip, err := d.ips.get(ctx, "", p.name)
		if err == nil && ip.DeletionTimestamp != nil {
			if err := d.forget(ctx, ip); err != nil {
				return err
			}
			ip, err = d.ips.get(ctx, "", p.name)
		}
		if apierrors.IsNotFound(err) {
			_, err = d.ips.create(ctx, "", &ovnIP{
				ObjectMeta: metav1.ObjectMeta{Name: p.name, Finalizers: []string{ovnFinalizer}, Labels: map[string]string{
					ovnSubnetLabel: s.Name, ovnNodeLabel: req.Node, s.Name: "", ovnReservedLabel: "false"}},
				Spec: spec,
			})
			return err
		}
		if err != nil {
			return err
		}
		if ip.Labels == nil {
			ip.Labels = map[string]string{}
		}
		ip.Labels[ovnSubnetLabel], ip.Labels[ovnNodeLabel], ip.Labels[s.Name] = s.Name, req.Node, ""
		if !slices.Contains(ip.Finalizers, ovnFinalizer) {
			ip.Finalizers = append(ip.Finalizers, ovnFinalizer)
		}
		ip.Spec = spec
		_, err = d.ips.update(ctx, "", ip)
		return err
	})
}

// forget lets a record go.
func (d *kubeOVN) forget(ctx context.Context, ip *ovnIP) error {
	if ip.DeletionTimestamp == nil {
		if err := d.ips.delete(ctx, "", ip.Name); err != nil {
			return err
		}
	}
	if err := swap(ctx, func() error {
		ip, err := d.ips.get(ctx, "", ip.Name)
		if err != nil {
			return ignoreNotFound(err)
		}
		if ip.DeletionTimestamp == nil {
			return nil
		}
		ip.Finalizers = slices.DeleteFunc(ip.Finalizers, func(f string) bool { return f == ovnFinalizer })
		_, err = d.ips.update(ctx, "", ip)
		return ignoreNotFound(err)
	}); err != nil {
		return err
	}
	delete(d.lost, ip.Name)
	return d.refresh(ctx, ip.Spec.Subnet)
}

// refresh writes what a subnet's status counts.
func (d *kubeOVN) refresh(ctx context.Context, name string) error {
	return swap(ctx, func() error {
		s, err := d.subnets.get(ctx, "", name)
		if err != nil {
			return ignoreNotFound(err)
		}
		m, err := d.memory(ctx, s)
		if err != nil {
			return err
		}
		status := map[string]any{"v4availableIPs": 0.0, "v4usingIPs": 0.0, "v6availableIPs": 0.0, "v6usingIPs": 0.0,
			"v4usingIPrange": "", "v6usingIPrange": "", "v4availableIPrange": "", "v6availableIPrange": ""}
		for _, p := range s.prefixes() {
			bits, excluded := p.Addr().BitLen(), s.excluded()
			var using []netip.Addr
			for _, port := range m.ports {
				if a := *port.addr(bits); a.IsValid() && !excluded.contains(a) && !slices.Contains(using, a) {
					using = append(using, a)
				}
			}
			ranges := joinSpans(using)
			taken := slices.Clone(ranges)
			for _, e := range excluded {
				if e.first.BitLen() == bits {
					taken = append(taken, e)
				}
			}
			free := spans{hosts(p)}.without(taken)
			f := map[int]string{32: "v4", 128: "v6"}[bits]
			status[f+"usingIPs"], status[f+"availableIPs"] = float64(len(using)), free.size()
			status[f+"usingIPrange"], status[f+"availableIPrange"] = join(ranges, ","), join(free, ",")
		}
		return ignoreNotFound(d.subnets.patch(ctx, "", name, map[string]any{"status": status}, "status"))
	})
}
