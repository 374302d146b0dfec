package rollout

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// sourceGrace is how long the source pod may take to finish, and an aborted target to go, once
// KubeVirt says that the migration is over.
const sourceGrace = 60 * time.Second

// migrationState follows one live migration. Until the hand-over it can still be taken back;
// the target's address is known long before, so a wrong one never reaches the guest.
type migrationState struct {
	ref machine.Ref
	// instance and migration are the UIDs of the running instance and of our migration object.
	instance, migration types.UID
	// name is the migration object's.
	name                  string
	sourceNode, sourcePod string
	expect                []Expectation
	agent                 bool
	// known are the events that were there before the migration was created.
	known map[types.UID]string

	// aborted is why the migration was taken back, nil where it was not.
	aborted *finding
	// seen is set once the object has been; last is its last phase: an object that is being
	// deleted vanishes right after its end.
	seen  bool
	last  kubevirtv1.VirtualMachineInstanceMigrationPhase
	marks marks
}

// observe looks at the world and says where the migration stands.
func (s *migrationState) observe(w *world, now time.Time) decision {
	if s.marks == nil {
		s.marks = marks{}
	}
	vmi := w.instance
	if vmi == nil || vmi.UID != s.instance {
		return s.replaced(vmi)
	}
	job := s.job(w)
	state := s.state(vmi, job)
	switch {
	case vmi.DeletionTimestamp != nil:
		return failed(CodeInstanceReplaced, fmt.Sprintf("virtualmachine %s is being stopped or restarted, not by this command, which ends its migration: kubectl get vm,vmi -n %s", s.ref, s.ref.Namespace))
	case vmi.Status.Phase == kubevirtv1.Failed || vmi.Status.Phase == kubevirtv1.Succeeded:
		return failed(CodeInstanceFailed, fmt.Sprintf("virtualmachine %s ended during its migration (%s): kubectl describe vmi %s -n %s", s.ref, vmi.Status.Phase, s.ref.Name, s.ref.Namespace))
	case s.moved(vmi, state):
		return s.arrived(w, job, now)
	case s.over(job, state, now):
		return s.stayed(w, job, state, now)
	case s.aborted != nil:
		return s.aborting(job)
	}
	return s.underway(w, job, state, now)
}

// job is our migration object, nil where it is gone.
func (s *migrationState) job(w *world) *kubevirtv1.VirtualMachineInstanceMigration {
	if w.departed != nil && w.departed.UID == s.migration {
		s.seen, s.last = true, w.departed.Status.Phase
	}
	if w.migration == nil || w.migration.UID != s.migration {
		return nil
	}
	s.seen, s.last = true, w.migration.Status.Phase
	return w.migration
}

// state is what KubeVirt tells about our migration: from the instance, which is written first,
// or from the migration object once another migration has taken the instance's place for it.
func (s *migrationState) state(vmi *kubevirtv1.VirtualMachineInstance, job *kubevirtv1.VirtualMachineInstanceMigration) *kubevirtv1.VirtualMachineInstanceMigrationState {
	if st := vmi.Status.MigrationState; st != nil && st.MigrationUID == s.migration {
		return st
	}
	if job != nil && job.Status.MigrationState != nil && job.Status.MigrationState.MigrationUID == s.migration {
		return job.Status.MigrationState
	}
	return nil
}

// moved says whether the instance runs on the target. The outcome is always read from the
// instance: a migration that was deleted late may have succeeded all the same.
func (s *migrationState) moved(vmi *kubevirtv1.VirtualMachineInstance, st *kubevirtv1.VirtualMachineInstanceMigrationState) bool {
	if vmi.Status.NodeName == "" || vmi.Status.NodeName == s.sourceNode {
		return false
	}
	return st != nil && st.Completed && !st.Failed || s.last == kubevirtv1.MigrationSucceeded
}

// over says whether the migration has ended without moving the machine.
func (s *migrationState) over(job *kubevirtv1.VirtualMachineInstanceMigration, st *kubevirtv1.VirtualMachineInstanceMigrationState, now time.Time) bool {
	// An object that vanished tells nothing by itself: the instance's part may come a moment later.
	vanished := s.marks.held("vanished", s.seen && job == nil, now) >= settlePatience
	unmoved := s.marks.held("unmoved", s.last == kubevirtv1.MigrationSucceeded, now) >= reportPatience
	return vanished || unmoved || s.last == kubevirtv1.MigrationFailed || st != nil && st.Completed && st.Failed
}

