package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// spiderNIC is an interface with the pools that its network's configuration names.
type spiderNIC struct {
	name   string
	v4, v6 []string
}

func (d *spiderpool) link(ctx context.Context, req Request, pod *corev1.Pod, n spiderNIC) (nic, error) {
	ips, err := d.allocate(ctx, req, pod, n)
	if err != nil {
		return nic{}, fmt.Errorf("spiderpool IP allocation error: [POST /ipam/ip][500] postIpamIpFailure  %w", err)
	}
	for i := range ips {
		if ips[i].Interface == n.name {
			addrs, _ := ips[i].addrs()
			return nic{ips: addrs, mac: randomMAC()}, nil
		}
	}
	return nic{}, fmt.Errorf("spiderpool IP allocation error: no Interface %s IP allocation found", n.name)
}

// spiderOwner is whose a pod's addresses are.
type spiderOwner struct {
	kind, name string
	vm         bool // kept by name, across pods
}

// ownerOf goes by the pod's controller reference alone.
func ownerOf(pod *corev1.Pod, c spiderConfig) spiderOwner {
	if ref := metav1.GetControllerOf(pod); ref != nil {
		return spiderOwner{ref.Kind, ref.Name, c.EnableKubevirtStaticIP && ref.APIVersion == "kubevirt.io/v1" && ref.Kind == "VirtualMachineInstance"}
	}
	return spiderOwner{kind: "Pod", name: pod.Name}
}

func (o spiderOwner) endpoint(pod *corev1.Pod) string {
	if o.vm {
		return o.name
	}
	return pod.Name
}

