package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Held is an address that a network plugin has recorded for an interface of a virtual machine.
type Held struct {
	VM        machine.Ref
	Interface string
	Addr      netip.Addr
	// Object is the plugin's record.
	Object string
}

// Others are the claims on addresses of pools that are no reservations.
type Others struct {
	// Claims have no row yet, or one that names another claimant.
	Claims []ledger.ForeignClaim
	// Gone are rows of state foreign whose claim was not found any more.
	Gone []ledger.Entry
	// Unseen says what could not be looked at: claims that it would show are missing, and no row is
	// gone.
	Unseen []string
}

// scanned are the resources in which claims are looked for.
var scanned = []Resource{VMs, VMIs, Pods, Nodes, Services, Plugins, Records}

// ClaimsOfOthers finds what has, or asks for, an address that a pool may hand out, and has no
// reservation for it: pods, templates, records of network plugins, nodes and services. Pods that
// are no virtual machines count only where automatic choice would take their address: they come
// and go, and an address that is chosen by hand is looked for among them anyway. It is pure.
func ClaimsOfOthers(s *Snapshot) *Others {
	e := newEstate(s, Options{})
	o := &Others{}
	for _, r := range scanned {
		if g, ok := s.Gaps[r]; ok {
			o.Unseen = append(o.Unseen, g.Reason)
		}
	}
	found := map[site]ledger.ForeignClaim{}
	add := func(at site, by, reason string) {
		if _, known := found[at]; !known && e.rowless(at) {
			found[at] = ledger.ForeignClaim{Network: at.domain, Addr: at.addr, By: by, Reason: reason}
		}
	}
	// Who has an address comes before who asks for it.
	for _, at := range sites(e.live) {
		for _, h := range owners(e.live[at]) {
			switch {
			case h.guest == nil && !e.automatic(at):
			case h.guest == nil:
				add(at, h.key, "the pod has it")
			default:
				add(at, h.guest.claimant(), "a pod of it has it")
			}
		}
	}
	for i := range e.Nodes {
		e.onPodNetwork(nodeAddrs(&e.Nodes[i]), func(at site) { add(at, "node "+e.Nodes[i].Name, "an address of the node") })
	}
	for i := range s.Services {
		svc := &s.Services[i]
		e.onPodNetwork(serviceAddrs(svc), func(at site) {
			add(at, "service "+svc.Namespace+"/"+svc.Name, "an address of the service")
		})
	}
	for _, at := range sites(e.asked) {
		for _, h := range owners(e.asked[at]) {
			add(at, h.guest.claimant(), "its template asks for it")
		}
	}
	for _, h := range s.Held {
		g := e.byRef[h.VM]
		if g == nil {
			continue
		}
		for _, n := range g.nics {
			if n.Name != h.Interface {
				continue
			}
			if domain, ok := e.domainOf(n, "", h.Addr); ok {
				add(site{domain, h.Addr}, g.claimant(), "the network plugin keeps it in "+h.Object)
			}
		}
	}
	o.compare(e, found)
	return o
}

// compare tells new claims from those that have a row, and finds rows without a claim.
func (o *Others) compare(e *estate, found map[site]ledger.ForeignClaim) {
	for at, c := range found {
		if row := e.rows[at]; row == nil || row.Row.VM != c.By || row.Row.Reason != c.Reason {
			o.Claims = append(o.Claims, c)
		}
	}
	slices.SortFunc(o.Claims, func(a, b ledger.ForeignClaim) int {
		return cmp.Or(strings.Compare(a.Network, b.Network), a.Addr.Compare(b.Addr))
	})
	if len(o.Unseen) > 0 {
		return
	}
	for i := range e.Ledger.Entries {
		row := &e.Ledger.Entries[i]
		if row.Err == nil && row.Row.State == ledger.Foreign {
			if _, claimed := found[site{row.Network, row.Addr}]; !claimed {
				o.Gone = append(o.Gone, *row)
			}
		}
	}
}

// claimant is how a row of state foreign names a machine: one that exists may take the row over.
func (g *guest) claimant() string {
	if g.VM == nil {
		return g.String()
	}
	return g.ref.String()
}

// rowless says whether a pool may hand the address out, and no row but one of state foreign has it.
func (e *estate) rowless(at site) bool {
	if row := e.rows[at]; row != nil && (row.Err != nil || row.Row.State != ledger.Foreign) {
		return false
	}
	return slices.ContainsFunc(e.pools, func(p pool) bool {
		return p.Network == at.domain && p.space != nil && p.space.Check(at.addr) == nil
	})
}

func (e *estate) automatic(at site) bool {
	return slices.ContainsFunc(e.pools, func(p pool) bool { return p.Network == at.domain && p.space != nil && p.handsOut(at.addr) })
}

// onPodNetwork finds the pools of the pod network that have an address. Addresses of nodes and
// services are of no isolated network: whichever pool has the number counts.
func (e *estate) onPodNetwork(addrs []netip.Addr, found func(site)) {
	for _, a := range addrs {
		for i := range e.pools {
			if p := &e.pools[i]; p.Attachment == "" && p.has(a) {
				found(site{p.Network, a})
			}
		}
	}
}

func nodeAddrs(n *corev1.Node) (list []netip.Addr) {
	for _, at := range n.Status.Addresses {
		if a, err := address.Parse(at.Address); err == nil { // others are names
			list = append(list, a)
		}
	}
	return list
}

// serviceAddrs are the addresses at which a service is reached from outside or inside the cluster.
func serviceAddrs(s *corev1.Service) (list []netip.Addr) {
	all := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs)
	for _, i := range s.Status.LoadBalancer.Ingress {
		all = append(all, i.IP)
	}
	for _, text := range all {
		if a, err := address.Parse(text); err == nil { // "None", or a load balancer with a name
			list = append(list, a)
		}
	}
	return list
}
