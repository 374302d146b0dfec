package rollout

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
)

// Options are what a user may say about an operation.
type Options struct {
	// ToNode is the only node that a migration may go to.
	ToNode string
	// NodeFenced is the user's word that an unreachable node no longer runs anything.
	NodeFenced bool
}

// Planner makes plans: it reads facts and lets preflight judge them.
type Planner struct {
	Deps Deps
	// permits remembers per namespace what the user may do.
	permits permits
}

// PlanRestart plans the restart of one machine. An error means that the facts could not be read;
// a machine that can't be restarted safely has a plan with verdicts that refuse it.
func (pl *Planner) PlanRestart(ctx context.Context, ref machine.Ref, o Options) (Plan, error) {
	p, f, err := pl.facts(ctx, VerbRestart, ref, o)
	if err != nil {
		return p, err
	}
	f.Nodes, f.NodesErr = pl.carriers(ctx, f.View)
	p.Verdicts = preflight.Restart(*f)
	if p.Joins = restarting(f.View); p.Joins {
		p.Verdicts = slices.DeleteFunc(p.Verdicts, func(v preflight.Verdict) bool {
			return v.Code == preflight.CodeStateChangeInFlight || v.Code == preflight.CodeNotRunning
		})
	}
	return p, nil
}

// restarting says whether KubeVirt has been asked for a restart that is not done: to stop the
// instance that is there, and to start another. Once the old one is gone a restart looks like a
// start, and ends alike.
func restarting(v *machine.View) bool {
	requests := v.VM.Status.StateChangeRequests
	if v.VM.DeletionTimestamp != nil || len(requests) == 0 || requests[len(requests)-1].Action != kubevirtv1.StartRequest {
		return false
	}
	if len(requests) == 1 {
		return v.VMI == nil || v.VMI.DeletionTimestamp != nil
	}
	stop := requests[0]
	return len(requests) == 2 && stop.Action == kubevirtv1.StopRequest && v.VMI != nil && (stop.UID == nil || *stop.UID == v.VMI.UID)
}

// PlanMigrate plans the live migration of one machine.
func (pl *Planner) PlanMigrate(ctx context.Context, ref machine.Ref, o Options) (Plan, error) {
	p, f, err := pl.facts(ctx, VerbMigrate, ref, o)
	if err != nil {
		return p, err
	}
	p.ToNode = o.ToNode
	list, err := pl.Deps.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		f.NodesErr = fmt.Errorf("nodes: %w", err)
	} else {
		f.Nodes = list.Items
	}
	p.Verdicts = preflight.Migrate(*f)
	if m := f.View.Migration(); m != nil && ours(m, o) {
		p.Resume = m.Name
		// The instance may have moved already; what it tells of the source stays.
		if st := f.View.VMI.Status.MigrationState; st != nil && st.MigrationUID == m.UID && st.SourcePod != "" {
			p.Node, p.Pod = st.SourceNode, st.SourcePod
		}
		p.Verdicts = slices.DeleteFunc(p.Verdicts, func(v preflight.Verdict) bool { return v.Code == preflight.CodeMigrationInFlight })
	}
	if p.Resume == "" {
		p.Verdicts = append(p.Verdicts, pl.mayMigrate(ctx, ref)...)
	}
	return p, nil
}

// ours says whether a migration was created by an earlier run of the same command, which died.
func ours(m *kubevirtv1.VirtualMachineInstanceMigration, o Options) bool {
	return m.Labels[LabelManagedBy] == ManagedBy && m.DeletionTimestamp == nil && m.Spec.AddedNodeSelector[corev1.LabelHostname] == o.ToNode
}
