package ledger

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// Defaults and limits of a pool.
const (
	DefaultHoldFor = 10 * time.Minute
	// MinHoldFor keeps a freed address away from a request that is still on its way to the API
	// server: such a request is given up there within a minute.
	MinHoldFor  = time.Minute
	ProfileAuto = "auto"
	// maxOpenBlocks is a whole IPv4 /8, 16 million addresses. Only an edit by hand gets there.
	maxOpenBlocks = 1 << 16
)

// Normalise fills the defaults and rewrites all addresses in canonical form. It returns an error
// for whatever can't be understood.
func (p Pool) Normalise() (Pool, error) {
	fail := func(format string, args ...any) (Pool, error) {
		return Pool{}, fmt.Errorf("pool %s: "+format, append([]any{p.Name}, args...)...)
	}
	if p.Network == "" {
		p.Network = DefaultNetwork
	}
	if p.Profile == "" {
		p.Profile = ProfileAuto
	}
	if p.OpenBlocks < 1 {
		p.OpenBlocks = 1
	}
	if p.OpenBlocks > maxOpenBlocks {
		return fail("openBlocks %d is more than the %d that a pool may open", p.OpenBlocks, maxOpenBlocks)
	}
	for what, name := range map[string]string{"name": p.Name, "network": p.Network} {
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			return fail("%s %q: %s", what, name, errs[0])
		}
	}
	for _, ns := range p.Namespaces {
		if errs := validation.IsDNS1123Label(ns); len(errs) > 0 {
			return fail("namespace %q: %s", ns, errs[0])
		}
	}
	if p.HoldFor == "" {
		p.HoldFor = DefaultHoldFor.String()
	}
	hold, err := time.ParseDuration(p.HoldFor)
	if err != nil || hold < MinHoldFor {
		return fail("hold time %q must be a duration of at least %s", p.HoldFor, MinHoldFor)
	}
	// The caller keeps the lists that it gave.
	p.CIDRs, p.Ranges, p.Exclude, p.Gateways = slices.Clone(p.CIDRs), slices.Clone(p.Ranges), slices.Clone(p.Exclude), slices.Clone(p.Gateways)
	for i, s := range p.CIDRs {
		c, err := address.ParsePrefix(s)
		if err != nil {
			return fail("%w", err)
		}
		if err := address.ForHosts(c); err != nil {
			return fail("%w", err)
		}
		p.CIDRs[i] = c.String()
	}
	for _, list := range [][]string{p.Ranges, p.Exclude} {
		for i, s := range list {
			r, err := address.ParseRange(s)
			if err != nil {
				return fail("%w", err)
			}
			if prefix, ok := r.Prefix(); !ok || r.From() == r.To() {
				list[i] = address.FormatRange(r)
			} else {
				list[i] = prefix.String()
			}
		}
	}
	for i, s := range p.Gateways {
		g, err := address.Parse(s)
		if err != nil {
			return fail("gateway: %w", err)
		}
		p.Gateways[i] = g.String()
	}
	if _, err := p.Space(); err != nil {
		return fail("%w", err)
	}
	return p, nil
}

// Space is the pool's arithmetic.
func (p Pool) Space() (*address.Space, error) {
	cidrs, err := p.Prefixes()
	if err != nil {
		return nil, err
	}
	parse := func(list []string) (out []netipx.IPRange, err error) {
		for _, s := range list {
			r, err := address.ParseRange(s)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
		return out, nil
	}
	ranges, err := parse(p.Ranges)
	if err != nil {
		return nil, err
	}
	exclude, err := parse(p.Exclude)
	if err != nil {
		return nil, err
	}
	var gateways []netip.Addr
	for _, s := range p.Gateways {
		g, err := address.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
		gateways = append(gateways, g)
	}
	return address.NewSpace(cidrs, ranges, exclude, gateways)
}

// Prefixes are the pool's CIDRs.
func (p Pool) Prefixes() ([]netip.Prefix, error) { return parsePrefixes(p.CIDRs) }

func parsePrefixes(list []string) (out []netip.Prefix, err error) {
	for _, s := range list {
		c, err := address.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Hold is the cool-down of a released address.
func (p Pool) Hold() time.Duration {
	if d, err := time.ParseDuration(p.HoldFor); err == nil && d >= MinHoldFor {
		return d
	}
	return DefaultHoldFor
}

// Contains says whether an address lies in one of the pool's CIDRs.
func (p Pool) Contains(a netip.Addr) bool {
	cidrs, err := p.Prefixes()
	return err == nil && slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
}

// Families are the families of the pool's CIDRs, IPv4 first.
func (p Pool) Families() (out []address.Family) {
	cidrs, _ := p.Prefixes()
	for _, f := range address.Families {
		if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return address.FamilyOf(c.Addr()) == f }) {
			out = append(out, f)
		}
	}
	return out
}

// Serves says why machines of a namespace may not reserve from the pool; "" where they may.
func (p Pool) Serves(namespace string) string {
	if len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, namespace) {
		return ""
	}
	return fmt.Sprintf("pool %s is for the namespaces %v, not for %s", p.Name, p.Namespaces, namespace)
}

// open are the blocks of a family that automatic choice uses so far.
func (p Pool) open(s *address.Space, f address.Family) (out []netip.Prefix) {
	for b := range s.Blocks(f) {
		if len(out) == max(p.OpenBlocks, 1) {
			break
		}
		out = append(out, b)
	}
	return out
}
