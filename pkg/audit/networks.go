package audit

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Plugin is what the rules ask of a network plugin. profile.Profile is one.
type Plugin interface {
	Name() string
	Keys(machine.Interface) []string
	Claims(map[string]string, machine.Interface) ([]netip.Addr, error)
}

// Networks are the networks of the cluster and the plugins that serve them. The zero value knows
// nothing, and the rules then go by what virtual machines have recorded about themselves.
type Networks struct {
	// Primary is the plugin of the pod network, nil where it is not established.
	Primary Plugin
	// Attachments are those of NetworkAttachmentDefinitions, by namespace/name.
	Attachments map[string]Plugin
	// Named are all plugins that a pool may name.
	Named map[string]Plugin
	// Reads says whether a plugin of the cluster reads an annotation; nil where that is unknown.
	Reads func(key string) profile.Capability
}

// of returns the plugin of an interface's network. Where it is not established, annotations are
// read by whoever's they are: whichever plugin it is, they ask for what they say, or for nothing.
func (n Networks) of(i machine.Interface) Plugin {
	p := n.Primary
	if i.Attachment != "" {
		p = n.Attachments[i.Attachment]
	}
	if p == nil && len(n.Named) > 0 {
		return anyPlugin(n.Named)
	}
	return p
}

// anyPlugin reads annotations as the plugin does whose keys they have.
type anyPlugin map[string]Plugin

// Name implements Plugin.
func (anyPlugin) Name() string { return "any" }

// Keys implements Plugin.
func (a anyPlugin) Keys(i machine.Interface) []string {
	var keys []string
	for _, p := range a.sorted() {
		keys = append(keys, p.Keys(i)...)
	}
	return keys
}

// Claims implements Plugin.
func (a anyPlugin) Claims(annotations map[string]string, i machine.Interface) ([]netip.Addr, error) {
	for _, p := range a.sorted() {
		if claims, err := p.Claims(annotations, i); err != nil || len(claims) > 0 {
			return claims, err
		}
	}
	return nil, nil
}

func (a anyPlugin) sorted() []Plugin {
	list := make([]Plugin, 0, len(a))
	for _, name := range slices.Sorted(maps.Keys(a)) {
		list = append(list, a[name])
	}
	return list
}

// Unestablished are the networks of a cluster of which nothing is known.
func Unestablished() Networks {
	n := Networks{Named: map[string]Plugin{}}
	var nothing profile.Cluster
	for _, name := range profile.Names() {
		if p, err := nothing.Named(name); err == nil {
			n.Named[name] = p
		}
	}
	return n
}

// NetworksOf resolves the networks of all interfaces in a snapshot once, so that the rules need
// not ask the cluster. why says what could not be established about the pod network.
func NetworksOf(ctx context.Context, c *profile.Cluster, s *Snapshot) (n Networks, why string, err error) {
	n = Networks{Attachments: map[string]Plugin{}, Named: map[string]Plugin{}, Reads: c.Reads}
	for _, name := range profile.Names() {
		if n.Named[name], err = c.Named(name); err != nil {
			return n, "", err
		}
	}
	primary := machine.Interface{Pod: true}
	p, err := c.For(ctx, primary)
	if err != nil {
		return n, "", err
	}
	if n.Primary = established(p, primary); n.Primary == nil {
		why = p.Capabilities(primary).Choose.Reason
	}
	for _, i := range attached(s) {
		if _, done := n.Attachments[i.Attachment]; done {
			continue
		}
		p, err := c.For(ctx, i)
		switch {
		case ctx.Err() != nil:
			return n, why, ctx.Err()
		case err != nil:
			n.Attachments[i.Attachment] = nil // the attachment does not exist
		default:
			n.Attachments[i.Attachment] = established(p, i)
		}
	}
	return n, why, nil
}

// established returns a profile as a plugin, nil for one that says only that nothing is known.
func established(p profile.Profile, i machine.Interface) Plugin {
	if p.Name() == profile.None && p.Capabilities(i).Choose.Answer == profile.Unverified {
		return nil
	}
	return p
}

// attached are the interfaces on attachments, of templates and of running instances.
func attached(s *Snapshot) []machine.Interface {
	var list []machine.Interface
	add := func(all []machine.Interface) {
		for _, i := range all {
			if i.Attachment != "" {
				list = append(list, i)
			}
		}
	}
	for n := range s.VMs {
		add((&machine.View{VM: &s.VMs[n]}).Interfaces())
	}
	for n := range s.VMIs {
		add(machine.InstanceInterfaces(&s.VMIs[n]))
	}
	return list
}
