package audit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Refreshed is what a scan has written.
type Refreshed struct {
	// Recorded are the rows of state foreign that are new or corrected, Freed those that are gone.
	Recorded, Freed []ledger.Entry
	// Unseen says what could not be looked at: where it says something, no row was freed.
	Unseen []string
}

// Refresh looks for claims of others in the whole cluster and brings the ledger's rows of state
// foreign up to date. A row of any other state stays as it is.
func (c *Cluster) Refresh(ctx context.Context) (*Refreshed, error) {
	all := *c
	all.Namespace, all.claims = "", true
	s, err := all.Load(ctx)
	if err != nil {
		return nil, err
	}
	o := ClaimsOfOthers(s)
	if why := otherClusters(s); why != "" {
		return nil, fmt.Errorf("claims of others were not looked for: %s", why)
	}
	out := &Refreshed{Unseen: o.Unseen}
	if out.Recorded, err = c.Ledger.Record(ctx, o.Claims); err != nil {
		return out, err
	}
	out.Freed, err = c.Ledger.Forget(ctx, o.Gone)
	return out, err
}

// otherClusters says that the ledger is another cluster's: what is seen here proves nothing there.
func otherClusters(s *Snapshot) string {
	for _, n := range s.Ledger.Networks {
		if n.Cluster != "" && s.Cluster != "" && n.Cluster != s.Cluster {
			return fmt.Sprintf("the ledger in namespace %s is of cluster %s, this is cluster %s", s.LedgerNamespace, n.Cluster, s.Cluster)
		}
	}
	return ""
}

// services reads the services.
func (l *loader) services(ctx context.Context) {
	list(ctx, l, Services, &l.snapshot.Services, func(s *corev1.Service) { s.ManagedFields = nil }, func(ns string, o metav1.ListOptions) (runtime.Object, error) {
		return l.Core.CoreV1().Services(ns).List(ctx, o)
	})
}

// records reads what the network plugins have recorded for the machines: each resource once,
// however many machines there are.
func (l *loader) records(ctx context.Context, found *profile.Cluster) error {
	batch := found.Batch()
	s := l.snapshot
	for i := range s.VMs {
		view := &machine.View{VM: &s.VMs[i]}
		for _, iface := range view.Interfaces() {
			p, err := batch.For(ctx, iface)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				continue // its network does not exist: no plugin has recorded anything
			}
			records, err := p.Records(ctx, view.Ref(), iface)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				l.gap(Records, Gap{Partial: true, Reason: fmt.Sprintf("%s of virtualmachine %s can't be read: %v", Records, view.Ref(), err)})
				continue
			}
			for _, r := range records {
				for _, a := range r.Addresses {
					s.Held = append(s.Held, Held{view.Ref(), iface.Name, a, r.Object})
				}
			}
		}
	}
	return nil
}