// allocate is the agent's part of ADD: the recorded addresses, or new ones.
func (d *spiderpool) allocate(ctx context.Context, req Request, pod *corev1.Pod, n spiderNIC) ([]spiderIP, error) {
	if !podmanagerAlive(pod) {
		return nil, fmt.Errorf("dead Pod %s/%s, we cannot allocate IP addresees to it", pod.Namespace, pod.Name)
	}
	conf, err := d.config(ctx)
	if err != nil {
		return nil, err
	}
	o := ownerOf(pod, conf)
	ep, err := d.endpoints.get(ctx, pod.Namespace, o.endpoint(pod))
	if apierrors.IsNotFound(err) {
		ep, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get Endpoint %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if ep != nil && !o.vm && ep.Status.Current.UID != string(pod.UID) { // an older pod of that name
		if err := d.dropEndpoint(ctx, ep); err != nil {
			return nil, fmt.Errorf("failed to retrieve the existing IP allocation: %w", err)
		}
		ep = nil
	}
	// A VM's record comes first, whatever the pod asks for: changing its pools moves nothing.
	if ep != nil && (o.vm || ep.Status.Current.UID == string(pod.UID)) &&
		slices.ContainsFunc(ep.Status.Current.IPs, func(i spiderIP) bool { return i.Interface == n.name || i.Interface == "" }) {
		if o.vm {
			if err := d.takeOver(ctx, pod, ep); err != nil {
				return nil, fmt.Errorf("failed to retrieve the IP allocation of %s/%s/%s: failed to reallocate IPPool IP records, error: %w", o.kind, pod.Namespace, o.name, err)
			}
		}
		ep.Status.Current.UID, ep.Status.Current.Node = string(pod.UID), req.Node
		nameNIC(ep.Status.Current.IPs, n.name)
		if ep, err = d.endpoints.update(ctx, ep.Namespace, ep); err != nil {
			return nil, fmt.Errorf("failed to refresh the current IP allocation of %s: %w", o.kind, err)
		}
		return ep.Status.Current.IPs, nil
	}
	ips, err := d.standard(ctx, pod, n, conf, o, ep)
	if err != nil {
		return nil, fmt.Errorf("failed to allocate IP addresses in standard mode: %w", err)
	}
	return ips, nil
}

// nameNIC gives an interface that was allocated for without a name its name (ippools without interface).
func nameNIC(ips []spiderIP, name string) {
	for i := range ips {
		switch ips[i].Interface {
		case name:
			return
		case "":
			ips[i].Interface = name
			return
		}
	}
}

// takeOver puts the new pod into the pools' records in place of the VM's last one. It happens at a migration
// target's ADD, long before the migration has succeeded.
func (d *spiderpool) takeOver(ctx context.Context, pod *corev1.Pod, ep *spiderEndpoint) error {
	key := ep.Namespace + "/" + ep.Name
	for i := range ep.Status.Current.IPs {
		addrs, pools := ep.Status.Current.IPs[i].addrs()
		for j, a := range addrs {
			if err := d.changePool(ctx, pools[j], func(p *spiderPool, r map[string]spiderRecord) (bool, error) {
				rec, ok := r[a.String()]
				if !ok || rec.Pod == key && rec.PodUID == string(pod.UID) {
					return false, nil
				}
				if rec.Pod != key {
					return false, fmt.Errorf("failed to update allocated IP because of data broken: IPPool %s IP %s allocation detail %v mistach namespacedName %s", p.Name, a, rec, key)
				}
				r[a.String()] = spiderRecord{key, string(pod.UID)}
				return true, nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// changePool changes a pool's records by compare and swap.
func (d *spiderpool) changePool(ctx context.Context, name string, f func(*spiderPool, map[string]spiderRecord) (bool, error)) error {
	return swap(ctx, func() error {
		p, err := d.pools.get(ctx, "", name)
		if err != nil {
			return err
		}
		r, err := p.records()
		if err != nil {
			return err
		}
		if changed, err := f(p, r); err != nil || !changed {
			return err
		}
		if err := p.setRecords(r); err != nil {
			return err
		}
		_, err = d.pools.updateStatus(ctx, "", p)
		return err
	})
}

// spiderCandidate is a NIC with the pools to try, for each family.
type spiderCandidate struct {
	nic    string
	v4, v6 []string
}

// noName says that the pools are listed by position, because KubeVirt hashes the interfaces' names.
func noName(pod *corev1.Pod) bool {
	var items []spiderPoolsItem
	return json.Unmarshal([]byte(pod.Annotations[spiderPoolsAnnotation]), &items) == nil &&
		slices.ContainsFunc(items, func(i spiderPoolsItem) bool { return i.Interface == "" })
}

type spiderPoolsItem struct {
	Interface string   `json:"interface,omitempty"`
	IPv4      []string `json:"ipv4,omitempty"`
	IPv6      []string `json:"ipv6,omitempty"`
}

var errWrongInput = errors.New("wrong input")

// candidates chooses pools: the pod's ippools, its ippool, the namespace's, the network's, the default ones.
func (d *spiderpool) candidates(ctx context.Context, pod *corev1.Pod, n spiderNIC) ([]spiderCandidate, error) {
	if v, ok := pod.Annotations[spiderPoolsAnnotation]; ok {
		prefix := fmt.Errorf("%w, invalid format of Pod annotation '%s'", errWrongInput, spiderPoolsAnnotation)
		var items []spiderPoolsItem
		if err := json.Unmarshal([]byte(v), &items); err != nil {
			return nil, fmt.Errorf("%w: %w", prefix, err)
		}
		if err := checkItems(items, n.name); err != nil {
			return nil, fmt.Errorf("%w: %w", prefix, err)
		}
		var out []spiderCandidate
		for _, i := range items {
			out = append(out, spiderCandidate{i.Interface, i.IPv4, i.IPv6})
		}
		return out, nil
	}
	if v, ok := pod.Annotations[spiderPoolAnnotation]; ok {
		var item spiderPoolsItem
		if err := json.Unmarshal([]byte(v), &item); err != nil {
			return nil, fmt.Errorf("%w, invalid format of Pod annotation '%s': %w", errWrongInput, spiderPoolAnnotation, err)
		}
		return []spiderCandidate{{n.name, item.IPv4, item.IPv6}}, nil
	}
	ns, err := d.core.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := spiderCandidate{nic: n.name}
	for key, to := range map[string]*[]string{"ipam.spidernet.io/default-ipv4-ippool": &c.v4, "ipam.spidernet.io/default-ipv6-ippool": &c.v6} {
		if v := ns.Annotations[key]; v != "" {
			if err := json.Unmarshal([]byte(v), to); err != nil {
				return nil, err
			}
		}
	}
	if len(c.v4)+len(c.v6) > 0 {
		return []spiderCandidate{c}, nil
	}
	if len(n.v4)+len(n.v6) > 0 {
		return []spiderCandidate{{n.name, n.v4, n.v6}}, nil
	}
	pools, err := d.pools.list(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		if p.Spec.Default == nil || !*p.Spec.Default || p.Spec.IPVersion == nil {
			continue
		}
		if *p.Spec.IPVersion == 4 {
			c.v4 = append(c.v4, p.Name)
		} else {
			c.v6 = append(c.v6, p.Name)
		}
	}
	if len(c.v4)+len(c.v6) == 0 {
		return nil, errors.New("no IPPool available, no pool selection rules of any type are specified")
	}
	return []spiderCandidate{c}, nil
}

// checkItems validates ippools, and gives items without an interface their position as a name.
func checkItems(items []spiderPoolsItem, current string) error {
	if len(items) == 0 {
		return errors.New("value requires at least one item")
	}
	named, seen := items[0].Interface != "", map[string]bool{}
	for i := range items {
		if (items[i].Interface != "") != named {
			return errors.New("NIC should be either all specified or all unspecified")
		}
		if !named {
			items[i].Interface = strconv.Itoa(i)
		}
		if seen[items[i].Interface] {
			return fmt.Errorf("duplicate interface %s", items[i].Interface)
		}
		seen[items[i].Interface] = true
	}
	if named && !seen[current] {
		return fmt.Errorf("interface %s must be specified", current)
	}
	return nil
}

// expand replaces wildcards by the names of the pools that match.
func expand(names []string, pools []spiderPool, version int64) []string {
	var out []string
	for _, n := range names {
		if !strings.ContainsAny(n, "*?[") {
			out = append(out, n)
			continue
		}
		for _, p := range pools {
			if ok, err := filepath.Match(n, p.Name); err == nil && ok && p.Spec.IPVersion != nil && *p.Spec.IPVersion == version {
				out = append(out, p.Name)
			}
		}
	}
	return out
}

// standard allocates from pools and writes the endpoint.
func (d *spiderpool) standard(ctx context.Context, pod *corev1.Pod, n spiderNIC, conf spiderConfig, o spiderOwner, ep *spiderEndpoint) ([]spiderIP, error) {
	if ep != nil && ep.Status.Current.UID != string(pod.UID) {
		ep = nil // outdated: the record below will then collide with it
	}
	cands, err := d.candidates(ctx, pod, n)
	if err != nil {
		return nil, err
	}
	all, err := d.pools.list(ctx, "")
	if err != nil {
		return nil, err
	}
	byName := map[string]*spiderPool{}
	for i := range all {
		byName[all[i].Name] = &all[i]
	}
	for i := range cands {
		c := &cands[i]
		for _, f := range []struct {
			pools   *[]string
			version int64
			enabled bool
		}{{&c.v4, 4, conf.EnableIPv4}, {&c.v6, 6, conf.EnableIPv6}} {
			if !f.enabled {
				*f.pools = nil
				continue
			}
			*f.pools = expand(*f.pools, all, f.version)
			if err := d.filter(ctx, pod, c.nic, f.pools, f.version, byName); err != nil {
				return nil, err
			}
		}
	}
	var ips []spiderIP
	for _, c := range cands {
		ip := spiderIP{Interface: c.nic, VLAN: new(int64(0))}
		for _, f := range []struct {
			version              int64
			pools                []string
			addr, pool, nextHops **string
		}{{4, c.v4, &ip.IPv4, &ip.IPv4Pool, &ip.IPv4Gateway}, {6, c.v6, &ip.IPv6, &ip.IPv6Pool, &ip.IPv6Gateway}} {
			if len(f.pools) == 0 {
				continue
			}
			p, a, err := d.fromPools(ctx, pod, o, c.nic, f.version, f.pools)
			if err != nil {
				return nil, err
			}
			subnet, err := netip.ParsePrefix(p.Spec.Subnet)
			if err != nil {
				return nil, err
			}
			cidr := netip.PrefixFrom(a, subnet.Bits()).String()
			*f.addr, *f.pool = &cidr, &p.Name
			if *f.nextHops = p.Spec.Gateway; p.Spec.Gateway != nil {
				ip.CleanGateway = new(false)
			}
		}
		ips = append(ips, ip)
	}
	recorded := slices.Clone(ips)
	if noName(pod) { // the first is eth0, the others get their names when their turn comes
		for i := range recorded {
			recorded[i].Interface = map[bool]string{true: "eth0"}[i == 0]
		}
		ips[0].Interface = "eth0"
	}
	if ep == nil {
		ep = &spiderEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: o.endpoint(pod), Finalizers: []string{spiderFinalizer}}}
		ep.Status.Current.UID, ep.Status.Current.Node, ep.Status.Current.IPs = string(pod.UID), pod.Spec.NodeName, recorded
		ep.Status.OwnerControllerType, ep.Status.OwnerControllerName = o.kind, o.name
		if !o.vm { // a VM's endpoint has no owner, so that it outlives the pod
			ep.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}
		}
		_, err = d.endpoints.create(ctx, pod.Namespace, ep)
	} else {
		for _, r := range recorded {
			if !slices.ContainsFunc(ep.Status.Current.IPs, func(i spiderIP) bool { return i.Interface == r.Interface }) {
				ep.Status.Current.IPs = append(ep.Status.Current.IPs, r)
			}
		}
		_, err = d.endpoints.update(ctx, pod.Namespace, ep)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to patch IP allocation results to Endpoint: %w", err)
	}
	return ips, nil
}

// filter removes the pools that the pod may not use; none left is an error.
func (d *spiderpool) filter(ctx context.Context, pod *corev1.Pod, nicName string, pools *[]string, version int64, byName map[string]*spiderPool) error {
	if len(*pools) == 0 {
		return nil
	}
	for i, name := range *pools {
		if slices.Contains((*pools)[:i], name) {
			return fmt.Errorf("%w, duplicate IPPool %s specified for NIC %s", errWrongInput, name, nicName)
		}
		if byName[name] == nil {
			_, err := d.pools.get(ctx, "", name)
			return fmt.Errorf("failed to get original IPPool %s: %w", name, err)
		}
	}
	var left []string
	var reasons []string
	for _, name := range *pools {
		if err := d.selects(ctx, pod, nicName, byName[name], version); err != nil {
			reasons = append(reasons, err.Error())
		} else {
			left = append(left, name)
		}
	}
	if len(left) == 0 {
		return fmt.Errorf("no IPPool available, all IPv%d IPPools %v of %s filtered out: %s", version, *pools, nicName, aggregate(reasons))
	}
	*pools = left
	return nil
}

// aggregate is how Kubernetes prints several errors.
func aggregate(list []string) string {
	if len(list) == 1 {
		return list[0]
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// selects says why a pool is not for a pod.
func (d *spiderpool) selects(ctx context.Context, pod *corev1.Pod, nicName string, p *spiderPool, version int64) error {
	matches := func(s *metav1.LabelSelector, l map[string]string) bool {
		sel, err := metav1.LabelSelectorAsSelector(s)
		return err == nil && sel.Matches(labels.Set(l))
	}
	switch {
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("terminating IPPool %s", p.Name)
	case p.Spec.Disable != nil && *p.Spec.Disable:
		return fmt.Errorf("disabled IPPool %s", p.Name)
	case p.Spec.IPVersion == nil:
		return errors.New("nil ippool ipVersion")
	case *p.Spec.IPVersion != version:
		return fmt.Errorf("expect an IPv%d IPPool, but the version of the IPPool %s is IPv%d", version, p.Name, *p.Spec.IPVersion)
	}
	if len(p.Spec.NodeName) > 0 {
		if !slices.Contains(p.Spec.NodeName, pod.Spec.NodeName) {
			return fmt.Errorf("unmatched Node name of IPPool %s", p.Name)
		}
	} else if p.Spec.NodeAffinity != nil {
		node, err := d.core.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !matches(p.Spec.NodeAffinity, node.Labels) {
			return fmt.Errorf("unmatched Node affinity of IPPool %s", p.Name)
		}
	}
	if len(p.Spec.NamespaceName) > 0 {
		if !slices.Contains(p.Spec.NamespaceName, pod.Namespace) {
			return fmt.Errorf("unmatched Namespace name of IPPool %s", p.Name)
		}
	} else if p.Spec.NamespaceAffinity != nil {
		ns, err := d.core.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !matches(p.Spec.NamespaceAffinity, ns.Labels) {
			return fmt.Errorf("unmatched Namespace affinity of IPPool %s", p.Name)
		}
	}
	if p.Spec.PodAffinity != nil && !matches(p.Spec.PodAffinity, pod.Labels) {
		return fmt.Errorf("unmatched Pod affinity of IPPool %s", p.Name)
	}
	if len(p.Spec.MultusName) == 0 {
		return nil
	}
	network := networkOf(pod, nicName)
	if !slices.ContainsFunc(p.Spec.MultusName, func(m string) bool {
		if !strings.Contains(m, "/") {
			m = kubeSystem + "/" + m
		}
		return m == network
	}) {
		return fmt.Errorf("the spec.multusName %v in the IPPool %v used by the Pod interface %v is not matched with the multusCR %v specified by the Pod", p.Spec.MultusName, p.Name, nicName, network)
	}
	return nil
}

// networkOf is the NetworkAttachmentDefinition of an interface, which may be named or counted.
func networkOf(pod *corev1.Pod, nicName string) string {
	if nicName == "eth0" || nicName == "0" {
		if v := pod.Annotations[defaultNetworkAnnotation]; v != "" {
			if s, err := parseSelections(v, kubeSystem); err == nil && len(s) > 0 {
				return s[0].Namespace + "/" + s[0].Name
			}
		}
		return kubeSystem + "/" + spiderDefaultNAD
	}
	list, _ := parseSelections(pod.Annotations[networksAnnotation], pod.Namespace)
	for i, s := range list {
		if s.Interface == nicName || strconv.Itoa(i+1) == nicName {
			return s.Namespace + "/" + s.Name
		}
	}
	return pod.Namespace + "/"
}

var errUsedOut = errors.New("all IP addresses used out")

// fromPools takes an address from the first pool that has one.
func (d *spiderpool) fromPools(ctx context.Context, pod *corev1.Pod, o spiderOwner, nicName string, version int64, pools []string) (*spiderPool, netip.Addr, error) {
	var reasons []string
	for _, name := range pools {
		p, a, err := d.fromPool(ctx, pod, o, name)
		if err == nil {
			return p, a, nil
		}
		reasons = append(reasons, err.Error())
	}
	return nil, netip.Addr{}, fmt.Errorf("failed to allocate any IPv%d IP address to NIC %s from IPPools %v: %s", version, nicName, pools, aggregate(reasons))
}

// fromPool takes a pool's first free address. A pod that is in the pool's records already gets that one
// again, for a second interface as well.
func (d *spiderpool) fromPool(ctx context.Context, pod *corev1.Pod, o spiderOwner, name string) (pool *spiderPool, got netip.Addr, err error) {
	key := pod.Namespace + "/" + o.endpoint(pod)
	reserved, err := d.reserved.list(ctx, "")
	if err != nil {
		return nil, netip.Addr{}, err
	}
	var out spans
	for _, r := range reserved {
		out = append(out, parseRanges(r.Spec.IPs)...)
	}
	err = d.changePool(ctx, name, func(p *spiderPool, r map[string]spiderRecord) (bool, error) {
		pool, got = p, netip.Addr{}
		for a, rec := range r {
			if rec.PodUID == string(pod.UID) {
				got, err = netip.ParseAddr(a)
				return false, err
			}
		}
		a, ok := p.ranges().next(func(a netip.Addr) bool {
			_, taken := r[a.String()]
			return !taken && !out.contains(a)
		})
		if !ok {
			return false, errUsedOut
		}
		if len(r) >= 5000 {
			return false, fmt.Errorf("%w, threshold of IP records(<=5000) for IPPool %s exceeded", errUsedOut, name)
		}
		got = a
		r[a.String()] = spiderRecord{key, string(pod.UID)}
		return true, nil
	})
	return pool, got, err
}

// podmanagerAlive says whether a pod may have addresses. One that is being deleted may not.
func podmanagerAlive(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && alive(p) }

func (d *spiderpool) Del(ctx context.Context, req Request) error {
	conf, err := d.config(ctx)
	if err != nil {
		return err
	}
	pod, err := d.core.CoreV1().Pods(req.Pod.Namespace).Get(ctx, req.Pod.Name, metav1.GetOptions{})
	if ignoreNotFound(err) != nil {
		return err
	}
	uid, name := string(req.Pod.UID), req.Pod.Name
	if err == nil {
		if podmanagerAlive(pod) {
			return nil // the sandbox is made anew
		}
		uid, name = string(pod.UID), ownerOf(pod, conf).endpoint(pod)
	}
	// Of a VM's pod that is gone nobody knows the VM any more: the collector's business.
	ep, err := d.endpoints.get(ctx, req.Pod.Namespace, name)
	if err != nil {
		return ignoreNotFound(err)
	}
	if conf.EnableKubevirtStaticIP && ep.Status.OwnerControllerType == "VirtualMachineInstance" {
		valid, err := d.validVM(ctx, ep.Namespace, ep.Status.OwnerControllerName)
		if err != nil || valid {
			return err
		}
		if err := d.endpoints.delete(ctx, ep.Namespace, ep.Name); err != nil {
			return err
		}
	}
	if ep.Status.Current.UID != uid {
		return nil // after a failed migration the record names the target
	}
	if err := d.releaseIPs(ctx, uid, ep.Status.Current.IPs); err != nil {
		return err
	}
	return d.unfinalize(ctx, ep)
}

func (d *spiderpool) releaseIPs(ctx context.Context, uid string, ips []spiderIP) error {
	for i := range ips {
		addrs, pools := ips[i].addrs()
		for j, a := range addrs {
			if err := d.releaseRecord(ctx, pools[j], a.String(), uid); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *spiderpool) releaseRecord(ctx context.Context, pool, addr, uid string) error {
	return ignoreNotFound(d.changePool(ctx, pool, func(_ *spiderPool, r map[string]spiderRecord) (bool, error) {
		if rec, ok := r[addr]; !ok || rec.PodUID != uid {
			return false, nil
		}
		delete(r, addr)
		return true, nil
	}))
}

func (d *spiderpool) unfinalize(ctx context.Context, ep *spiderEndpoint) error {
	return ignoreNotFound(d.endpoints.patch(ctx, ep.Namespace, ep.Name, withoutFinalizer(ep.Finalizers, spiderFinalizer)))
}

func (d *spiderpool) dropEndpoint(ctx context.Context, ep *spiderEndpoint) error {
	if ep.DeletionTimestamp == nil {
		if err := d.endpoints.delete(ctx, ep.Namespace, ep.Name); err != nil {
			return err
		}
	}
	return d.unfinalize(ctx, ep)
}

// validVM says whether a VM keeps its addresses: its VMI lives, or a VM of the same name does.
func (d *spiderpool) validVM(ctx context.Context, namespace, name string) (bool, error) {
	vmi, err := d.vmis.get(ctx, namespace, name)
	switch {
	case err == nil && vmi.DeletionTimestamp == nil:
		return true, nil
	case err == nil && owner(vmi, "VirtualMachine") == nil:
		return false, nil
	case ignoreNotFound(err) != nil:
		return false, err
	}
	vm, err := d.vms.get(ctx, namespace, name)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	return vm.DeletionTimestamp == nil, nil
}
