package address

import (
	"fmt"
	"iter"
	"math/big"
	"net/netip"

	"go4.org/netipx"
)

// Rule names why an address may not be used. Rules are part of error messages and of preflight
// codes; they are never renamed.
type Rule string

// The rules of Space.Check, in the order in which they are tried.
const (
	RuleOutside   Rule = "OutsidePool"
	RuleNetwork   Rule = "NetworkAddress"
	RuleBroadcast Rule = "BroadcastAddress"
	RuleAnycast   Rule = "SubnetRouterAnycast"
	RuleGateway   Rule = "GatewayAddress"
	RuleExcluded  Rule = "ExcludedAddress"
)

// NotAllowedError says which rule keeps an address from being used.
type NotAllowedError struct {
	Addr   netip.Addr
	Rule   Rule
	Detail string
}

func (e *NotAllowedError) Error() string { return fmt.Sprintf("address %s %s", e.Addr, e.Detail) }

// Space is the set of addresses that a pool stands for.
type Space struct {
	cidrs    []netip.Prefix
	gateways []netip.Addr
	excluded *netipx.IPSet
	auto     *netipx.IPSet
}

// NewSpace builds a Space. At most one CIDR a family; ranges limit automatic choice and default
// to the CIDRs; all ranges, exclusions and gateways must lie inside a CIDR.
func NewSpace(cidrs []netip.Prefix, ranges, exclude []netipx.IPRange, gateways []netip.Addr) (*Space, error) {
	if len(cidrs) == 0 {
		return nil, fmt.Errorf("a pool needs a CIDR")
	}
	var whole, auto, excluded netipx.IPSetBuilder
	seen := map[Family]netip.Prefix{}
	for _, c := range cidrs {
		if other, dup := seen[FamilyOf(c.Addr())]; dup {
			return nil, fmt.Errorf("two %s CIDRs, %s and %s: a pool has at most one a family", FamilyOf(c.Addr()), other, c)
		}
		seen[FamilyOf(c.Addr())] = c
		whole.AddPrefix(c)
	}
	set, err := whole.IPSet()
	if err != nil {
		return nil, err
	}
	ranged := map[Family]bool{}
	for _, r := range ranges {
		if !set.ContainsRange(r) {
			return nil, fmt.Errorf("range %s is not inside the pool's CIDR %s", FormatRange(r), joinPrefixes(cidrs))
		}
		ranged[FamilyOf(r.From())] = true
		auto.AddRange(r)
	}
	for _, c := range cidrs {
		if !ranged[FamilyOf(c.Addr())] {
			auto.AddPrefix(c)
		}
	}
	for _, r := range exclude {
		if !set.OverlapsRange(r) {
			return nil, fmt.Errorf("exclusion %s is outside the pool's CIDR %s", FormatRange(r), joinPrefixes(cidrs))
		}
		excluded.AddRange(r)
	}
	for _, g := range gateways {
		if !set.Contains(g) {
			return nil, fmt.Errorf("gateway %s is outside the pool's CIDR %s", g, joinPrefixes(cidrs))
		}
		auto.Remove(g)
	}
	s := &Space{cidrs: cidrs, gateways: gateways}
	if s.excluded, err = excluded.IPSet(); err != nil {
		return nil, err
	}
	auto.RemoveSet(s.excluded)
	for _, c := range cidrs {
		for a := range special(c) {
			auto.Remove(a)
		}
	}
	if s.auto, err = auto.IPSet(); err != nil {
		return nil, err
	}
	if len(s.auto.Ranges()) == 0 {
		return nil, fmt.Errorf("no address is left to hand out in %s", joinPrefixes(cidrs))
	}
	return s, nil
}

// special yields the addresses of a prefix that no host may have, with the rule that says so:
// network and broadcast of an IPv4 prefix shorter than /31 (RFC 3021), and the subnet-router
// anycast address of an IPv6 prefix shorter than /127 (RFC 4291, 2.6.1; RFC 6164). The last
// address of an IPv6 prefix is an ordinary one.
func special(c netip.Prefix) iter.Seq2[netip.Addr, Rule] {
	return func(yield func(netip.Addr, Rule) bool) {
		switch {
		case c.Addr().Is4() && c.Bits() < 31:
			_ = yield(c.Addr(), RuleNetwork) && yield(netipx.PrefixLastIP(c), RuleBroadcast)
		case c.Addr().Is6() && c.Bits() < 127:
			yield(c.Addr(), RuleAnycast)
		}
	}
}

