package address

import (
	"fmt"
	"net/netip"
)

// notForHosts are the prefixes of which no host has an address of its own. Ranges that are set
// aside for documentation, tests or private networks are not among them: they route as others do.
var notForHosts = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this host on this network"},         // RFC 1122, 3.2.1.3 (a)
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},                        // RFC 1122, 3.2.1.3 (g)
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},                   // RFC 3927: hosts choose these themselves
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},                       // RFC 5771
	{netip.MustParsePrefix("255.255.255.255/32"), "the limited broadcast"},    // RFC 919, section 7
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved, the former class E"},    // RFC 1112, section 4
	{netip.MustParsePrefix("::/128"), "the unspecified address"},              // RFC 4291, 2.5.2
	{netip.MustParsePrefix("::1/128"), "loopback"},                            // RFC 4291, 2.5.3
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4 addresses mapped to IPv6"}, // RFC 4291, 2.5.5.2
	{netip.MustParsePrefix("fe80::/10"), "link-local"},                        // RFC 4291, 2.5.6
	{netip.MustParsePrefix("ff00::/8"), "multicast"},                          // RFC 4291, 2.7
}

// ForHosts returns an error unless every address of a prefix is one that a host may have to be
// reached at: a prefix that only overlaps others is refused too.
func ForHosts(c netip.Prefix) error {
	for _, x := range notForHosts {
		if !c.Overlaps(x.prefix) {
			continue
		}
		how := "lies in"
		if c.Bits() < x.prefix.Bits() { // of two prefixes that overlap, one holds the other
			how = "contains"
		} else if c == x.prefix {
			how = "is"
		}
		return fmt.Errorf("CIDR %s %s %s, %s: no machine can be reached there, choose a unicast prefix", c, how, x.prefix, x.what)
	}
	return nil
}
