package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
)

// Labels on a migration object: a contract, see docs/commands.md.
const (
	LabelOperation = "vmip.io/operation"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "kubectl-vmip"
)

// Migrate carries out the plan of a live migration: it creates the migration object, watches it,
// takes it back while that is possible if the target is wrong, and verifies the end.
func Migrate(ctx context.Context, d Deps, p Plan, r Reporter) Outcome {
	out := p.begin(d.now())
	if p.Refused() {
		out.refuse(d.now(), p.Verdicts[0].Code, p.Verdicts[0].Message)
		return out
	}
	job := p.migration(d.newOp())
	if d.DryRun {
		if _, err := d.createMigration(ctx, job); err != nil {
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
	e.follow(ctx, d.instanceSource(p.Ref), d.podSource(p.Ref.Namespace, p.Instance), d.eventSource(p.Ref.Namespace, p.Ref.Name))
	if err := e.ready(ctx); err != nil {
		out.stop(d.now(), err, decision{}, "")
		return out
	}
	if why := p.stale(e.world); why != "" {
		out.refuse(d.now(), CodeChangedMeanwhile, why)
		return out
	}
	s := &migrationState{
		ref: p.Ref, instance: p.Instance, sourceNode: p.Node, sourcePod: p.Pod,
		expect: p.Expect, agent: p.Agent, known: e.world.versions(),
	}
	job, err := d.begin(ctx, e, p, job)
	if err != nil {
		d.notMigrated(&out, p, job, err)
		return out
	}
	s.migration, s.name = job.UID, job.Name
	e.follow(ctx, d.migrationSource(p.Ref.Namespace, job.Name), d.eventSource(p.Ref.Namespace, job.Name))
	abort := func(ctx context.Context) error { return d.deleteMigration(ctx, job) }
	last, err := e.run(ctx, s, e.followMigration(ctx, d, s, r), abort, r)
	if vmi := e.world.instance; vmi != nil {
		out.NodeTo = vmi.Status.NodeName
	}
	goesOn := fmt.Sprintf("the migration goes on in the cluster; watch it with: kubectl get vmim %s -n %s -w (cancel it with: kubectl delete vmim %s -n %s)", job.Name, job.Namespace, job.Name, job.Namespace)
	d.conclude(ctx, e, &out, p, last, err, goesOn)
	return out
}

// followMigration follows the events of pods without address, and tells the target node once.
func (e *engine) followMigration(ctx context.Context, d Deps, s *migrationState, r Reporter) func(*world) {
	told := false
	return func(w *world) {
		e.followPods(ctx, d, w, s.instance)
		if pod := s.target(w); !told && pod != nil && pod.Spec.NodeName != "" {
			told = true
			r.Heading(s.sourceNode + " -> " + pod.Spec.NodeName)
		}
	}
}

// migration is the object to create. Its name is made of the operation's ID, so that the request
// can be repeated when its answer was lost: it can't make two.
func (p Plan) migration(op string) *kubevirtv1.VirtualMachineInstanceMigration {
	op = strings.ToLower(op)
	m := &kubevirtv1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Ref.Namespace, Name: "kubectl-vmip-" + op,
		Labels: map[string]string{LabelOperation: op, LabelManagedBy: ManagedBy},
	}}
	m.Spec.VMIName = p.Ref.Name
	if p.ToNode != "" {
		m.Spec.AddedNodeSelector = map[string]string{corev1.LabelHostname: p.ToNode}
	}
	return m
}

// begin creates the migration, or finds the one to go on with. It returns the object as far as it
// is known, also with an error.
func (d Deps) begin(ctx context.Context, e *engine, p Plan, job *kubevirtv1.VirtualMachineInstanceMigration) (*kubevirtv1.VirtualMachineInstanceMigration, error) {
	if p.Resume != "" {
		found, err := d.KubeVirt.KubevirtV1().VirtualMachineInstanceMigrations(p.Ref.Namespace).Get(ctx, p.Resume, metav1.GetOptions{})
		if err != nil {
			return job, err
		}
		return found, nil
	}
	began := d.now()
	for {
		made, err := d.createMigration(ctx, job)
		switch {
		case err == nil:
			return made, nil
		case apierrors.IsAlreadyExists(err):
			// An earlier try of ours was done although its answer was lost.
			return d.KubeVirt.KubevirtV1().VirtualMachineInstanceMigrations(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
		case ctx.Err() != nil:
			return job, &answerLostError{context.Cause(ctx)}
		case !ambiguous(err):
			if made, gerr := d.KubeVirt.KubevirtV1().VirtualMachineInstanceMigrations(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{}); gerr == nil {
				// The webhook refuses a second migration: the first is ours.
				return made, nil
			}
			return job, err
		case d.now().Sub(began) >= d.patience():
			return job, &answerLostError{err}
		}
		if err := e.wait(ctx, time.Second); err != nil {
			return job, &answerLostError{err}
		}
	}
}

func (d Deps) createMigration(ctx context.Context, job *kubevirtv1.VirtualMachineInstanceMigration) (*kubevirtv1.VirtualMachineInstanceMigration, error) {
	opts := metav1.CreateOptions{FieldManager: d.FieldManager}
	if d.DryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return d.KubeVirt.KubevirtV1().VirtualMachineInstanceMigrations(job.Namespace).Create(ctx, job, opts)
}

// deleteMigration takes a migration back: KubeVirt treats the deletion as an abort.
func (d Deps) deleteMigration(ctx context.Context, job *kubevirtv1.VirtualMachineInstanceMigration) error {
	uid := job.UID
	err := d.KubeVirt.KubevirtV1().VirtualMachineInstanceMigrations(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// notMigrated closes the outcome of a migration that could not be created.
func (d Deps) notMigrated(out *Outcome, p Plan, job *kubevirtv1.VirtualMachineInstanceMigration, err error) {
	var lost *answerLostError
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &lost):
		out.end(d.now(), v1alpha1.Unknown, CodeLost, fmt.Sprintf("outcome unknown: the answer to the creation of migration %s was lost: %v; check with: kubectl get vmim %s -n %s", job.Name, err, job.Name, job.Namespace))
	case errors.As(err, &status):
		out.refused(d.now(), p, err)
	default:
		out.stop(d.now(), err, decision{}, "")
	}
}
