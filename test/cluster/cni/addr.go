package cni

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// span is a run of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

// parseSpan reads one address, or two with sep between.
func parseSpan(s, sep string) (span, error) {
	first, last, ok := strings.Cut(s, sep)
	a, err := netip.ParseAddr(first)
	if err != nil {
		return span{}, err
	}
	if !ok {
		return span{a, a}, nil
	}
	b, err := netip.ParseAddr(last)
	if err != nil {
		return span{}, err
	}
	if a.BitLen() != b.BitLen() || b.Less(a) {
		return span{}, fmt.Errorf("invalid IP range %q", s)
	}
	return span{a, b}, nil
}

func (s span) contains(a netip.Addr) bool {
	return a.BitLen() == s.first.BitLen() && s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0
}

func (s span) String() string { return s.format("-") }

func (s span) format(sep string) string {
	if s.first == s.last {
		return s.first.String()
	}
	return s.first.String() + sep + s.last.String()
}

// spans are ranges as a pool or a list of exclusions has them.
type spans []span

func (l spans) contains(a netip.Addr) bool {
	return slices.ContainsFunc(l, func(s span) bool { return s.contains(a) })
}

// next returns the first address, in the order of the list, that use accepts.
func (l spans) next(use func(netip.Addr) bool) (netip.Addr, bool) {
	for _, s := range l {
		for a := s.first; ; a = a.Next() {
			if use(a) {
				return a, true
			}
			if a == s.last {
				break
			}
		}
	}
	return netip.Addr{}, false
}

// joinSpans is the shortest list of ranges with just these addresses.
func joinSpans(addrs []netip.Addr) spans {
	slices.SortFunc(addrs, netip.Addr.Compare)
	var l spans
	for _, a := range addrs {
		if n := len(l); n > 0 && (l[n-1].last == a || l[n-1].last.Next() == a) {
			l[n-1].last = a
		} else {
			l = append(l, span{a, a})
		}
	}
	return l
}

// size is how many addresses there are, as a float: what Kube-OVN keeps in a Subnet's status.
func (l spans) size() float64 {
	n := 0.0
	for _, s := range l {
		d := new(big.Int).Sub(bigAddr(s.last), bigAddr(s.first))
		f, _ := new(big.Float).SetInt(d.Add(d, big.NewInt(1))).Float64()
		n += f
	}
	return n
}

func bigAddr(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

// advance is the address n after a. It wraps at the end of the family.
func advance(a netip.Addr, n *big.Int) netip.Addr {
	i := new(big.Int).Add(bigAddr(a), n)
	i.And(i, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(a.BitLen())), big.NewInt(1)))
	b, _ := netip.AddrFromSlice(i.FillBytes(make([]byte, a.BitLen()/8)))
	return b
}

// count is the number of addresses in a prefix.
func count(p netip.Prefix) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
}

func lastAddr(p netip.Prefix) netip.Addr {
	return advance(p.Masked().Addr(), new(big.Int).Sub(count(p), big.NewInt(1)))
}

// hosts are the addresses of a subnet that an interface may have.
func hosts(p netip.Prefix) span {
	if p.IsSingleIP() {
		return span{p.Addr(), p.Addr()}
	}
	return span{p.Masked().Addr().Next(), lastAddr(p).Prev()}
}

// gateway is the first host of a subnet.
func gateway(p netip.Prefix) netip.Addr { return hosts(p).first }

// single is the prefix that holds nothing but a.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func families(prefixes []netip.Prefix) (v4, v6 *netip.Prefix) {
	for i, p := range prefixes {
		if p.Addr().Is4() {
			v4 = &prefixes[i]
		} else {
			v6 = &prefixes[i]
		}
	}
	return v4, v6
}

// cidrName is a CIDR as Calico and Spiderpool write it where neither a dot, a colon nor a slash may be.
func cidrName(p netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(p.String())
}

// v4First is the order in which containerd reports a pod's addresses.
func v4First(addrs []netip.Addr) []netip.Addr {
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return addrs
}

// randomMAC is a locally administered unicast address, as the kernel makes one for a new veth.
func randomMAC() string {
	b := make(net.HardwareAddr, 6)
	_, _ = rand.Read(b) // never fails
	b[0] = b[0]&^1 | 2
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// join formats a list with sep between.
func join[T fmt.Stringer](list []T, sep string) string {
	s := make([]string, len(list))
	for i, v := range list {
		s[i] = v.String()
	}
	return strings.Join(s, sep)
}

// without removes the addresses of other from l.
func (l spans) without(other spans) spans {
	for _, o := range other {
		var out spans
		for _, s := range l {
			if o.last.Less(s.first) || s.last.Less(o.first) {
				out = append(out, s)
				continue
			}
			if s.first.Less(o.first) {
				out = append(out, span{s.first, o.first.Prev()})
			}
			if o.last.Less(s.last) {
				out = append(out, span{o.last.Next(), s.last})
			}
		}
		l = out
	}
	return l
}