// Check says whether a host may be given the address at all, chosen by hand or not. It returns
// a *NotAllowedError.
func (s *Space) Check(a netip.Addr) error {
	cidr, ok := s.CIDR(FamilyOf(a))
	if !ok {
		return &NotAllowedError{a, RuleOutside, fmt.Sprintf("is %s, the pool has only %s", FamilyOf(a), joinPrefixes(s.cidrs))}
	}
	if !cidr.Contains(a) {
		return &NotAllowedError{a, RuleOutside, "is outside the pool's CIDR " + cidr.String()}
	}
	for x, rule := range special(cidr) {
		if x == a {
			what := map[Rule]string{RuleNetwork: "the network address", RuleBroadcast: "the broadcast address", RuleAnycast: "the subnet-router anycast address"}[rule]
			return &NotAllowedError{a, rule, fmt.Sprintf("is %s of %s", what, cidr)}
		}
	}
	for _, g := range s.gateways {
		if g == a {
			return &NotAllowedError{a, RuleGateway, "is the pool's gateway"}
		}
	}
	if s.excluded.Contains(a) {
		return &NotAllowedError{a, RuleExcluded, "is excluded from the pool"}
	}
	return nil
}

// CIDR returns the pool's CIDR of a family.
func (s *Space) CIDR(f Family) (netip.Prefix, bool) {
	for _, c := range s.cidrs {
		if FamilyOf(c.Addr()) == f {
			return c, true
		}
	}
	return netip.Prefix{}, false
}

// Overlap returns the first addresses of a range that Check allows; ok is false where there are none.
func (s *Space) Overlap(r netipx.IPRange) (part netipx.IPRange, ok bool) {
	var of, all netipx.IPSetBuilder
	of.AddRange(r)
	for _, c := range s.cidrs {
		all.AddPrefix(c)
		for a := range special(c) {
			of.Remove(a)
		}
	}
	for _, g := range s.gateways {
		of.Remove(g)
	}
	of.RemoveSet(s.excluded)
	whole, err := all.IPSet()
	if err != nil {
		return part, false // its prefixes were valid when the Space was made
	}
	of.Intersect(whole)
	set, err := of.IPSet()
	if err != nil || len(set.Ranges()) == 0 {
		return part, false
	}
	return set.Ranges()[0], true
}

// Automatic says whether automatic choice may take the address.
func (s *Space) Automatic(a netip.Addr) bool { return s.auto.Contains(a) }

// Blocks yields the blocks that automatic choice can use in a family, in ascending order.
func (s *Space) Blocks(f Family) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		var last netip.Prefix
		for _, r := range s.auto.Ranges() {
			if FamilyOf(r.From()) != f {
				continue
			}
			for b := BlockOf(r.From()); b.IsValid() && !r.To().Less(b.Addr()); {
				if b != last && !yield(b) {
					return
				}
				last = b
				next := netipx.PrefixLastIP(b).Next()
				if !next.IsValid() {
					return // the last block of the address space
				}
				b = BlockOf(next)
			}
		}
	}
}

// InBlock yields the addresses of a block that automatic choice may take, in ascending order.
func (s *Space) InBlock(b netip.Prefix) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a := b.Addr(); b.Contains(a); a = a.Next() {
			if s.auto.Contains(a) && !yield(a) {
				return
			}
		}
	}
}

// Count returns how many addresses automatic choice has in a family.
func (s *Space) Count(f Family) *big.Int {
	n := new(big.Int)
	for _, r := range s.auto.Ranges() {
		if FamilyOf(r.From()) == f {
			from, to := new(big.Int).SetBytes(r.From().AsSlice()), new(big.Int).SetBytes(r.To().AsSlice())
			n.Add(n, to.Sub(to, from).Add(to, big.NewInt(1)))
		}
	}
	return n
}

func joinPrefixes(ps []netip.Prefix) string {
	out := ""
	for i, p := range ps {
		if i > 0 {
			out += ","
		}
		out += p.String()
	}
	return out
}
