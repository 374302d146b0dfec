package profile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

const (
	managedBy = "app.kubernetes.io/managed-by"
	manager   = "kubectl-vmip"
	// spiderPrefix begins the names of the pools of one address that this project makes.
	spiderPrefix = "vmip-"
)

// spiderpool is Spiderpool as IPAM of the pod network or of an attachment. It has no annotation for
// an address (docs/reference/annotation.md), so an address is chosen by a pool that holds nothing
// else.
type spiderpool struct {
	spiderpoolFacts
	reader Reader
	// plugin is the type of the attachment's main plugin, "" for the pod network.
	plugin     string
	attachment string
	// cidrs and gateways are those of the ledger's pool (Within).
	cidrs    []netip.Prefix
	gateways []netip.Addr
}

func (p *spiderpool) Name() string    { return Spiderpool }
func (p *spiderpool) Version() string { return p.version.value }

func (p *spiderpool) Evidence() []string {
	var e []string
	if p.agent.name != "" {
		e = append(e, p.agent.String()+" exists")
	}
	if p.version.failed() == nil {
		e = append(e, "Spiderpool "+p.version.value)
	}
	if c := p.conf; c.err == nil {
		e = append(e, fmt.Sprintf("configmap %s/spiderpool-conf has enableKubevirtStaticIP %t, enableIPv4 %t, enableIPv6 %t", c.value.namespace, c.value.KubeVirtStaticIP, c.value.EnableIPv4, c.value.EnableIPv6))
	}
	if p.attachment != "" {
		e = append(e, p.attachment)
	}
	for _, err := range p.unread() {
		if err != nil {
			e = append(e, err.Error())
		}
	}
	return e
}

func (p *spiderpool) Capabilities(i machine.Interface) Capabilities {
	var c Capabilities
	older, versioned := before(p.version.value, 0, 8)
	switch {
	case versioned && older:
		return refuse(Spiderpool, fmt.Sprintf("Spiderpool %s knows no VMs, it does since 0.8", p.version.value)).caps
	case p.conf.failed() != nil:
		return unverified("the configuration of Spiderpool is unknown: " + p.conf.failed().Error()).caps
	case i.Binding == machine.Bridge && (p.plugin == "macvlan" || p.plugin == "ipvlan"):
		// Bridge binding moves the MAC into the guest, and those plugins let only their own through
		// (docs/usage/kubevirt.md).
		return refuse(Spiderpool, fmt.Sprintf("bridge binding on a %s network drops the guest's frames", p.plugin)).caps
	}
	c.Choose = Capability{Yes, "Spiderpool takes the address from the pool that ipam.spidernet.io/ippool names, and the pool has one address"}
	switch conf := p.conf.value; {
	case conf.missingStaticIPKey:
		why := "spiderpool-conf does not say enableKubevirtStaticIP"
		c.Restart, c.Migration = Capability{Unverified, why}, Capability{Unverified, why}
	case !conf.KubeVirtStaticIP:
		why := "Spiderpool runs with enableKubevirtStaticIP false: the address belongs to the pod"
		c.Restart, c.Migration = Capability{No, why}, Capability{No, why}
	default:
		c.Restart = Capability{Yes, "Spiderpool keeps a VM's address while the VM exists (enableKubevirtStaticIP)"}
		c.Migration = Capability{Yes, "Spiderpool gives the target pod of a migration the VM's address; whether traffic follows depends on the plugin below it and is unverified (spiderpool issue 3903)"}
	}
	switch conf := p.conf.value; {
	case conf.EnableIPv4 && conf.EnableIPv6:
		c.DualStack = Capability{Yes, "Spiderpool runs with enableIPv4 and enableIPv6"}
	case conf.EnableIPv4:
		c.DualStack = Capability{No, "Spiderpool runs with enableIPv6 false"}
	default:
		c.DualStack = Capability{No, "Spiderpool runs with enableIPv4 false"}
	}
	return c
}

func (p *spiderpool) Keys(machine.Interface) []string {
	return []string{spiderIPPool1, spiderIPPoolN, spiderSubnet1, spiderSubnetN}
}

// Render makes a pool of one address a family, and the annotation that names them. The pools are
// for the VM's namespace only.
func (p *spiderpool) Render(vm machine.Ref, i machine.Interface, addrs []netip.Addr) (Rendering, error) {
	addrs, err := oneEach(vm, i, addrs)
	if err != nil {
		return Rendering{}, err
	}
	if err := p.families(vm, i, addrs); err != nil {
		return Rendering{}, err
	}
	var r Rendering
	var names poolNames
	for _, a := range addrs {
		o, err := p.poolOfOne(vm, i, a)
		if err != nil {
			return Rendering{}, err
		}
		r.Objects = append(r.Objects, o)
		if a.Is4() {
			names.IPv4 = []string{o.GetName()}
		} else {
			names.IPv6 = []string{o.GetName()}
		}
	}
	r.Annotations = map[string]string{spiderIPPool1: names.encode()}
	return r, nil
}

