package address

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

// octets draws the bytes of an address; those at the ends of their range are likely, so that runs
// of zeros and the ends of the address space come up.
func octets(t *rapid.T, n int) []byte {
	return rapid.SliceOfN(rapid.OneOf(rapid.Just(byte(0)), rapid.Just(byte(255)), rapid.Byte()), n, n).Draw(t, "octets")
}

func anyAddr(t *rapid.T) netip.Addr {
	a, _ := netip.AddrFromSlice(octets(t, rapid.SampledFrom([]int{4, 16}).Draw(t, "size")))
	return a.Unmap()
}

// groups are the eight numbers of an IPv6 address.
func groups(b []byte) (out []uint16) {
	for i := 0; i < len(b); i += 2 {
		out = append(out, uint16(b[i])<<8|uint16(b[i+1]))
	}
	return out
}

// canonical writes an IPv6 address by the rules of RFC 5952, section 4, anew: no leading zeros,
// lower case, "::" for the first of the longest runs of two or more zero groups.
func canonical(g []uint16) string {
	start, length := 0, 0
	for i := range g {
		n := 0
		for i+n < len(g) && g[i+n] == 0 {
			n++
		}
		if n > length {
			start, length = i, n
		}
	}
	write := func(g []uint16) string {
		var s []string
		for _, x := range g {
			s = append(s, strconv.FormatUint(uint64(x), 16))
		}
		return strings.Join(s, ":")
	}
	if length < 2 {
		return write(g)
	}
	return write(g[:start]) + "::" + write(g[start+length:])
}

// spelling draws one of the ways to write an IPv6 address (RFC 4291, 2.2).
func spelling(t *rapid.T, b []byte) string {
	g := groups(b)
	var parts []string
	for _, x := range g {
		s := strconv.FormatUint(uint64(x), 16)
		s = strings.Repeat("0", rapid.IntRange(0, 4-len(s)).Draw(t, "leading zeros")) + s
		if rapid.Bool().Draw(t, "upper") {
			s = strings.ToUpper(s)
		}
		parts = append(parts, s)
	}
	if rapid.Bool().Draw(t, "dotted") {
		parts = append(parts[:6], fmt.Sprintf("%d.%d.%d.%d", b[12], b[13], b[14], b[15]))
	}
	// "::" may stand for any run of zero groups, the dotted ones not among them.
	from := rapid.IntRange(0, 7).Draw(t, "run")
	to := from
	for to < len(parts) && to < 8 && g[to] == 0 && !strings.Contains(parts[to], ".") {
		to++
	}
	if to == from || rapid.Bool().Draw(t, "whole") {
		return strings.Join(parts, ":")
	}
	to = rapid.IntRange(from+1, to).Draw(t, "run ends")
	return strings.Join(parts[:from], ":") + "::" + strings.Join(parts[to:], ":")
}

func TestEverySpellingIsOneAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := octets(t, 16)
		want, _ := netip.AddrFromSlice(b)
		s := spelling(t, b)
		a, err := Parse(s)
		if want.Is4In6() {
			if err == nil {
				t.Fatalf("Parse(%q) = %s: two names for one number", s, a)
			}
			return
		}
		if err != nil || a != want || a.String() != canonical(groups(b)) {
			t.Fatalf("Parse(%q) = %s, %v; want %s", s, a, err, canonical(groups(b)))
		}
		for _, zone := range []string{"%0", "%eth0", "%" + s} {
			if a, err := Parse(s + zone); err == nil {
				t.Fatalf("Parse(%q) = %s", s+zone, a)
			}
		}
	})
}

// RFC 4291, 2.5.5.2: ::ffff:198.51.100.20 and 198.51.100.20 are one number. Only the IPv4 spelling
// is taken, and the error says it.
func TestMappedAddressesAreRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v4 := octets(t, 4)
		s := spelling(t, append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255}, v4...))
		want := fmt.Sprintf("write %d.%d.%d.%d", v4[0], v4[1], v4[2], v4[3])
		if a, err := Parse(s); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Fatalf("Parse(%q) = %s, %v; want %q", s, a, err, want)
		}
		for _, r := range []string{s, s + "-" + s, s + "/128", s + "/120"} {
			if got, err := ParseRange(r); err == nil {
				t.Fatalf("ParseRange(%q) = %s", r, got)
			}
		}
	})
}

