package audit

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// pool is a pool with its arithmetic. One whose specification can't be understood contains
// nothing; the ledger reports it as damaged.
type pool struct {
	ledger.Pool
	cidrs []netip.Prefix
	space *address.Space
}

func newPools(specs []ledger.Pool) []pool {
	pools := make([]pool, 0, len(specs))
	for _, spec := range specs {
		p := pool{Pool: spec}
		if space, err := spec.Space(); err == nil {
			p.space = space
			p.cidrs, _ = spec.Prefixes() // Space has parsed them
		}
		pools = append(pools, p)
	}
	return pools
}

// has says whether the address lies in the pool's CIDRs.
func (p *pool) has(a netip.Addr) bool {
	for _, c := range p.cidrs {
		if c.Contains(a) {
			return true
		}
	}
	return false
}

// handsOut says whether automatic choice may take the address.
func (p *pool) handsOut(a netip.Addr) bool { return p.has(a) && p.space.Automatic(a) }

// Names of domains that no pool declares. They can't be names of networks, which are DNS labels.
const (
	podNetwork        = "the pod network"
	attachmentNetwork = "attachment "
)

// declared says whether a pool declares the domain.
func declared(domain string) bool { return !strings.Contains(domain, " ") }

// domain finds the domain of uniqueness that an address of an attachment ("" for the pod network)
// belongs to in a namespace. Where pools of several domains serve the network with the same
// numbers and the namespace does not decide between them, ok is false: isolated networks may use
// the same numbers, and what can't be told apart is no duplicate. hint is what else tells isolated
// networks apart where no pool does.
func (e *estate) domain(namespace, attachment, hint string, a netip.Addr) (domain string, ok bool) {
	found, served := "", ""
	several, servedBySeveral := false, false
	for n := range e.pools {
		p := &e.pools[n]
		if p.Attachment != attachment || !p.has(a) {
			continue
		}
		several = several || found != "" && found != p.Network
		found = p.Network
		if p.Serves(namespace) == "" {
			servedBySeveral = servedBySeveral || served != "" && served != p.Network
			served = p.Network
		}
	}
	switch {
	case found == "" && attachment != "":
		return attachmentNetwork + attachment, true
	case found == "" && len(e.loose[a]) == 1:
		return e.loose[a][0], true
	case found == "":
		return podNetwork + hint, true
	case !several:
		return found, true
	case served != "" && !servedBySeveral:
		return served, true
	}
	return "", false
}

// domainOf is the domain of an address on a machine's interface. A row of the machine decides
// before anything else.
func (e *estate) domainOf(n *nic, hint string, a netip.Addr) (string, bool) {
	for _, row := range n.rows {
		if row.Addr == a {
			return row.Network, true
		}
	}
	if hint == "" && n.guest.current != nil {
		hint = podHint(n.guest.current)
	}
	if n.runs && n.running.PodInterface != "" && n.running.PodInterface != "eth0" && n.Attachment == "" {
		// A primary user-defined network of OVN-Kubernetes, isolated from other namespaces'.
		hint = " of namespace " + n.guest.ref.Namespace
	}
	return e.domain(n.guest.ref.Namespace, n.Attachment, hint, a)
}

// podHint tells the virtual private clouds of Kube-OVN apart, whose pod networks may use the same
// numbers.
func podHint(p *corev1.Pod) string {
	router := p.Annotations["ovn.kubernetes.io/logical_router"]
	if router == "" || router == "ovn-cluster" {
		return ""
	}
	return " of " + router
}

// networkOf shows a domain in a finding: only those that pools declare.
func networkOf(domain string) string {
	if declared(domain) {
		return domain
	}
	return ""
}
