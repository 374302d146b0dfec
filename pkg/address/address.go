// Package address is the arithmetic of IP addresses, ranges, pools and blocks. It is pure: no
// clock, no network, no Kubernetes types.
package address

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
)

// Family is an IP address family.
type Family int

// The two families, named by the version field of the IP header.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families in the order in which they are shown.
var Families = []Family{IPv4, IPv6}

func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// FamilyOf returns the family of a valid address that Parse accepts.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Parse reads one address in any spelling and returns its canonical form. It refuses zones and
// prefix lengths, and IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2): the same number would have
// two names.
func Parse(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return netip.Addr{}, fmt.Errorf("address %q has a prefix length: write %s", s, p.Addr())
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("address %q has a zone: zones have no meaning outside one host", s)
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("address %q is an IPv4-mapped IPv6 address: write %s", s, a.Unmap())
	}
	return a, nil
}

// ParsePrefix reads a CIDR. An address with host bits set is refused, naming the prefix it lies in.
func ParsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR such as 198.51.100.0/24", s)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("CIDR %q is an IPv4-mapped IPv6 prefix: write it as IPv4", s)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("CIDR %q has host bits set: did you mean %s?", s, p.Masked())
	}
	return p, nil
}

// ParseRange reads "first-last", one address, or a CIDR.
func ParseRange(s string) (netipx.IPRange, error) {
	s = strings.TrimSpace(s)
	if strings.Contains(s, "/") {
		p, err := ParsePrefix(s)
		if err != nil {
			return netipx.IPRange{}, err
		}
		return netipx.RangeOfPrefix(p), nil
	}
	first, last, ok := strings.Cut(s, "-")
	if !ok {
		last = first
	}
	from, err := Parse(strings.TrimSpace(first))
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", s, err)
	}
	to, err := Parse(strings.TrimSpace(last))
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", s, err)
	}
	r := netipx.IPRangeFrom(from, to)
	if !r.IsValid() {
		return netipx.IPRange{}, fmt.Errorf("range %q: the first address must not come after the last, and both must be of one family", s)
	}
	return r, nil
}

// FormatRange writes a range as ParseRange reads it; a single address stands alone.
func FormatRange(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	return r.From().String() + "-" + r.To().String()
}

// Join writes addresses separated by commas.
func Join(addrs []netip.Addr) string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return strings.Join(s, ",")
}
