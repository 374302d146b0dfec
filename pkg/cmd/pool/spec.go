package pool

import (
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// specFlags are the flags that describe a pool.
type specFlags struct {
	cidrs, ranges, exclude, gateways, namespaces []string
	network, profile, attachment                 string
	holdFor                                      time.Duration
}

func (f *specFlags) add(fs *pflag.FlagSet, creating bool) {
	fs.StringSliceVar(&f.cidrs, "cidr", nil, "CIDR of the pool, at most one a family (repeat, or separate with commas)")
	fs.StringSliceVar(&f.ranges, "range", nil, "Range FIRST-LAST that automatic choice may use; by default the whole CIDR")
	fs.StringSliceVar(&f.exclude, "exclude", nil, "Address, range or CIDR that is never given out")
	fs.StringSliceVar(&f.gateways, "gateway", nil, "Gateway address of the network, never given out")
	fs.StringSliceVar(&f.namespaces, "for-namespace", nil, "Namespace whose virtual machines may reserve from the pool; by default all")
	fs.StringVar(&f.profile, "profile", ledger.ProfileAuto, "How addresses are pinned: auto, calico, kube-ovn or spiderpool")
	fs.StringVar(&f.attachment, "attachment", "", "NetworkAttachmentDefinition NAMESPACE/NAME that the pool serves; by default the pod network")
	fs.DurationVar(&f.holdFor, "hold-for", ledger.DefaultHoldFor, "Cool-down of a released address, at least 1m")
	if creating {
		fs.StringVar(&f.network, "network", ledger.DefaultNetwork, "Network domain in which an address is unique")
	}
}

// apply puts the flags that were given into a pool.
func (f *specFlags) apply(fs *pflag.FlagSet, p *ledger.Pool) {
	lists := map[string]struct{ from, to *[]string }{
		"cidr": {&f.cidrs, &p.CIDRs}, "range": {&f.ranges, &p.Ranges}, "exclude": {&f.exclude, &p.Exclude},
		"gateway": {&f.gateways, &p.Gateways}, "for-namespace": {&f.namespaces, &p.Namespaces},
	}
	for name, l := range lists {
		if fs.Changed(name) {
			*l.to = slices.DeleteFunc(slices.Clone(*l.from), func(s string) bool { return s == "" })
		}
	}
	for name, s := range map[string]struct{ from, to *string }{"network": {&f.network, &p.Network}, "profile": {&f.profile, &p.Profile}, "attachment": {&f.attachment, &p.Attachment}} {
		if fs.Changed(name) {
			*s.to = *s.from
		}
	}
	if fs.Changed("hold-for") {
		p.HoldFor = f.holdFor.String()
	}
}