// "010" is eight to inet_aton and ten to others: an IPv4 address has one spelling.
func TestLeadingZerosAreRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []string
		for _, x := range octets(t, 4) {
			parts = append(parts, strconv.Itoa(int(x)))
		}
		s := strings.Join(parts, ".")
		if a, err := Parse(s); err != nil || a.String() != s {
			t.Fatalf("Parse(%q) = %s, %v", s, a, err)
		}
		i := rapid.IntRange(0, 3).Draw(t, "octet")
		parts[i] = strings.Repeat("0", rapid.IntRange(1, 3).Draw(t, "zeros")) + parts[i]
		s = strings.Join(parts, ".")
		for _, s := range []string{s, "::" + s, "64:ff9b::" + s} {
			if a, err := Parse(s); err == nil {
				t.Fatalf("Parse(%q) = %s", s, a)
			}
		}
	})
	if a, err := Parse("010.0.0.1"); err == nil {
		t.Errorf("010.0.0.1 is taken for %s", a)
	}
}

// Keys are names that a ConfigMap may have, one an address; those of IPv6 sort as the addresses.
func TestKeysNameAddresses(t *testing.T) {
	valid := regexp.MustCompile(`^[0-9a-f]([-.0-9a-f]*[0-9a-f])?$`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyAddr(t), anyAddr(t)
		if back, err := ParseKey(Key(a)); err != nil || back != a || !valid.MatchString(Key(a)) {
			t.Fatalf("key %q of %s is read as %s, %v", Key(a), a, back, err)
		}
		if (Key(a) == Key(b)) != (a == b) {
			t.Fatalf("%s and %s have the keys %q and %q", a, b, Key(a), Key(b))
		}
		if a.Is6() && b.Is6() && strings.Compare(Key(a), Key(b)) != a.Compare(b) {
			t.Fatalf("keys %q and %q sort otherwise than their addresses", Key(a), Key(b))
		}
		block := BlockOf(a)
		if back, err := ParseBlockKey(BlockKey(block)); err != nil || back != block || !valid.MatchString(BlockKey(block)) {
			t.Fatalf("block key %q of %s is read as %s, %v", BlockKey(block), block, back, err)
		}
		// An address and its neighbour share a block unless a last byte of 255 lies between them.
		low := a.AsSlice()
		if low[len(low)-1] = 0; !slices.Equal(block.Addr().AsSlice(), low) {
			t.Fatalf("the block of %s starts at %s", a, block.Addr())
		}
		if next := a.Next(); next.IsValid() && (BlockOf(next) == block) != (a.AsSlice()[len(low)-1] != 255) {
			t.Fatalf("%s is in %s, %s in %s", a, block, next, BlockOf(next))
		}
	})
}

func TestRangesAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyAddr(t), anyAddr(t)
		r, err := ParseRange(a.String() + rapid.SampledFrom([]string{"-", " - "}).Draw(t, "dash") + b.String())
		if ordered := a.Is4() == b.Is4() && a.Compare(b) <= 0; (err == nil) != ordered {
			t.Fatalf("range from %s to %s: %v", a, b, err)
		}
		if err != nil {
			return
		}
		if back, err := ParseRange(FormatRange(r)); err != nil || back != r || r.From() != a || r.To() != b {
			t.Fatalf("range from %s to %s: %q is read back as %s, %v", a, b, FormatRange(r), back, err)
		}
	})
}

// small is one CIDR of a drawn pool with what lies in it, and for each of its addresses what the
// pool has to say. Addresses are numbered from the prefix's first; nothing here knows netipx.
type small struct {
	family   Family
	base     *big.Int
	bits     int
	size     int
	ranges   [][2]int
	exclude  [][2]int
	gateways []int
}

func (s small) at(i int) netip.Addr {
	raw := make([]byte, 4)
	if s.family == IPv6 {
		raw = make([]byte, 16)
	}
	a, _ := netip.AddrFromSlice(new(big.Int).Add(s.base, big.NewInt(int64(i))).FillBytes(raw))
	return a
}

// exists says whether the address space goes that far.
func (s small) exists(i int) bool {
	n := new(big.Int).Add(s.base, big.NewInt(int64(i)))
	return n.Sign() >= 0 && n.BitLen() <= s.width()
}

func (s small) width() int {
	if s.family == IPv4 {
		return 32
	}
	return 128
}

func (s small) within(list [][2]int, i int) bool {
	return slices.ContainsFunc(list, func(r [2]int) bool { return r[0] <= i && i <= r[1] })
}

