package profile

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Names of the profiles, for --profile and for pools.
const (
	Calico     = "calico"
	KubeOVN    = "kube-ovn"
	Spiderpool = "spiderpool"
	None       = "none"
)

// Names lists the profiles that can hold addresses.
func Names() []string { return []string{Calico, KubeOVN, Spiderpool} }

// Cluster is what was detected in one cluster. It is safe for concurrent use.
type Cluster struct {
	reader     Reader
	groups     groups
	calico     calicoFacts
	kubeOVN    kubeOVNFacts
	spiderpool spiderpoolFacts
	others     []other
	// unseen is what could not be looked at to find still other plugins.
	unseen []error

	mu          sync.Mutex
	attachments map[string]attachmentResult
}

// Batch returns the cluster for the reads of many machines: a resource of which one object is asked
// for is listed once, and what the lists say stays as it was then.
func (c *Cluster) Batch() *Cluster {
	b := &Cluster{reader: c.reader, groups: c.groups, calico: c.calico, kubeOVN: c.kubeOVN, spiderpool: c.spiderpool, others: c.others, unseen: c.unseen, attachments: map[string]attachmentResult{}}
	b.reader.listed = &listed{resources: map[schema.GroupVersionResource]func() (map[string]*unstructured.Unstructured, error){}}
	return b
}

// For returns the profile of the network that an interface is on. The network decides first: an
// attachment says itself which plugin serves it, and only the pod network is the cluster's. A
// network that can't hold an address has a profile too, which says why. An error means that the
// interface's network does not exist, or that ctx has ended.
func (c *Cluster) For(ctx context.Context, i machine.Interface) (Profile, error) {
	if i.Attachment == "" {
		return c.primary(), ctx.Err()
	}
	a, err := c.attachment(ctx, i.Attachment)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case absent(err):
		return nil, fmt.Errorf("interface %s: networkattachmentdefinition %s does not exist: create it, or correct the network in the virtualmachine's template", i.Name, i.Attachment)
	case err != nil:
		return unverified(fmt.Sprintf("the network of interface %s is unknown: %v", i.Name, err)), nil
	}
	return c.ofAttachment(a, i), nil
}

// Named returns a profile by its name, for --profile and pools that force one. What was not
// detected about the plugin is Unverified.
func (c *Cluster) Named(name string) (Profile, error) {
	switch name {
	case Calico:
		return &calico{calicoFacts: c.calico, reader: c.reader}, nil
	case KubeOVN:
		return &kubeOVN{kubeOVNFacts: c.kubeOVN, reader: c.reader}, nil
	case Spiderpool:
		return &spiderpool{spiderpoolFacts: c.spiderpool, reader: c.reader}, nil
	}
	return nil, fmt.Errorf("unknown profile %q: choose one of %s", name, strings.Join(Names(), ", "))
}

// Profiles lists the plugins that were found, those that may serve the pod network first.
func (c *Cluster) Profiles() []Profile {
	var list []Profile
	for _, f := range []struct {
		name string
		presence
	}{{Calico, c.calico.present}, {KubeOVN, c.kubeOVN.present}, {Spiderpool, c.spiderpool.present}} {
		if f.value || f.failed() != nil {
			p, _ := c.Named(f.name) // the names are ours
			list = append(list, p)
		}
	}
	return list
}

// Unread lists what could not be read and why, so that a report can say what it doesn't know.
func (c *Cluster) Unread() []string {
	var errs []error
	errs = append(errs, c.groups.err)
	errs = append(errs, c.calico.unread()...)
	errs = append(errs, c.kubeOVN.unread()...)
	errs = append(errs, c.spiderpool.unread()...)
	for _, o := range c.others {
		errs = append(errs, o.present.failed())
	}
	errs = append(errs, c.unseen...)
	var list []string
	for _, err := range errs {
		if err != nil && !slices.Contains(list, err.Error()) {
			list = append(list, err.Error())
		}
	}
	return list
}

// primary chooses the profile of the pod network. Several plugins may be in a cluster; only what is
// clear is claimed.
func (c *Cluster) primary() Profile {
	var sure, unsure []Profile
	var reasons []string
	add := func(p Profile, is presence) {
		switch {
		case is.failed() != nil:
			unsure = append(unsure, p)
			reasons = append(reasons, is.failed().Error())
		case is.value:
			sure = append(sure, p)
		}
	}
	add(&calico{calicoFacts: c.calico, reader: c.reader}, c.calico.present)
	if !c.kubeOVN.secondaryOnly {
		add(&kubeOVN{kubeOVNFacts: c.kubeOVN, reader: c.reader}, c.kubeOVN.present)
	}
	for _, o := range c.others {
		add(o.profile(), o.present)
	}
	// Spiderpool is an IPAM: beside another plugin it serves attachments, alone also the pod network.
	if len(sure)+len(unsure) == 0 {
		add(&spiderpool{spiderpoolFacts: c.spiderpool, reader: c.reader}, c.spiderpool.present)
	}
	switch {
	case len(sure) == 0 && c.groups.err != nil:
		return unverified(c.groups.err.Error())
	case len(sure) == 1 && len(unsure) == 0:
		return sure[0]
	case len(sure) == 0 && len(unsure) == 1:
		return unsure[0]
	case len(sure)+len(unsure) > 1:
		return unverified(fmt.Sprintf("several network plugins may serve the pod network: %s; say which with --profile or in the pool%s", names(append(sure, unsure...)), because(reasons)))
	case len(c.unseen) > 0:
		return unverified("the network plugin of the cluster is unknown: " + c.unseen[0].Error())
	}
	return refuse("", "no network plugin that this version knows was found in the cluster")
}

func names(list []Profile) string {
	s := make([]string, len(list))
	for n, p := range list {
		s[n] = p.Name()
		if r, ok := p.(*refusal); ok && r.plugin != "" {
			s[n] = r.plugin
		}
	}
	return strings.Join(s, ", ")
}

func because(reasons []string) string {
	if len(reasons) == 0 {
		return ""
	}
	return " (" + strings.Join(reasons, "; ") + ")"
}

// Within tells a profile the subnets and gateways of the pool that addresses come from. Spiderpool
// needs them for an address whose subnet it has no pool of; the others take no notice.
func Within(p Profile, cidrs []netip.Prefix, gateways []netip.Addr) Profile {
	if s, ok := p.(*spiderpool); ok {
		within := *s
		within.cidrs, within.gateways = cidrs, gateways
		return &within
	}
	return p
}
