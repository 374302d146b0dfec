package cni

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// Run is spiderpool-controller: the webhook on pools, their status, and the scan that frees what is left over.
func (d *spiderpool) Run(ctx context.Context) error {
	url, ca, stop, err := d.serveWebhook(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if !persist(ctx, func() error { return d.registerWebhook(ctx, url, ca) }) {
		return nil
	}
	w := newWatcher(d.kube)
	if err := on(ctx, w, d.pools, d.poolChanged, nil); err != nil {
		return err
	}
	defer w.start(ctx)()
	orphans := map[spiderOrphan]bool{}
	background(ctx, d.gcAfter, func(ctx context.Context) error { return d.scan(ctx, orphans) })
	return nil
}

// poolChanged keeps a pool's counters, and lets a pool go that has no addresses out.
func (d *spiderpool) poolChanged(ctx context.Context, p *spiderPool) error {
	if p.DeletionTimestamp != nil {
		if p.Status.AllocatedIPs != nil || !slices.Contains(p.Finalizers, spiderFinalizer) {
			return nil
		}
		return ignoreNotFound(d.pools.patch(ctx, "", p.Name, withoutFinalizer(p.Finalizers, spiderFinalizer)))
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p, err := d.pools.get(ctx, "", p.Name)
		if err != nil {
			return ignoreNotFound(err)
		}
		r, err := p.records()
		if err != nil {
			return nil //nolint:nilerr // logged: somebody wrote nonsense into the status
		}
		total := int64(p.ranges().size())
		if p.Status.TotalIPCount != nil && *p.Status.TotalIPCount == total && p.Status.AllocatedIPCount != nil {
			return nil
		}
		p.Status.TotalIPCount = &total
		if err := p.setRecords(r); err != nil {
			return err
		}
		_, err = d.pools.updateStatus(ctx, "", p)
		return ignoreNotFound(err)
	})
}

// spiderOrphan is a record that has neither pod nor endpoint. It is freed when a second scan sees it: with an
// interval that a test makes short, one scan would often fall between a first ADD's two writes.
type spiderOrphan struct {
	pool, addr string
	rec        spiderRecord
}

// scan goes through the records of all pools. A pool's record has the name of a pod, or of a VM, which no
// pod is called: so a VM's fate decides.
func (d *spiderpool) scan(ctx context.Context, orphans map[spiderOrphan]bool) error {
	conf, err := d.config(ctx)
	if err != nil {
		return err
	}
	pools, err := d.pools.list(ctx, "")
	if err != nil {
		return err
	}
	before := maps.Clone(orphans)
	clear(orphans)
	for i := range pools {
		records, err := pools[i].records()
		if err != nil {
			continue
		}
		for addr, rec := range records {
			drop, dropEndpoint, err := d.stale(ctx, conf, rec)
			if err != nil {
				continue // in doubt it stays
			}
			if o := (spiderOrphan{pools[i].Name, addr, rec}); drop && dropEndpoint == nil && !before[o] {
				orphans[o] = true
				continue
			}
			if drop {
				if err := d.releaseRecord(ctx, pools[i].Name, addr, rec.PodUID); err != nil {
					return err
				}
			}
			if dropEndpoint != nil {
				if err := d.dropEndpoint(ctx, dropEndpoint); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (d *spiderpool) stale(ctx context.Context, conf spiderConfig, rec spiderRecord) (drop bool, endpoint *spiderEndpoint, err error) {
	namespace, name, ok := strings.Cut(rec.Pod, "/")
	if !ok {
		return false, nil, nil
	}
	ep, epErr := d.endpoints.get(ctx, namespace, name)
	if ignoreNotFound(epErr) != nil {
		return false, nil, epErr
	}
	pod, err := d.core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && epErr != nil:
		return true, nil, nil
	case apierrors.IsNotFound(err):
		if conf.EnableKubevirtStaticIP && ep.Status.OwnerControllerType == "VirtualMachineInstance" {
			valid, err := d.validVM(ctx, namespace, name)
			if err != nil || valid {
				return false, nil, err
			}
		}
		return true, ep, nil
	case err != nil:
		return false, nil, err
	}
	if string(pod.UID) != rec.PodUID { // a pod that had the name before
		if epErr == nil && ep.Status.Current.UID == string(pod.UID) {
			ep = nil
		}
		return true, ep, nil
	}
	over := pod.DeletionTimestamp != nil && (len(pod.Status.PodIPs) == 0 || !alive(pod)) && pod.Status.Phase != corev1.PodPending
	if !over {
		return false, nil, nil
	}
	if epErr != nil {
		ep = nil
	}
	return true, ep, nil
}