func (s small) rule(i int) Rule {
	switch {
	case i < 0 || i >= s.size:
		return RuleOutside
	case s.family == IPv4 && s.bits < 31 && i == 0:
		return RuleNetwork
	case s.family == IPv4 && s.bits < 31 && i == s.size-1:
		return RuleBroadcast
	case s.family == IPv6 && s.bits < 127 && i == 0:
		return RuleAnycast
	case slices.Contains(s.gateways, i):
		return RuleGateway
	case s.within(s.exclude, i):
		return RuleExcluded
	}
	return ""
}

func (s small) automatic(i int) bool {
	return s.rule(i) == "" && (len(s.ranges) == 0 || s.within(s.ranges, i))
}

// drawSmall draws a CIDR of up to 1024 addresses anywhere, the ends of the address space included.
func drawSmall(t *rapid.T, f Family) small {
	s := small{family: f}
	host := rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(7, 10)).Draw(t, "host bits")
	s.bits, s.size = s.width()-host, 1<<host
	s.base = new(big.Int).SetBytes(octets(t, s.width()/8))
	if rapid.IntRange(0, 3).Draw(t, "place") == 0 {
		s.base.Sub(new(big.Int).Lsh(big.NewInt(1), uint(s.width())), big.NewInt(1))
	}
	s.base.Rsh(s.base, uint(host)).Lsh(s.base, uint(host))
	offset := func(from, to int) *rapid.Generator[int] {
		edges := []int{from, to}
		for _, i := range []int{0, 1, 254, 255, 256, 257, 511, 512, 767, 768, s.size - 2, s.size - 1} {
			if from <= i && i <= to {
				edges = append(edges, i)
			}
		}
		return rapid.OneOf(rapid.SampledFrom(edges), rapid.IntRange(from, to))
	}
	span := func(from, to int) [2]int {
		a, b := offset(from, to).Draw(t, "from"), offset(from, to).Draw(t, "to")
		return [2]int{min(a, b), max(a, b)}
	}
	for range rapid.IntRange(0, 3).Draw(t, "ranges") {
		s.ranges = append(s.ranges, span(0, s.size-1))
	}
	for range rapid.IntRange(0, 4).Draw(t, "exclusions") {
		r := span(-300, s.size+300)
		if r[1] >= 0 && r[0] < s.size && s.exists(r[0]) && s.exists(r[1]) {
			s.exclude = append(s.exclude, r)
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "gateways") {
		s.gateways = append(s.gateways, offset(0, s.size-1).Draw(t, "gateway"))
	}
	return s
}

// Every function of a Space says what asking address by address says.
func TestSpaceAgreesWithCounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []small
		for _, f := range rapid.SampledFrom([][]Family{{IPv4}, {IPv6}, {IPv4, IPv6}, {IPv6, IPv4}}).Draw(t, "families") {
			parts = append(parts, drawSmall(t, f))
		}
		var cidrs []netip.Prefix
		var ranges, exclude []netipx.IPRange
		var gateways []netip.Addr
		left := 0
		for _, p := range parts {
			cidrs = append(cidrs, netip.PrefixFrom(p.at(0), p.bits))
			for _, r := range p.ranges {
				ranges = append(ranges, netipx.IPRangeFrom(p.at(r[0]), p.at(r[1])))
			}
			for _, r := range p.exclude {
				exclude = append(exclude, netipx.IPRangeFrom(p.at(r[0]), p.at(r[1])))
			}
			for _, g := range p.gateways {
				gateways = append(gateways, p.at(g))
			}
			for i := range p.size {
				if p.automatic(i) {
					left++
				}
			}
		}
		s, err := NewSpace(cidrs, ranges, exclude, gateways)
		if (err == nil) != (left > 0) {
			t.Fatalf("%d addresses are left: %v", left, err)
		}
		if err != nil {
			return
		}
		for _, p := range parts {
			p.agree(t, s)
		}
		if len(parts) == 1 {
			other := IPv4 + IPv6 - parts[0].family
			for b := range s.Blocks(other) {
				t.Fatalf("block %s of a family without CIDR", b)
			}
			if s.Count(other).Sign() != 0 {
				t.Fatalf("%s addresses of a family without CIDR", s.Count(other))
			}
		}
	})
}

