package address

import (
	"net/netip"
	"testing"
)

// An address that can be read is written to something that reads the same, as its key is.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"198.51.100.20", "2001:db8::1", "::ffff:1.2.3.4", "fe80::1%a", "1.2.3.4/8", "2001:0DB8:0:0::01", "::1.2.3.4", "010.0.0.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := Parse(s)
		if err != nil {
			return
		}
		if again, err := Parse(a.String()); err != nil || again != a {
			t.Fatalf("%q: %s is read back as %v, %v", s, a, again, err)
		}
		if k, err := ParseKey(Key(a)); err != nil || k != a {
			t.Fatalf("%q: key %s is read back as %v, %v", s, Key(a), k, err)
		}
		if b, err := ParseBlockKey(BlockKey(BlockOf(a))); err != nil || !b.Contains(a) {
			t.Fatalf("%s is not in its block: %s, %v", a, b, err)
		}
	})
}

func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"198.51.100.1-198.51.100.9", "2001:db8::/64", "1.1.1.1", " 198.51.100.1 - 198.51.100.1", "0.0.0.0/0", "::/0", "::-ffff::", "::ffff:1.2.3.4-::ffff:1.2.3.5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRange(s)
		if err != nil {
			return
		}
		if again, err := ParseRange(FormatRange(r)); err != nil || again != r {
			t.Fatalf("%q: %s is read back as %v, %v", s, FormatRange(r), again, err)
		}
		if FamilyOf(r.From()) != FamilyOf(r.To()) || r.To().Less(r.From()) {
			t.Fatalf("%q is read as %s", s, r)
		}
	})
}

// A prefix that can be read has one spelling, starts at its own address and is in one family.
func FuzzParsePrefix(f *testing.F) {
	for _, s := range []string{"198.51.100.0/24", "2001:DB8::/64", "0.0.0.0/0", "::/0", "::ffff:198.51.100.0/120", "fe80::%a/64", "198.51.100.7/24", "198.51.100.0/024", "255.255.255.255/32"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePrefix(s)
		if err != nil {
			return
		}
		if again, err := ParsePrefix(p.String()); err != nil || again != p || p.Masked() != p || p.Addr().Is4In6() {
			t.Fatalf("%q: %s is read back as %s, %v", s, p, again, err)
		}
		if r, err := ParseRange(s); err != nil || r.From() != p.Addr() || !p.Contains(r.To()) {
			t.Fatalf("%q: as a range it is %s, %v", s, r, err)
		}
		if ForHosts(p) == nil && (p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsUnspecified() || p.Addr().IsLinkLocalUnicast()) {
			t.Fatalf("%s is no prefix for hosts", p)
		}
		space, err := NewSpace([]netip.Prefix{p}, nil, nil, nil)
		if err != nil {
			t.Fatalf("%s as a pool: %v", p, err)
		}
		for b := range space.Blocks(FamilyOf(p.Addr())) {
			for a := range space.InBlock(b) {
				if err := space.Check(a); err != nil || !p.Contains(a) {
					t.Fatalf("%s: automatic choice offers %s: %v", p, a, err)
				}
			}
			break // one is enough: there may be 2^120
		}
	})
}

// Whatever is read as a key is the only key of what it names.
func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"198.51.100.20", "198.51.100.020", "198.51.100.0-24", "2001-0db8-0000-0000-0000-0000-0000-001f", "2001-0DB8-0000-0000-0000-0000-0000-001f", "2001-db8--1f", "2001-0db8-0000-0000-0000-0000-0000-0000-120", "0000-0000-0000-0000-0000-ffff-0102-0304", "-24", "2001:db8::-120"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := ParseKey(s); err == nil && (Key(a) != s || a.Is4In6() || a.Zone() != "") {
			t.Fatalf("%q is read as the key of %s, which is %q", s, a, Key(a))
		}
		if b, err := ParseBlockKey(s); err == nil && (BlockKey(b) != s || BlockOf(b.Addr()) != b) {
			t.Fatalf("%q is read as the key of block %s, which is %q", s, b, BlockKey(b))
		}
	})
}
