package address

import (
	"fmt"
	"net/netip"
	"strings"
)

// BlockOf returns the aligned /24 (IPv4) or /120 (IPv6) that holds a. The ledger keeps the rows
// of one block in one object, so that an address has exactly one possible row.
func BlockOf(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 120
	}
	p, err := a.Prefix(bits)
	if err != nil {
		panic(fmt.Sprintf("block of %v: %v", a, err)) // only for the zero Addr
	}
	return p
}

// Key writes an address as a ConfigMap key: IPv6 expanded, ':' written '-', since keys allow
// neither ':' nor two spellings of one address.
func Key(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return strings.ReplaceAll(a.StringExpanded(), ":", "-")
}

// ParseKey reads what Key writes, and nothing else.
func ParseKey(k string) (netip.Addr, error) {
	s := k
	if !strings.Contains(k, ".") {
		s = strings.ReplaceAll(k, "-", ":")
	}
	a, err := Parse(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("key %q is not an address", k)
	}
	if Key(a) != k {
		return netip.Addr{}, fmt.Errorf("key %q is not the canonical key of %s, %q", k, a, Key(a))
	}
	return a, nil
}

// BlockKey writes a block as a part of an object name.
func BlockKey(p netip.Prefix) string { return fmt.Sprintf("%s-%d", Key(p.Addr()), p.Bits()) }

// ParseBlockKey reads what BlockKey writes.
func ParseBlockKey(k string) (netip.Prefix, error) {
	i := strings.LastIndex(k, "-")
	if i < 0 {
		return netip.Prefix{}, fmt.Errorf("%q is not the key of a block", k)
	}
	a, err := ParseKey(k[:i])
	if err != nil {
		return netip.Prefix{}, err
	}
	if p := BlockOf(a); BlockKey(p) == k {
		return p, nil
	}
	return netip.Prefix{}, fmt.Errorf("%q is not the key of a block", k)
}
