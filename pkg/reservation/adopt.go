package reservation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// claimant is something that shows which address an interface has or asks for. has is set where
// it has it: a running pod.
type claimant struct {
	addr netip.Addr
	who  string
	has  bool
}

// adopt makes what already exists the request: the addresses that the machine's pod has, that its
// template asks for, that the network plugin has recorded and that the ledger has for an earlier
// machine of its name. Where two of them contradict one another both are named, and nothing is
// written. A family in which the machine has a reservation keeps it, and addresses on the command
// line are not questioned.
func (s *Service) adopt(ctx context.Context, in *intent) error {
	if in.vm == nil || len(in.wanted) > 0 {
		return nil
	}
	first, own := map[address.Family]claimant{}, map[address.Family]bool{}
	for _, e := range in.rows {
		if e.Err == nil && e.Row.State == ledger.Reserved && e.Row.UID == in.owner.UID {
			first[e.Family()], own[e.Family()] = claimant{addr: e.Addr, who: "the ledger"}, true
		}
	}
	found, err := s.claimants(ctx, in)
	if err != nil {
		return fmt.Errorf("%s: which address it has can't be found out: %w; nothing was changed", object(in.ref), err)
	}
	for _, c := range found {
		f := address.FamilyOf(c.addr)
		if own[f] {
			continue
		}
		other, known := first[f]
		if known && other.addr != c.addr {
			return refuse(in.ref, "Contradiction", "%s has %s, and %s has %s: choose one with --ip, or give the other up first", other.who, other.addr, c.who, c.addr)
		}
		if !known {
			first[f] = c
		}
	}
	if len(first) == 0 {
		return refuse(in.ref, codeNothingToAdopt, "it has no address: no pod of it runs, and neither its template nor the network plugin names one; reserve one without --adopt")
	}
	pools, err := s.pools(ctx, in.reads)
	if damaged := (*ledger.DamagedPoolsError)(nil); err != nil && !errors.As(err, &damaged) {
		return fmt.Errorf("%s: %w", object(in.ref), err)
	}
	// A pod has both families in a dual-stack cluster, and an interface has its addresses from one
	// pool: of the pools that serve it the one that holds most of them, or the first family.
	holds := func(p ledger.Pool) (n int) {
		for f, c := range first {
			if p.Contains(c.addr) {
				n += 2
				if f == address.IPv4 {
					n++
				}
			}
		}
		return n
	}
	var best *ledger.Pool
	for i := range pools {
		if p := &pools[i]; in.unfit(*p) == "" && holds(*p) > 0 && (best == nil || holds(*p) > holds(*best)) {
			best = p
		}
	}
	for f, c := range first {
		if best != nil && !best.Contains(c.addr) {
			s.warn("%s: %s has %s, which is not of pool %s: it is not reserved", object(in.ref), c.who, c.addr, best.Name)
			continue
		}
		in.wanted[f] = c.addr
		if in.adopted == nil {
			in.adopted = map[netip.Addr]claimant{}
		}
		if !own[f] {
			in.adopted[c.addr] = c
		}
	}
	return nil
}

// contradictions finds machines of a batch that show the same address. The one whose pod has it
// keeps it; where none or several have it, all of them are refused. Whoever is refused is told of
// the other.
func contradictions(intents []*intent) map[*intent]error {
	type key struct {
		network string
		addr    netip.Addr
	}
	by := map[key][]*intent{}
	for _, in := range intents {
		for a := range in.adopted {
			k := key{in.pool.Network, a}
			by[k] = append(by[k], in)
		}
	}
	out := map[*intent]error{}
	for k, claims := range by {
		if len(claims) < 2 {
			continue
		}
		var having []*intent
		for _, in := range claims {
			if in.adopted[k.addr].has {
				having = append(having, in)
			}
		}
		for i, in := range claims {
			if len(having) == 1 && having[0] == in {
				continue
			}
			other := claims[(i+1)%len(claims)]
			if len(having) == 1 {
				other = having[0]
			}
			out[in] = refuse(in.ref, "Contradiction", "%s has %s, and so has %s of %s: choose one, and give the other another address with --ip", in.adopted[k.addr].who, k.addr, other.adopted[k.addr].who, object(other.ref))
		}
	}
	return out
}

const codeNothingToAdopt = "NothingToAdopt"

// claimants lists who shows an address for the interface.
func (s *Service) claimants(ctx context.Context, in *intent) (found []claimant, err error) {
	pods, err := s.firstPodsOf(ctx, in)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		p := &pods[i]
		if !carries(p, in.vmi, in.vm.UID) {
			continue
		}
		have, known := podAddresses(p, in.vmi, in.iface.Name)
		if !known || len(have) == 0 {
			return nil, fmt.Errorf("pod %s/%s shows no address yet: wait until it runs", p.Namespace, p.Name)
		}
		for _, a := range have {
			found = append(found, claimant{a, "pod " + p.Namespace + "/" + p.Name, true})
		}
	}
	cluster, err := s.firstProfiles(ctx, in)
	if err != nil {
		return nil, err
	}
	prof, err := cluster.For(ctx, in.iface)
	if err != nil {
		return nil, err
	}
	asked, err := prof.Claims(in.vm.Spec.Template.ObjectMeta.Annotations, in.iface)
	if err != nil {
		return nil, fmt.Errorf("its template: %w", err)
	}
	for _, a := range asked {
		found = append(found, claimant{addr: a, who: "its template"})
	}
	records, err := prof.Records(ctx, in.ref, in.iface)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		for _, a := range r.Addresses {
			found = append(found, claimant{addr: a, who: strings.TrimSpace(prof.Name() + " record " + r.Object)})
		}
	}
	for _, e := range in.rows {
		if e.Err == nil && e.Row.State == ledger.Reserved && e.Row.UID != in.owner.UID {
			found = append(found, claimant{addr: e.Addr, who: fmt.Sprintf("the ledger (for an earlier machine of its name, UID %s)", e.Row.UID)})
		}
	}
	return found, nil
}

// IsNothingToAdopt says whether an adoption found no address.
func IsNothingToAdopt(err error) bool { return codeOf(err) == codeNothingToAdopt }
