package rollout

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// conclude closes the outcome of an operation that was begun. Its rows move on only where the
// machine was verified.
func (d Deps) conclude(ctx context.Context, e *engine, out *Outcome, p Plan, last decision, err error, goesOn string) {
	if err != nil {
		out.stop(d.now(), err, last, goesOn)
		return
	}
	out.Phase = last.phase
	if vmi := e.world.instance; vmi != nil {
		out.NodeTo = vmi.Status.NodeName
	}
	if last.end.outcome != v1alpha1.Done {
		out.end(d.now(), last.end.outcome, last.end.code, last.end.message)
		return
	}
	// A user who interrupts now has a machine that runs and is verified: finish the bookkeeping.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	other, oerr := d.otherOwner(ctx, p, e.world.instance.UID)
	switch {
	case other != "":
		out.Phase = PhaseChecking
		out.end(d.now(), v1alpha1.Failed, CodeSecondOwner, fmt.Sprintf("virtualmachine %s runs on %s now, but %s", p.Ref, out.NodeTo, other))
		return
	case oerr != nil:
		out.Notes = append(out.Notes, fmt.Sprintf("whether another pod has the address of virtualmachine %s could not be checked: %v", p.Ref, oerr))
	}
	if d.Settle != nil {
		if serr := d.Settle(ctx, p.Ref); serr != nil {
			out.Notes = append(out.Notes, fmt.Sprintf("the ledger rows that virtualmachine %s has left could not be moved on: %v; the next command that meets them does it", p.Ref, serr))
		}
	}
	out.After = p.After()
	out.end(d.now(), v1alpha1.Done, "", "")
}

// otherOwner looks for live pods of somebody else that have a reserved address, "" where there is
// none. Only the first address of a pod network can be asked for, and only by who may list pods.
func (d Deps) otherOwner(ctx context.Context, p Plan, instance types.UID) (string, error) {
	for _, e := range p.Expect {
		if !e.Interface.Primary() {
			continue
		}
		for _, a := range e.Addresses {
			pods, err := d.podsWith(ctx, a)
			if apierrors.IsForbidden(err) {
				return "", nil
			}
			if err != nil {
				return "", err
			}
			for _, pod := range pods {
				if o := metav1.GetControllerOf(&pod); o == nil || o.UID != instance {
					return fmt.Sprintf("pod %s/%s on %s has %s too", pod.Namespace, pod.Name, pod.Spec.NodeName, a), nil
				}
			}
		}
	}
	return "", nil
}

// podsWith lists the live pods that show the address as their first one.
func (d Deps) podsWith(ctx context.Context, a netip.Addr) ([]corev1.Pod, error) {
	selector := fields.AndSelectors(
		fields.OneTermEqualSelector("status.podIP", a.String()),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	list, err := d.Core.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	for _, p := range list.Items {
		shown, _ := netip.ParseAddr(p.Status.PodIP)
		if shown == a && !p.Spec.HostNetwork && !machine.Finished(&p) {
			pods = append(pods, p)
		}
	}
	return pods, nil
}