func (s small) agree(t *rapid.T, space *Space) {
	var want, got []netip.Addr
	var blocks []netip.Prefix
	for i := -1; i <= s.size; i++ {
		if !s.exists(i) {
			continue
		}
		a := s.at(i)
		var refused *NotAllowedError
		err := space.Check(a)
		if rule := s.rule(i); rule == "" && err != nil || rule != "" && (!errors.As(err, &refused) || refused.Rule != rule || refused.Addr != a) {
			t.Fatalf("Check(%s) = %v; want rule %q", a, err, rule)
		}
		if space.Automatic(a) != s.automatic(i) {
			t.Fatalf("Automatic(%s) = %t", a, space.Automatic(a))
		}
		if s.automatic(i) {
			want = append(want, a)
			if raw := a.AsSlice(); len(blocks) == 0 || !blocks[len(blocks)-1].Contains(a) {
				raw[len(raw)-1] = 0
				first, _ := netip.AddrFromSlice(raw)
				blocks = append(blocks, netip.PrefixFrom(first, s.width()-8))
			}
		}
	}
	if b := slices.Collect(space.Blocks(s.family)); !slices.Equal(b, blocks) {
		t.Fatalf("Blocks are %v; want %v", b, blocks)
	}
	for _, b := range blocks {
		got = slices.AppendSeq(got, space.InBlock(b))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("InBlock has %v; want %v", got, want)
	}
	if space.Count(s.family).Cmp(big.NewInt(int64(len(want)))) != 0 {
		t.Fatalf("Count is %s of %d", space.Count(s.family), len(want))
	}
}

// The last block of the address space ends: there is no next address to go on with.
func TestLastBlockOfTheAddressSpace(t *testing.T) {
	for cidr, want := range map[string]struct {
		last  string
		count int
	}{
		"255.255.255.0/24": {"255.255.255.254", 254},
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120": {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 255},
	} {
		s := mustSpace(t, cidr, "", "", "")
		prefix := netip.MustParsePrefix(cidr)
		if got := slices.Collect(s.Blocks(FamilyOf(prefix.Addr()))); !slices.Equal(got, []netip.Prefix{prefix}) {
			t.Errorf("%s: blocks %v", cidr, got)
		}
		got := slices.Collect(s.InBlock(prefix))
		if len(got) != want.count || got[len(got)-1].String() != want.last {
			t.Errorf("%s: %d addresses, the last %s", cidr, len(got), got[len(got)-1])
		}
	}
}

// A prefix is for hosts exactly if its own first and last address are, and it holds the first
// address of no prefix that is not.
func TestForHostsAgreesWithItsAddresses(t *testing.T) {
	refused := func(a netip.Addr) bool {
		b := a.AsSlice()
		if a.Is4() {
			return b[0] == 0 || b[0] == 127 || b[0] >= 224 || b[0] == 169 && b[1] == 254
		}
		return a.IsUnspecified() || a.IsLoopback() || a.Is4In6() || b[0] == 0xff || b[0] == 0xfe && b[1]&0xc0 == 0x80
	}
	firsts := []string{"0.0.0.0", "127.0.0.0", "169.254.0.0", "224.0.0.0", "::", "::1", "::ffff:0:0", "fe80::", "ff00::"}
	edges := append([]string{
		"0.255.255.255", "127.255.255.255", "169.254.255.255", "255.255.255.255", "::ffff:255.255.255.255",
		"febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	}, firsts...)
	for _, e := range edges {
		a := netip.MustParseAddr(e)
		if ForHosts(netip.PrefixFrom(a, a.BitLen())) == nil {
			t.Errorf("a host may have %s", e)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a := anyAddr(t)
		if rapid.Bool().Draw(t, "near") {
			a = netip.MustParseAddr(rapid.SampledFrom(edges).Draw(t, "edge"))
			if next := rapid.SampledFrom([]netip.Addr{a, a.Prev(), a.Next()}).Draw(t, "beside"); next.IsValid() {
				a = next
			}
		}
		p, err := a.Prefix(rapid.OneOf(rapid.Just(a.BitLen()), rapid.IntRange(0, a.BitLen())).Draw(t, "bits"))
		if err != nil {
			t.Fatal(err)
		}
		want := refused(p.Addr()) || refused(netipx.PrefixLastIP(p))
		for _, f := range firsts {
			want = want || p.Contains(netip.MustParseAddr(f))
		}
		if err := ForHosts(p); (err != nil) != want {
			t.Fatalf("ForHosts(%s) = %v", p, err)
		}
	})
}
