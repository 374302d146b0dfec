package audit

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// unrecorded finds machines that run on an address which a pool may hand to another one.
func unrecorded(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, g := range e.machines {
		if g.VM == nil || !g.started() {
			continue
		}
		for _, n := range g.nics {
			for _, a := range n.pod {
				domain, ok := e.domainOf(n, "", a)
				if !ok || e.rows[site{domain, a}] != nil || n.reserved(address.FamilyOf(a)) != nil {
					continue
				}
				p := e.handing(domain, n.Attachment, a)
				if p == nil {
					continue
				}
				f := e.about(InUseUnrecorded, g)
				e.on(&f, n)
				f.at(domain, a)
				f.Evidence = fmt.Sprintf("pod %s has it, pool %s hands it out, and the ledger has no row for it", g.current.Name, p.Name)
				found = append(found, f)
			}
		}
	}
	return found, nil
}

// handing is the pool of a domain and attachment that hands an address out, nil where none does.
func (e *estate) handing(domain, attachment string, a netip.Addr) *pool {
	for n := range e.pools {
		if p := &e.pools[n]; p.Network == domain && p.Attachment == attachment && p.handsOut(a) {
			return p
		}
	}
	return nil
}

// nodeAddresses finds nodes whose address is among those of a pool, and reserved addresses that a
// node has. Pods on the host's network show their node's address, and are not looked at besides.
func nodeAddresses(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for n := range e.Nodes {
		node := &e.Nodes[n]
		seen := map[netip.Addr]bool{}
		for _, at := range node.Status.Addresses {
			a, err := address.Parse(at.Address)
			if err != nil || seen[a] {
				continue // a name, or an address that is both internal and external
			}
			seen[a] = true
			for i := range e.pools {
				if p := &e.pools[i]; p.Attachment == "" && p.has(a) {
					found = append(found, e.onNode(p, node.Name, a)...)
				}
			}
		}
	}
	return found, nil
}

func (e *estate) onNode(p *pool, node string, a netip.Addr) []Finding {
	if row := e.rows[site{p.Network, a}]; row != nil && row.Err == nil && row.Row.State == ledger.Reserved {
		f := e.aboutRow(AddressInUseByOther, row)
		f.Evidence = fmt.Sprintf("reserved for virtualmachine %s, in use by node %s", row.Row.VM, node)
		e.remedy(&f, "kubectl vmip release {vm} -n {namespace}")
		f.nodes = []string{node}
		return []Finding{f}
	}
	if !p.handsOut(a) {
		return nil
	}
	f := Finding{
		Code:       PoolOverlapsNode,
		Subject:    v1alpha1.Subject{Kind: "Pool", Name: p.Name},
		Evidence:   fmt.Sprintf("node %s has %s, which pool %s hands out", node, a, p.Name),
		nodes:      []string{node},
		namespaces: p.Namespaces,
	}
	f.at(p.Network, a)
	e.remedy(&f, CheckOf(PoolOverlapsNode).Remedy, "{pool}", p.Name, "{address}", e.exclusions(p))
	return []Finding{f}
}

// exclusions are the pool's exclusions and all addresses of nodes that it hands out: `pool set` replaces
// the list, so that one command has to name them all.
func (e *estate) exclusions(p *pool) string {
	list := slices.Clone(p.Exclude)
	for n := range e.Nodes {
		for _, a := range nodeAddrs(&e.Nodes[n]) {
			if p.handsOut(a) && !slices.Contains(list, a.String()) {
				list = append(list, a.String())
			}
		}
	}
	return strings.Join(list, ",")
}

// unreachable finds machines with a reservation on a node that does not answer: what runs there
// can't be verified.
func unreachable(e *estate) ([]Finding, []Skip) {
	why := map[string]string{}
	for n := range e.Nodes {
		why[e.Nodes[n].Name] = silence(&e.Nodes[n])
	}
	var found []Finding
	for _, g := range e.machines {
		if g.VM == nil || g.current == nil || g.current.Spec.NodeName == "" {
			continue
		}
		node := g.current.Spec.NodeName
		reason, there := why[node]
		if !there {
			reason = "does not exist"
		}
		if reason == "" {
			continue
		}
		for _, n := range g.nics {
			for _, family := range n.families() {
				row := n.reserved(family)
				f := e.about(NodeUnreachable, g)
				e.on(&f, n)
				f.at(row.Network, row.Addr)
				f.Evidence = fmt.Sprintf("node %s of pod %s %s", node, g.current.Name, reason)
				e.remedy(&f, CheckOf(NodeUnreachable).Remedy, "{node}", node)
				f.nodes = []string{node}
				found = append(found, f)
			}
		}
	}
	return found, nil
}

// silence says since when a node's kubelet has not answered; "" where it does.
func silence(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return "has not answered since " + moment(c.LastTransitionTime.Time)
		}
	}
	return ""
}