// families compares the addresses with what is switched on. With both families on, an annotation
// that names pools of one gives the pod that family only (getPoolFromPodAnnoPool in pkg/ipam).
func (p *spiderpool) families(vm machine.Ref, i machine.Interface, addrs []netip.Addr) error {
	if p.conf.failed() != nil {
		return nil
	}
	enabled := map[address.Family]bool{address.IPv4: p.conf.value.EnableIPv4, address.IPv6: p.conf.value.EnableIPv6}
	for _, a := range addrs {
		if f := address.FamilyOf(a); !enabled[f] {
			return fmt.Errorf("virtualmachine %s interface %s: an %s address is asked for, and Spiderpool runs with enable%s false", vm, i.Name, f, f)
		}
	}
	return nil
}

// poolOfOne makes the SpiderIPPool of an address. Pools of one subnet must spell it alike, and no two
// may hand out the same address (pkg/ippoolmanager/ippool_validate.go), so the neighbour's subnet,
// gateway, VLAN and routes are taken over, and an address that a neighbour hands out is refused.
func (p *spiderpool) poolOfOne(vm machine.Ref, i machine.Interface, a netip.Addr) (*unstructured.Unstructured, error) {
	spec := map[string]any{
		"ips":           []any{a.String()},
		"ipVersion":     int64(address.FamilyOf(a)),
		"namespaceName": []any{vm.Namespace},
	}
	neighbour, err := p.neighbour(a)
	switch {
	case err != nil:
		return nil, fmt.Errorf("virtualmachine %s interface %s: %w", vm, i.Name, err)
	case neighbour != nil:
		spec["subnet"] = neighbour.Spec.Subnet
		if g := neighbour.Spec.Gateway; g != "" && g != a.String() {
			spec["gateway"] = g
		}
		if v := neighbour.Spec.VLAN; v != nil {
			spec["vlan"] = *v
		}
		if len(neighbour.Spec.Routes) > 0 {
			routes := make([]any, len(neighbour.Spec.Routes))
			for n, route := range neighbour.Spec.Routes {
				routes[n] = route
			}
			spec["routes"] = routes
		}
	default:
		n := slices.IndexFunc(p.cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
		if n < 0 {
			return nil, fmt.Errorf("virtualmachine %s interface %s: no spiderippool has a subnet with address %s: create one for the subnet first", vm, i.Name, a)
		}
		spec["subnet"] = p.cidrs[n].String()
		for _, g := range p.gateways {
			if p.cidrs[n].Contains(g) {
				spec["gateway"] = g.String()
			}
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": spiderIPPools.GroupVersion().String(),
		"kind":       "SpiderIPPool",
		"metadata": map[string]any{
			"name":   spiderPoolName(a),
			"labels": map[string]any{managedBy: manager},
		},
		"spec": spec,
	}}, nil
}

// neighbour finds the pool whose subnet has the address.
func (p *spiderpool) neighbour(a netip.Addr) (*spiderIPPool, error) {
	if p.pools.failed() != nil {
		return nil, fmt.Errorf("address %s: %w", a, p.pools.failed())
	}
	var found *spiderIPPool
	for n := range p.pools.value {
		pool := &p.pools.value[n]
		if !pool.subnet().Contains(a) || pool.Name == spiderPoolName(a) {
			continue
		}
		if pool.hands(a) {
			return nil, fmt.Errorf("spiderippool %s hands out address %s, and Spiderpool allows no address in two pools: add it to spec.excludeIPs of %s first", pool.Name, a, pool.Name)
		}
		if found == nil || found.Spec.Gateway == "" && pool.Spec.Gateway != "" {
			found = pool
		}
	}
	return found, nil
}

// spiderPoolName is the name of the pool of one address: vmip-198-51-100-20.
func spiderPoolName(a netip.Addr) string {
	return spiderPrefix + strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())
}

// addressOfPool reads what spiderPoolName writes.
func addressOfPool(name string) (netip.Addr, bool) {
	s, ok := strings.CutPrefix(name, spiderPrefix)
	if !ok {
		return netip.Addr{}, false
	}
	if strings.Count(s, "-") == 3 {
		s = strings.ReplaceAll(s, "-", ".")
	} else {
		s = strings.ReplaceAll(s, "-", ":")
	}
	a, err := address.Parse(s)
	return a, err == nil && spiderPoolName(a) == name
}
