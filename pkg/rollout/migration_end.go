package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// arrived verifies a machine that runs on the target.
func (s *migrationState) arrived(w *world, job *kubevirtv1.VirtualMachineInstanceMigration, now time.Time) decision {
	vmi := w.instance
	node := vmi.Status.NodeName
	var carrier, source *corev1.Pod
	var strays []*corev1.Pod
	for _, p := range live(w.podsOf(s.instance)) {
		switch {
		case p.Name == s.sourcePod:
			source = p
		case p.Spec.NodeName == node && carrier == nil:
			carrier = p
		default:
			strays = append(strays, p)
		}
	}
	var findings []finding
	if carrier == nil {
		findings = append(findings, finding{code: CodeInstanceFailed, patience: reportPatience, waiting: "the pod that carries it", message: "no live pod carries it there"})
	} else {
		findings = append(checkPod(s.expect, carrier), checkInstance(s.expect, vmi, s.agent)...)
	}
	if len(strays) > 0 {
		findings = append(findings, finding{code: CodeStrayPod, patience: sourceGrace, waiting: podNames(strays) + " to finish", message: "more pods of the machine are alive: " + podNames(strays)})
	}
	if source != nil {
		findings = append(findings, finding{code: CodeSourceNotFinished, patience: sourceGrace, waiting: "source pod " + podNames([]*corev1.Pod{source}) + " to finish", message: s.lingering(source)})
	}
	if job != nil && !job.IsFinal() {
		// Not an error of the move, but the next migration would be refused until then.
		findings = append(findings, finding{patience: reportPatience, waiting: "KubeVirt to close the migration"})
	}
	d := s.conclude(findings, node, now)
	d.past = &stage{PhaseHandOver, "domain running on " + node}
	return d
}

func (s *migrationState) conclude(findings []finding, node string, now time.Time) decision {
	over, wake := s.marks.settle(findings, now)
	switch {
	case over != nil && s.aborted != nil:
		return failed(CodeAbortTooLate, fmt.Sprintf("the migration was taken back too late: virtualmachine %s runs on %s now, and %s (it was to be aborted because %s)", s.ref, node, over.message, s.aborted.message))
	case over != nil:
		return failed(over.code, fmt.Sprintf("virtualmachine %s runs on %s now, but %s", s.ref, node, over.message))
	case wake > 0:
		return decision{phase: PhaseChecking, detail: waitingFor(findings), wake: wake}
	}
	said := "one owner, source pod finished"
	if about := summary(findings); about != "" {
		said = about + ", " + said
	}
	if s.aborted != nil {
		said += " (it was to be aborted because " + s.aborted.message + ", which came right)"
	}
	return decision{phase: PhaseVerified, detail: said, end: &ending{outcome: v1alpha1.Done, message: said}}
}

// lingering says what keeps the source pod: a sidecar that does not end with the guest is the
// usual reason.
func (s *migrationState) lingering(source *corev1.Pod) string {
	said := fmt.Sprintf("source pod %s on %s has not finished and still holds the address", source.Name, source.Spec.NodeName)
	var running []string
	for _, c := range source.Status.ContainerStatuses {
		if c.State.Running != nil {
			running = append(running, c.Name)
		}
	}
	if len(running) > 0 && !slices.Contains(running, "compute") {
		said += fmt.Sprintf(" (only %s still runs: delete the pod)", strings.Join(running, ", "))
	}
	return said
}

