package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
)

// Restart carries out the plan of a restart: one request, then watching until the new instance is
// verified. A plan that preflight refuses is not carried out.
func Restart(ctx context.Context, d Deps, p Plan, r Reporter) Outcome {
	out := p.begin(d.now())
	if p.Refused() {
		out.refuse(d.now(), p.Verdicts[0].Code, p.Verdicts[0].Message)
		return out
	}
	if d.DryRun {
		if p.Joins {
			out.end(d.now(), v1alpha1.Unchanged, "", "a restart is under way")
			return out
		}
		if err := d.requestRestart(ctx, p); err != nil {
			out.refused(d.now(), p, err)
			return out
		}
		out.After = p.After()
		out.end(d.now(), v1alpha1.Done, "", "")
		return out
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := newEngine(d, p.Ref)
	defer e.close()
	e.follow(ctx, d.machineSource(p.Ref), d.instanceSource(p.Ref), d.eventSource(p.Ref.Namespace, p.Ref.Name))
	if p.Instance != "" {
		e.follow(ctx, d.podSource(p.Ref.Namespace, p.Instance))
	}
	if err := e.ready(ctx); err != nil {
		out.stop(d.now(), err, decision{}, "")
		return out
	}
	if why := p.stale(e.world); why != "" {
		out.refuse(d.now(), CodeChangedMeanwhile, why)
		return out
	}
	s := &restartState{ref: p.Ref, vm: p.VM, old: p.Instance, expect: p.Expect, agent: p.Agent, known: e.world.versions()}
	if !p.Joins {
		if err := d.askRestart(ctx, e, p); err != nil {
			d.notRestarted(&out, p, err)
			return out
		}
	}
	if d.NoWait {
		out.Phase, out.Before = PhaseStopping, nil
		out.end(d.now(), v1alpha1.Done, "", "requested, not waited for")
		return out
	}
	last, err := e.run(ctx, s, e.followRestart(ctx, d, p.Instance), nil, r)
	if err != nil && last.phase == PhaseStopping {
		last.detail += d.silence(ctx, p.Node)
	}
	goesOn := fmt.Sprintf("the restart goes on in the cluster; watch it with: kubectl get vm,vmi,pods -n %s -w", p.Ref.Namespace)
	d.conclude(ctx, e, &out, p, last, err, goesOn)
	return out
}

// silence says that a node does not talk, which is why nothing ends there.
func (d Deps) silence(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	node, err := d.Core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
			return fmt.Sprintf("; node %s is unreachable, the old guest may still be running there", name)
		}
	}
	return ""
}

// stale says what has changed since the plan was made, "" where nothing has.
func (p Plan) stale(w *world) string {
	switch {
	case p.Verb == VerbRestart && (w.vm == nil || w.vm.UID != p.VM):
		return fmt.Sprintf("virtualmachine %s was deleted or recreated meanwhile", p.Ref)
	case p.Joins:
		return ""
	case w.instance == nil || w.instance.UID != p.Instance:
		return fmt.Sprintf("virtualmachine %s was stopped or restarted meanwhile; run the command again", p.Ref)
	case w.instance.DeletionTimestamp != nil:
		return fmt.Sprintf("virtualmachine %s is being stopped by somebody else", p.Ref)
	case p.Resume == "" && w.instance.Status.NodeName != p.Node:
		return fmt.Sprintf("virtualmachine %s has moved from %s to %s meanwhile; run the command again", p.Ref, p.Node, w.instance.Status.NodeName)
	}
	if st := w.instance.Status.MigrationState; p.Resume == "" && st != nil && !st.Completed && !st.Failed {
		return fmt.Sprintf("virtualmachine %s is being migrated meanwhile; run the command again when that is over", p.Ref)
	}
	return ""
}

// followRestart follows the pods and the events of whatever instance and pods there are.
func (e *engine) followRestart(ctx context.Context, d Deps, instance types.UID) func(*world) {
	return func(w *world) {
		if w.instance == nil {
			return
		}
		if uid := w.instance.UID; uid != instance {
			// The new instance exists only after all pods of the old one are gone
			// (pkg/virt-controller/watch/vmi removes the finalizer then).
			e.drop(podsName(instance))
			instance = uid
			clear(w.pods)
			e.follow(ctx, d.podSource(e.ref.Namespace, uid))
		}
		e.followPods(ctx, d, w, instance)
	}
}

// followPods follows the events of pods that have no address yet.
func (e *engine) followPods(ctx context.Context, d Deps, w *world, instance types.UID) {
	for _, p := range live(w.podsOf(instance)) {
		if len(p.Status.PodIPs) == 0 {
			e.follow(ctx, d.eventSource(p.Namespace, p.Name))
		}
	}
}

// requestRestart sends the one request. It never has a grace period of its own: 0 would let two
// guests run at once.
func (d Deps) requestRestart(ctx context.Context, p Plan) error {
	opts := &kubevirtv1.RestartOptions{}
	if d.DryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return d.KubeVirt.KubevirtV1().VirtualMachines(p.Ref.Namespace).Restart(ctx, p.Ref.Name, opts)
}

// answerPatience is how long an effect is looked for after the answer to a request was lost.
const answerPatience = 10 * time.Second

// askRestart requests the restart. A request that surely never arrived is sent again; one whose
// answer was lost is looked for in what it would have changed.
func (d Deps) askRestart(ctx context.Context, e *engine, p Plan) error {
	began := d.now()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx) // nothing was asked for
		}
		// Whoever gives up meanwhile is to be told what became of the request.
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerPatience)
		err := d.requestRestart(asking, p)
		cancel()
		switch {
		case err == nil:
			return nil
		case utilnet.IsConnectionRefused(err) && d.now().Sub(began) < d.patience():
			if err := e.wait(ctx, time.Second); err != nil {
				return err
			}
			continue
		case !ambiguous(err):
			return err
		}
		for until := d.now().Add(min(answerPatience, d.patience())); d.now().Before(until); {
			if taken(e.world, p.Instance) {
				return nil
			}
			if e.wait(ctx, time.Second) != nil {
				break
			}
		}
		return &answerLostError{err}
	}
}

// taken says whether the world shows that the restart request was accepted.
func taken(w *world, old types.UID) bool {
	return w.instance == nil || w.instance.UID != old || w.instance.DeletionTimestamp != nil ||
		w.vm != nil && len(w.vm.Status.StateChangeRequests) > 0
}

// answerLostError is a request that may have been done and shows no effect.
type answerLostError struct{ err error }

func (e *answerLostError) Error() string { return e.err.Error() }
func (e *answerLostError) Unwrap() error { return e.err }

// notRestarted closes the outcome of a restart that could not be requested.
func (d Deps) notRestarted(out *Outcome, p Plan, err error) {
	var lost *answerLostError
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &lost):
		out.end(d.now(), v1alpha1.Unknown, CodeLost, fmt.Sprintf("outcome unknown: the answer to the restart request was lost (%v) and nothing has happened since; check with: kubectl get vm,vmi -n %s", err, p.Ref.Namespace))
	case errors.As(err, &status):
		out.refused(d.now(), p, err)
	default:
		out.stop(d.now(), err, decision{}, "")
	}
}
