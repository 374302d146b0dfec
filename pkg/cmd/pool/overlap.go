package pool

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// taken are addresses that something else in the cluster hands out by itself.
type taken struct {
	addresses netipx.IPRange
	// by names what hands them out.
	by string
	// sticky is set where a pool may lie there all the same, if the network plugin gives a pod the
	// address that it is asked for and keeps others off meanwhile.
	sticky bool
}

// overlapError is a pool that would hand out addresses which something else hands out too.
type overlapError struct {
	pool string
	part netipx.IPRange
	taken
	// plugin says why the network plugin does not help.
	plugin string
}

func (e *overlapError) Error() string {
	text := fmt.Sprintf("pool %s: %s would be handed out twice: %s hands out %s", e.pool, address.FormatRange(e.part), e.by, address.FormatRange(e.addresses))
	if e.plugin != "" {
		text += " (" + e.plugin + ")"
	}
	if e.sticky {
		return text + ": choose a CIDR that no node has"
	}
	return text + ": leave it out with --exclude " + address.FormatRange(e.part)
}

// overlap finds the first addresses that a pool may hand out and that are taken; it is pure. sticky
// is what the network plugin of the pod network promises.
func overlap(p ledger.Pool, all []taken, sticky profile.Capability) error {
	space, err := p.Space()
	if err != nil {
		return err
	}
	for _, t := range all {
		part, ok := space.Overlap(t.addresses)
		if !ok || t.sticky && sticky.Answer == profile.Yes {
			continue
		}
		e := &overlapError{pool: p.Name, part: part, taken: t}
		if t.sticky {
			e.plugin = sticky.Reason
		}
		return e
	}
	return nil
}

// metalLB are its pools of addresses for services (metallb.io/v1beta1, spec.addresses: prefixes and
// ranges).
var metalLB = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}

// checkOverlap refuses a pool of the pod network that lies in what load balancers or nodes hand out.
// What can't be read is said, and does not refuse it.
func checkOverlap(ctx context.Context, env *cli.Env, c *cli.Clients, p ledger.Pool) error {
	p, err := p.Normalise()
	if err != nil {
		return err
	}
	var all []taken
	pools := &unstructured.UnstructuredList{}
	// Discovery is open to everybody: where the group is not served nobody has to be allowed to list it.
	_, err = c.Core.Discovery().ServerResourcesForGroupVersion(metalLB.GroupVersion().String())
	if err == nil {
		pools, err = c.Dynamic.Resource(metalLB).List(ctx, metav1.ListOptions{})
	}
	switch {
	case err == nil:
		for i := range pools.Items {
			all = append(all, ofMetalLB(&pools.Items[i])...)
		}
	case !apierrors.IsNotFound(err):
		env.Warn("whether a load balancer hands out addresses of pool %s was not found out: %v", p.Name, err)
	}
	var sticky profile.Capability
	if p.Attachment == "" {
		nodes, err := c.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			env.Warn("whether pool %s lies in the pod CIDR of a node was not found out: %v", p.Name, err)
		} else {
			for i := range nodes.Items {
				n := &nodes.Items[i]
				for _, text := range n.Spec.PodCIDRs {
					if prefix, err := netip.ParsePrefix(text); err == nil {
						all = append(all, taken{netipx.RangeOfPrefix(prefix), "node " + n.Name + " by its pod CIDR", true})
					}
				}
			}
			if slices.ContainsFunc(all, func(t taken) bool { return t.sticky }) {
				if sticky, err = promise(ctx, c, p); err != nil {
					return err
				}
			}
		}
	}
	return overlap(p, all, sticky)
}

// promise is whether the plugin of the pod network gives a machine the address that it asks for.
func promise(ctx context.Context, c *cli.Clients, p ledger.Pool) (profile.Capability, error) {
	cluster, err := profile.Detect(ctx, profile.Reader{Core: c.Core, Dynamic: c.Dynamic})
	if err != nil {
		return profile.Capability{}, err
	}
	iface := machine.Interface{Pod: true}
	plugin, err := cluster.For(ctx, iface)
	if p.Profile != "" && p.Profile != ledger.ProfileAuto {
		plugin, err = cluster.Named(p.Profile)
	}
	if err != nil {
		return profile.Capability{}, err
	}
	return plugin.Capabilities(iface).Choose, nil
}

func ofMetalLB(o *unstructured.Unstructured) (list []taken) {
	texts, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "addresses")
	for _, text := range texts {
		text = strings.ReplaceAll(text, " ", "")
		var r netipx.IPRange
		if prefix, err := netip.ParsePrefix(text); err == nil {
			r = netipx.RangeOfPrefix(prefix.Masked())
		} else if r, err = netipx.ParseIPRange(text); err != nil {
			continue // MetalLB does not understand it either
		}
		list = append(list, taken{addresses: r, by: "ipaddresspool " + o.GetNamespace() + "/" + o.GetName() + " of MetalLB"})
	}
	return list
}
