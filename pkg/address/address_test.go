package address

import (
	"errors"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
)

func mustSpace(t *testing.T, cidrs, ranges, exclude, gateways string) *Space {
	t.Helper()
	s, err := parseSpace(cidrs, ranges, exclude, gateways)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parseSpace(cidrs, ranges, exclude, gateways string) (*Space, error) {
	var ps []netip.Prefix
	for _, f := range strings.Fields(cidrs) {
		p, err := ParsePrefix(f)
		if err != nil {
			return nil, err
		}
		ps = append(ps, p)
	}
	list := func(s string) (out []netipx.IPRange, err error) {
		for _, f := range strings.Fields(s) {
			r, err := ParseRange(f)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
		return out, nil
	}
	rs, err := list(ranges)
	if err != nil {
		return nil, err
	}
	xs, err := list(exclude)
	if err != nil {
		return nil, err
	}
	var gs []netip.Addr
	for _, f := range strings.Fields(gateways) {
		gs = append(gs, netip.MustParseAddr(f))
	}
	return NewSpace(ps, rs, xs, gs)
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"198.51.100.20":                  "198.51.100.20",
		"2001:0db8:0:0::1":               "2001:db8::1",
		"2001:DB8::A":                    "2001:db8::a",
		"2001:db8:0000:0000:0000:0:0:20": "2001:db8::20",
	} {
		a, err := Parse(in)
		if err != nil || a.String() != want {
			t.Errorf("Parse(%q) = %v, %v; want %s", in, a, err, want)
		}
	}
	for in, want := range map[string]string{
		"198.51.100.20/24":        "write 198.51.100.20",
		"fe80::1%eth0":            "zone",
		"::ffff:198.51.100.20":    "write 198.51.100.20",
		"198.51.100":              "not an IP address",
		"":                        "not an IP address",
		"198.51.100.020":          "not an IP address",
		"198.51.100.256":          "not an IP address",
		`["198.51.100.20"]`:       "not an IP address",
		"198.51.100.20,198.51.1.": "not an IP address",
	} {
		if _, err := Parse(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q): %v; want an error with %q", in, err, want)
		}
	}
}

func TestParsePrefixNamesTheRightOne(t *testing.T) {
	_, err := ParsePrefix("198.51.100.5/24")
	if err == nil || !strings.Contains(err.Error(), "did you mean 198.51.100.0/24") {
		t.Errorf("host bits: %v", err)
	}
	for _, bad := range []string{"198.51.100.0", "198.51.100.0/33", "x/24", "::ffff:198.51.100.0/120"} {
		if _, err := ParsePrefix(bad); err == nil {
			t.Errorf("ParsePrefix(%q) accepted", bad)
		}
	}
}

func TestParseRange(t *testing.T) {
	for in, want := range map[string]string{
		"198.51.100.10-198.51.100.20":     "198.51.100.10-198.51.100.20",
		" 198.51.100.10 - 198.51.100.20 ": "198.51.100.10-198.51.100.20",
		"198.51.100.7":                    "198.51.100.7",
		"198.51.100.96/29":                "198.51.100.96-198.51.100.103",
		"2001:DB8::1-2001:db8::ff":        "2001:db8::1-2001:db8::ff",
	} {
		r, err := ParseRange(in)
		if err != nil || FormatRange(r) != want {
			t.Errorf("ParseRange(%q) = %v, %v; want %s", in, r, err, want)
		}
	}
	for _, bad := range []string{"198.51.100.20-198.51.100.10", "198.51.100.1-2001:db8::1", "a-b", "-", "198.51.100.1-"} {
		if _, err := ParseRange(bad); err == nil {
			t.Errorf("ParseRange(%q) accepted", bad)
		}
	}
}

// C04: gateway, network, broadcast and excluded addresses; addresses are compared, not spellings;
// the last IPv6 address and both of a /31 are ordinary.
func TestC04CheckRules(t *testing.T) {
	p1 := mustSpace(t, "198.51.100.0/24 2001:db8::/64", "198.51.100.10-198.51.100.200", "198.51.100.50 198.51.100.96/29", "198.51.100.1 2001:db8::1")
	for in, want := range map[string]Rule{
		"198.51.100.0":                  RuleNetwork,
		"198.51.100.1":                  RuleGateway,
		"198.51.100.255":                RuleBroadcast,
		"198.51.100.50":                 RuleExcluded,
		"198.51.100.103":                RuleExcluded,
		"203.0.113.7":                   RuleOutside,
		"2001:db9::1":                   RuleOutside,
		"2001:0db8:0:0::1":              RuleGateway,
		"2001:db8::":                    RuleAnycast,
		"198.51.100.20":                 "",
		"198.51.100.250":                "", // outside the automatic range, inside the CIDR
		"198.51.100.104":                "",
		"2001:db8::ffff:ffff:ffff:ffff": "",
	} {
		a, err := Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		var got *NotAllowedError
		err = p1.Check(a)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v; want it allowed", in, err)
		case want != "" && (!errors.As(err, &got) || got.Rule != want):
			t.Errorf("%s: %v; want rule %s", in, err, want)
		}
	}
	if err := mustSpace(t, "198.51.100.0/24", "", "", "").Check(netip.MustParseAddr("2001:db8::5")); err == nil || !strings.Contains(err.Error(), "IPv6") {
		t.Errorf("family without CIDR: %v", err)
	}
}