func (s *migrationState) replaced(vmi *kubevirtv1.VirtualMachineInstance) decision {
	if vmi == nil {
		return failed(CodeInstanceReplaced, fmt.Sprintf("virtualmachine %s was stopped or deleted during its migration, not by this command", s.ref))
	}
	return failed(CodeInstanceReplaced, fmt.Sprintf("virtualmachine %s was restarted during its migration, not by this command: instance %s is gone, %s runs", s.ref, s.instance, vmi.UID))
}

// target is the pod that KubeVirt created for our migration.
func (s *migrationState) target(w *world) *corev1.Pod {
	for _, p := range w.podsOf(s.instance) {
		if p.Labels[kubevirtv1.MigrationJobLabel] == string(s.migration) {
			return p
		}
	}
	return nil
}

// underway is the time before the hand-over, when all is still well or can be taken back.
func (s *migrationState) underway(w *world, job *kubevirtv1.VirtualMachineInstanceMigration, st *kubevirtv1.VirtualMachineInstanceMigrationState, now time.Time) decision {
	pod := s.target(w)
	ready := st != nil && st.TargetNodeDomainReadyTimestamp != nil
	// Once the guest runs on the target there is nothing to take back; the end will tell.
	if bad := s.objection(w, pod, st, now); bad != nil && !ready {
		s.aborted = bad
		return s.aborting(job)
	}
	d := decision{phase: PhaseTarget, wake: time.Second}
	waits := s.marks.held("no target", pod == nil, now) >= settlePatience
	switch {
	case ready:
		d.phase, d.detail = PhaseHandOver, "domain running on "+st.TargetNode
	case st != nil && st.StartTimestamp != nil:
		d.phase, d.detail = PhaseHandOver, "memory is being copied to "+st.TargetNode
	case pod != nil:
		d.detail = s.describe(pod)
	case job == nil || job.Status.Phase == kubevirtv1.MigrationPhaseUnset || job.Status.Phase == kubevirtv1.MigrationPending:
		d.detail = "waiting for KubeVirt to create the target pod"
		if waits {
			d.detail += " (it limits how many migrations run at once)"
		}
	default:
		d.detail = "waiting for the target pod"
	}
	if d.phase == PhaseHandOver && pod != nil {
		d.past = &stage{PhaseTarget, s.describe(pod)}
	}
	return d
}

// describe says what is known of the target pod.
func (s *migrationState) describe(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		if why := unschedulable(pod); why != "" {
			return fmt.Sprintf("%s finds no node: %s", pod.Name, why)
		}
		return pod.Name + ", not yet scheduled"
	}
	said := fmt.Sprintf("%s on %s", pod.Name, pod.Spec.NodeName)
	for _, e := range s.expect {
		if _, like := e.pod(pod); like == same {
			said += ", address " + list(e.Addresses) + " as reserved"
		}
	}
	return said
}

// objection is a reason to take the migration back, nil where there is none.
func (s *migrationState) objection(w *world, pod *corev1.Pod, st *kubevirtv1.VirtualMachineInstanceMigrationState, now time.Time) *finding {
	refused := ""
	if pod == nil {
		refused = w.createTrouble(s.instance, s.known)
	}
	if s.marks.held("refused pod", refused != "", now) >= troublePatience {
		return &finding{code: CodePodRefused, message: "the target pod can't be created: " + refused}
	}
	if st != nil && st.TargetNode != "" && st.TargetNode == s.sourceNode {
		return &finding{code: CodeSameNode, message: "the target is the source's own node " + s.sourceNode}
	}
	if pod == nil || machine.Finished(pod) {
		return nil
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName == s.sourceNode {
		return &finding{code: CodeSameNode, message: fmt.Sprintf("target pod %s is on the source's own node %s", pod.Name, s.sourceNode)}
	}
	for _, f := range checkPod(s.expect, pod) {
		if f.code == CodeWrongAddress {
			return &f
		}
	}
	why := ""
	if len(pod.Status.PodIPs) == 0 && pod.Status.PodIP == "" {
		why = w.podTrouble(pod)
	}
	if s.marks.held("sandbox "+string(pod.UID), why != "", now) >= troublePatience {
		return &finding{code: CodeSandboxFailed, message: fmt.Sprintf("target pod %s on %s can't get its network: %s", pod.Name, pod.Spec.NodeName, why)}
	}
	return nil
}

// aborting waits for KubeVirt to take the migration back. It does so at once before it has handed
// the target pod off, and afterwards only when the copying of memory has begun.
func (s *migrationState) aborting(job *kubevirtv1.VirtualMachineInstanceMigration) decision {
	d := decision{phase: PhaseAborting, detail: s.aborted.message, wake: time.Second}
	// Where the object has not been seen yet, it is about to be: it was created.
	d.abort = job == nil && !s.seen || job != nil && job.DeletionTimestamp == nil
	return d
}