// stayed verifies a machine whose migration has ended without moving it: it has to run on at the
// source with its address.
func (s *migrationState) stayed(w *world, job *kubevirtv1.VirtualMachineInstanceMigration, st *kubevirtv1.VirtualMachineInstanceMigrationState, now time.Time) decision {
	vmi := w.instance
	var source *corev1.Pod
	var findings []finding
	for _, p := range w.podsOf(s.instance) {
		switch {
		case p.Name == s.sourcePod:
			source = p
		case !machine.Finished(p):
			findings = append(findings, finding{code: CodeStrayPod, patience: sourceGrace, waiting: "target pod " + p.Name + " to finish", message: "target pod " + p.Name + " is still alive"})
		}
	}
	switch {
	case vmi.Status.Phase != kubevirtv1.Running || vmi.Status.NodeName != s.sourceNode:
		findings = append(findings, finding{code: CodeInstanceFailed, patience: reportPatience, message: fmt.Sprintf("the machine is %s on node %q", vmi.Status.Phase, vmi.Status.NodeName)})
	case source == nil || machine.Finished(source):
		findings = append(findings, finding{code: CodeInstanceFailed, patience: reportPatience, message: "source pod " + s.sourcePod + " is not alive any more"})
	default:
		findings = append(findings, checkPod(s.expect, source)...)
	}
	code, why := s.reason(w, job, st)
	if why == "" {
		// The event that tells comes a moment after the end that it is about.
		why = "migration " + s.name + " failed, and KubeVirt gives no reason (kubectl get events -n " + s.ref.Namespace + ")"
		findings = append(findings, finding{patience: reasonPatience, waiting: "KubeVirt's reason"})
	}
	over, wake := s.marks.settle(findings, now)
	switch {
	case over != nil:
		return failed(code, fmt.Sprintf("%s; and %s: look at once with kubectl get vmi,pods -n %s", why, over.message, s.ref.Namespace))
	case wake > 0:
		d := decision{phase: PhaseChecking, detail: "the migration is over (" + why + "), " + waitingFor(findings), wake: wake}
		if s.aborted != nil {
			d.phase = PhaseAborting
		}
		return d
	}
	said := fmt.Sprintf("the machine runs on at the source %s", s.sourceNode)
	if about := summary(findings); about != "" {
		said += " (" + about + ")"
	}
	return failed(code, why+"; "+said)
}

// reasonPatience is how long KubeVirt's reason for the end of a migration is waited for.
const reasonPatience = 2 * time.Second

// reason says why the migration ended, in KubeVirt's words; "" where it has none.
func (s *migrationState) reason(w *world, job *kubevirtv1.VirtualMachineInstanceMigration, st *kubevirtv1.VirtualMachineInstanceMigrationState) (code, why string) {
	if s.aborted != nil {
		return s.aborted.code, "aborted before the hand-over: " + s.aborted.message
	}
	if s.last == kubevirtv1.MigrationSucceeded {
		return CodeSameNode, "KubeVirt says that migration " + s.name + " succeeded, but the machine has not moved"
	}
	why = w.lastEvent(s.migration, nil, "FailedMigration")
	if st != nil && st.FailureReason != "" {
		why = oneLine(st.FailureReason)
	}
	if w.cancelled(job) || st != nil && st.AbortRequested || job == nil && st == nil {
		if why == "" {
			why = "the migration object was deleted"
		}
		return CodeMigrationCanceled, "migration " + s.name + " was cancelled, not by this command: " + why
	}
	if why == "" {
		return CodeMigrationFailed, ""
	}
	return CodeMigrationFailed, "migration " + s.name + " failed: " + why
}

// cancelled says whether somebody asked for the end of the migration.
func (w *world) cancelled(job *kubevirtv1.VirtualMachineInstanceMigration) bool {
	if job == nil {
		return false
	}
	if job.DeletionTimestamp != nil {
		return true
	}
	for _, c := range job.Status.Conditions {
		if c.Type == kubevirtv1.VirtualMachineInstanceMigrationAbortRequested && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// waitingFor says what verification still waits for.
func waitingFor(findings []finding) string {
	for _, f := range findings {
		if f.patience > 0 && f.waiting != "" {
			return "waiting for " + f.waiting
		}
	}
	return "waiting for the last reports"
}

func podNames(pods []*corev1.Pod) string {
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.Name + " on " + p.Spec.NodeName
	}
	return strings.Join(names, ", ")
}