func TestSmallAndEdgePrefixes(t *testing.T) {
	for cidr, want := range map[string]string{
		"198.51.100.6/31":    "198.51.100.6 198.51.100.7",
		"198.51.100.6/32":    "198.51.100.6",
		"198.51.100.4/30":    "198.51.100.5 198.51.100.6",
		"2001:db8::2/127":    "2001:db8::2 2001:db8::3",
		"2001:db8::2/128":    "2001:db8::2",
		"2001:db8::4/126":    "2001:db8::5 2001:db8::6 2001:db8::7",
		"255.255.255.252/30": "255.255.255.253 255.255.255.254",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		s := mustSpace(t, cidr, "", "", "")
		f := FamilyOf(netip.MustParsePrefix(cidr).Addr())
		var got []string
		for b := range s.Blocks(f) {
			for a := range s.InBlock(b) {
				got = append(got, a.String())
				if err := s.Check(a); err != nil {
					t.Errorf("%s: automatic choice offers %s, which Check refuses: %v", cidr, a, err)
				}
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v; want %s", cidr, got, want)
		}
		if s.Count(f).Cmp(big.NewInt(int64(len(got)))) != 0 {
			t.Errorf("%s: counts %s of %d", cidr, s.Count(f), len(got))
		}
	}
}

func TestBlocks(t *testing.T) {
	s := mustSpace(t, "198.51.0.0/16 2001:db8::/64", "198.51.100.250-198.51.102.5 198.51.102.9 198.51.200.0/24", "", "")
	var got []string
	for b := range s.Blocks(IPv4) {
		got = append(got, b.String())
	}
	if want := []string{"198.51.100.0/24", "198.51.101.0/24", "198.51.102.0/24", "198.51.200.0/24"}; !slices.Equal(got, want) {
		t.Errorf("blocks %v; want %v", got, want)
	}
	n := 0
	for b := range s.Blocks(IPv6) { // 2^56 of them: only as many as are asked for are made
		if n++; n == 3 {
			if b.String() != "2001:db8::200/120" {
				t.Errorf("third IPv6 block %s", b)
			}
			break
		}
	}
	if want, _ := new(big.Int).SetString("18446744073709551615", 10); s.Count(IPv6).Cmp(want) != 0 {
		t.Errorf("an IPv6 /64 has %s addresses; want %s", s.Count(IPv6), want)
	}
}

func TestNewSpaceRefuses(t *testing.T) {
	for _, c := range []struct{ cidrs, ranges, exclude, gateways, want string }{
		{"", "", "", "", "needs a CIDR"},
		{"198.51.100.0/24 203.0.113.0/24", "", "", "", "two IPv4 CIDRs"},
		{"198.51.100.0/24", "198.51.101.1-198.51.101.5", "", "", "not inside"},
		{"198.51.100.0/24", "198.51.100.250-198.51.101.5", "", "", "not inside"},
		{"198.51.100.0/24", "", "203.0.113.1", "", "outside"},
		{"198.51.100.0/24", "", "", "203.0.113.1", "gateway 203.0.113.1 is outside"},
		{"198.51.100.0/30", "", "198.51.100.0/30", "", "no address is left"},
	} {
		if _, err := parseSpace(c.cidrs, c.ranges, c.exclude, c.gateways); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestKeys(t *testing.T) {
	for in, want := range map[string]string{
		"198.51.100.20": "198.51.100.20",
		"2001:db8::1f":  "2001-0db8-0000-0000-0000-0000-0000-001f",
	} {
		a := netip.MustParseAddr(in)
		if Key(a) != want {
			t.Errorf("Key(%s) = %s", in, Key(a))
		}
		if back, err := ParseKey(want); err != nil || back != a {
			t.Errorf("ParseKey(%s) = %v, %v", want, back, err)
		}
		if p, err := ParseBlockKey(BlockKey(BlockOf(a))); err != nil || p != BlockOf(a) {
			t.Errorf("block of %s: %v, %v", in, p, err)
		}
	}
	for _, bad := range []string{"2001-db8--1f", "198.51.100.020", "x", "", "2001:db8::1f", "2001-0DB8-0000-0000-0000-0000-0000-001f"} {
		if a, err := ParseKey(bad); err == nil {
			t.Errorf("ParseKey(%q) = %v", bad, a)
		}
	}
	for _, bad := range []string{"198.51.100.0-25", "198.51.100.5-24", "198.51.100.0", "-24", "2001-0db8-0000-0000-0000-0000-0000-0000-64"} {
		if p, err := ParseBlockKey(bad); err == nil {
			t.Errorf("ParseBlockKey(%q) = %v", bad, p)
		}
	}
}
