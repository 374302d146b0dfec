package rollout

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func newMigration() *migrationState {
	return &migrationState{
		ref: db1, instance: "i-1", migration: "m-1", name: "kubectl-vmip-x", sourceNode: "n1", sourcePod: "src",
		expect: expected("198.51.100.20"),
	}
}

// job is our migration object; a second string is the UID of another's.
func job(p kubevirtv1.VirtualMachineInstanceMigrationPhase, edits ...func(*kubevirtv1.VirtualMachineInstanceMigration)) *kubevirtv1.VirtualMachineInstanceMigration {
	m := &kubevirtv1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "kubectl-vmip-x", UID: "m-1"}}
	m.Status.Phase = p
	for _, edit := range edits {
		edit(m)
	}
	return m
}

func canceled(m *kubevirtv1.VirtualMachineInstanceMigration) { m.DeletionTimestamp = new(metav1.Now()) }

// handed sets the instance's account of a migration from n1 to a node.
func handed(uid, node string, edits ...func(*kubevirtv1.VirtualMachineInstanceMigrationState)) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.MigrationState = &kubevirtv1.VirtualMachineInstanceMigrationState{
			MigrationUID: types.UID(uid), SourceNode: "n1", TargetNode: node, SourcePod: "src", TargetPod: "dst",
		}
		for _, edit := range edits {
			edit(v.Status.MigrationState)
		}
	}
}

func started(s *kubevirtv1.VirtualMachineInstanceMigrationState) {
	s.StartTimestamp = new(metav1.Now())
}
func ready(s *kubevirtv1.VirtualMachineInstanceMigrationState) {
	s.TargetNodeDomainReadyTimestamp = new(metav1.Now())
}
func completed(s *kubevirtv1.VirtualMachineInstanceMigrationState) { s.Completed = true }
func broken(why string) func(*kubevirtv1.VirtualMachineInstanceMigrationState) {
	return func(s *kubevirtv1.VirtualMachineInstanceMigrationState) {
		s.Completed, s.Failed, s.FailureReason = true, true, why
	}
}

// of marks a pod as the target of a migration.
func of(uid string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[kubevirtv1.MigrationJobLabel] = uid }
}

// TestMigrationEndsAsItVanishes: the end of a migration that is being deleted may come with the
// message that it is gone.
func TestMigrationEndsAsItVanishes(t *testing.T) {
	s, w := newMigration(), newWorldOf(vmi("i-1", "n1"), pod("src", "i-1", "n1", "198.51.100.20"), job(kubevirtv1.MigrationScheduling))
	s.aborted = &finding{code: CodeWrongAddress, message: "wrong"}
	if d := s.observe(w, time.Now()); d.end != nil {
		t.Fatalf("ended: %+v", *d.end)
	}
	w.remove(source{kind: kindMigration}, job(kubevirtv1.MigrationFailed))
	if d := s.observe(w, time.Now()); d.end == nil || d.end.code != CodeWrongAddress {
		t.Fatalf("%+v", d)
	}
}

func TestMigration(t *testing.T) {
	const (
		pending, scheduling, preparing = kubevirtv1.MigrationPending, kubevirtv1.MigrationScheduling, kubevirtv1.MigrationPreparingTarget
		running, succeeded, over       = kubevirtv1.MigrationRunning, kubevirtv1.MigrationSucceeded, kubevirtv1.MigrationFailed
	)
	src := pod("src", "i-1", "n1", "198.51.100.20")
	srcDone := pod("src", "i-1", "n1", "198.51.100.20", ended(corev1.PodSucceeded))
	dst := pod("dst", "i-1", "n3", "198.51.100.20", of("m-1"))
	dstDone := pod("dst", "i-1", "n3", "198.51.100.20", of("m-1"), ended(corev1.PodFailed))
	dstNoIP := pod("dst", "i-1", "n3", of("m-1"))
	dstWrong := pod("dst", "i-1", "n3", "198.51.100.77", of("m-1"))
	sidecar := pod("src", "i-1", "n1", "198.51.100.20", func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "compute", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
			{Name: "hook-sidecar-0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}
	})
	atSource := func(edits ...func(*kubevirtv1.VirtualMachineInstance)) *kubevirtv1.VirtualMachineInstance {
		return vmi("i-1", "n1", edits...)
	}
	atTarget := vmi("i-1", "n3", handed("m-1", "n3", started, ready, completed))

	tests := []struct {
		name  string
		state func(*migrationState)
		moves []move
	}{
		{"it goes well", nil, []move{
			see(atSource(), job(""), src).want(PhaseTarget, "waiting for KubeVirt to create the target pod"),
			see(atSource(), job(pending), src, dstNoIP).want(PhaseTarget, "dst on n3"),
			see(atSource(), job(scheduling), src, dst).want(PhaseTarget, "dst on n3, address 198.51.100.20 as reserved"),
			see(atSource(handed("m-1", "n3")), job(preparing), src, dst).want(PhaseTarget, "as reserved"),
			see(atSource(handed("m-1", "n3", started)), job(running), src, dst).want(PhaseHandOver, "memory is being copied to n3"),
			see(atSource(handed("m-1", "n3", started, ready)), job(running), src, dst).want(PhaseHandOver, "domain running on n3"),
			see(atTarget, job(running), src, dst).want(PhaseChecking, "waiting for source pod src on n1 to finish"),
			see(atTarget, job(succeeded), srcDone, dst).done("pod 198.51.100.20 = reservation, guest unknown, one owner, source pod finished"),
		}},
		{"the watch slept through all of it", nil, []move{
			see(atTarget, job(succeeded), srcDone, dst).done("one owner"),
		}},
		{"the source pod is gone already", nil, []move{see(atTarget, job(succeeded), dst).done("")}},
		{"completed while the object lags behind", nil, []move{
			see(atTarget, job(running), srcDone, dst).want(PhaseChecking, "waiting for KubeVirt to close the migration"),
			see(atTarget, job(succeeded), srcDone, dst).done(""),
		}},
		{"KubeVirt has more to do before the object is final", nil, []move{
			see(atTarget, job(running), srcDone, dst).want(PhaseChecking, ""),
			later(16 * time.Second).done(""),
		}},
		{"another migration follows at once", nil, []move{
			see(vmi("i-1", "n3", handed("m-2", "n2")), job(succeeded), srcDone, dst).done(""),
		}},

		{"C35: the target gets another address", nil, []move{
			see(atSource(), job(scheduling), src, dstNoIP).want(PhaseTarget, ""),
			see(atSource(), job(scheduling), src, dstWrong).abort("pod dst on n3 has 198.51.100.77 on interface default, reserved is 198.51.100.20"),
			see(atSource(), job(scheduling, canceled), src, dstWrong).want(PhaseAborting, ""),
			see(atSource(), job(over, canceled), src, dstWrong).want(PhaseAborting, "waiting for target pod dst to finish"),
			see(atSource(), src).failed(CodeWrongAddress, "the machine runs on at the source n1 (pod 198.51.100.20 = reservation)"),
		}},
		{"the object is not seen yet when the target is wrong", nil, []move{
			see(atSource(), src, dstWrong).abort(""),
		}},
		{"an abort is kept until the copying begins", nil, []move{
			see(atSource(handed("m-1", "n3")), job(preparing), src, dstWrong).abort(""),
			see(atSource(handed("m-1", "n3")), job(preparing, canceled), src, dstWrong).want(PhaseAborting, ""),
			later(40*time.Second).want(PhaseAborting, ""),
			see(atSource(handed("m-1", "n3", started, broken("Live migration has been aborted"))), job(over, canceled), src, dstDone).failed(CodeWrongAddress, "runs on at the source"),
		}},
		{"a late abort loses the race", nil, []move{
			see(atSource(handed("m-1", "n3", started)), job(running), src, dstWrong).abort(""),
			see(vmi("i-1", "n3", handed("m-1", "n3", started, ready, completed)), job(succeeded, canceled), srcDone, dstWrong).failed(CodeAbortTooLate, "runs on n3 now, and pod dst on n3 has 198.51.100.77"),
		}},
		{"wrong address seen after the guest has moved: nothing to abort", nil, []move{
			see(atSource(handed("m-1", "n3", started, ready)), job(running), src, dstWrong).want(PhaseHandOver, ""),
			see(atTarget, job(succeeded), srcDone, dstWrong).failed(CodeWrongAddress, "runs on n3 now, but pod dst on n3 has 198.51.100.77"),
		}},
		{"an abort that was not needed", nil, []move{
			see(atSource(), job(scheduling), src, dstNoIP, event("e", "p-dst", "FailedCreatePodSandBox", "slow")).want(PhaseTarget, ""),
			later(6 * time.Second).abort("slow"),
			see(atTarget, job(succeeded, canceled), srcDone, dst).done("which came right"),
		}},
		{"C36: the target's sandbox fails", nil, []move{
			see(atSource(), job(scheduling), src, dstNoIP, event("e", "p-dst", "FailedCreatePodSandBox", "Could not allocate IP in range")).want(PhaseTarget, ""),
			later(6 * time.Second).abort("Could not allocate IP in range"),
			see(atSource(), job(over, canceled), src).failed(CodeSandboxFailed, "aborted before the hand-over: target pod dst on n3 can't get its network"),
		}},
		{"C37: kube-ovn says it in its own event", nil, []move{
			see(atSource(), job(scheduling), src, dstNoIP, event("e", "p-dst", "AcquireAddressFailed", "stage=acquireAddress error=AddressConflict")).want(PhaseTarget, ""),
			later(6 * time.Second).abort("AddressConflict"),
		}},
		{"the target can't be created", nil, []move{
			see(atSource(), job(pending), src, event("e", "i-1", "FailedCreate", "Error creating pod: exceeded quota")).want(PhaseTarget, ""),
			later(6 * time.Second).abort("exceeded quota"),
		}},
		{"C40: the target is on the source's node", nil, []move{
			see(atSource(), job(scheduling), src, pod("dst", "i-1", "n1", of("m-1"))).abort("on the source's own node n1"),
		}},
		{"C40: and only the instance tells", nil, []move{
			see(atSource(handed("m-1", "n1")), job(preparing), src).abort("the source's own node n1"),
		}},
		{"C40: no node fits", nil, []move{
			see(atSource(), job(scheduling), src, pod("dst", "i-1", "", of("m-1"), func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes"}}
			})).want(PhaseTarget, "dst finds no node: 0/3 nodes"),
			see(atSource(), job(over), src, event("e", "m-1", "FailedMigration", "Migration failed because target pod shutdown during migration")).
				failed(CodeMigrationFailed, "migration kubectl-vmip-x failed: FailedMigration: Migration failed because target pod shutdown"),
		}},
		{"C40: it succeeds where it was", nil, []move{
			see(atSource(), job(succeeded), src).want(PhaseTarget, ""),
			later(16*time.Second).failed(CodeSameNode, "succeeded, but the machine has not moved; the machine runs on at the source n1"),
		}},
		{"KubeVirt gives a reason", nil, []move{
			see(atSource(handed("m-1", "n3", started, broken("qemu said no"))), job(over), src, dstDone).failed(CodeMigrationFailed, "failed: qemu said no; the machine runs on at the source n1"),
		}},
		{"the target pod of a failed migration stays", nil, []move{
			see(atSource(handed("m-1", "n3", broken("x"))), job(over), src, dst).want(PhaseChecking, "waiting for target pod dst to finish"),
			later(61*time.Second).failed(CodeMigrationFailed, "target pod dst is still alive"),
		}},
		{"and the source is gone too", nil, []move{
			see(atSource(handed("m-1", "n3", broken("x"))), job(over), srcDone, dstDone).want(PhaseChecking, ""),
			later(16*time.Second).failed(CodeMigrationFailed, "source pod src is not alive any more"),
		}},
		{"the target pod is deleted", nil, []move{
			see(atSource(), job(scheduling), src, dst).want(PhaseTarget, ""),
			see(atSource(), job(scheduling), src).want(PhaseTarget, "waiting for the target pod"),
			see(atSource(), job(over), src).want(PhaseChecking, "gives no reason"),
			later(3*time.Second).failed(CodeMigrationFailed, "runs on at the source"),
		}},
		{"the reason comes a moment later", nil, []move{
			see(atSource(), job(over), src).want(PhaseChecking, ""),
			see(atSource(), job(over), src, event("e", "m-1", "FailedMigration", "target pod shutdown")).failed(CodeMigrationFailed, "failed: FailedMigration: target pod shutdown"),
		}},
		{"somebody else cancels it", nil, []move{
			see(atSource(), job(scheduling, canceled), src, dst).want(PhaseTarget, ""),
			see(atSource(), job(over, canceled), src).failed(CodeMigrationCanceled, "was cancelled, not by this command"),
		}},
		{"somebody else deletes it and the watch missed the end", nil, []move{
			see(atSource(), job(scheduling), src, dst).want(PhaseTarget, ""),
			see(atSource(), src).want(PhaseTarget, ""),
			later(6*time.Second).failed(CodeMigrationCanceled, "runs on at the source"),
		}},
		{"the object vanishes in a gap, but it had succeeded", nil, []move{
			see(atSource(), job(scheduling), src, dst).want(PhaseTarget, ""),
			see(atSource(), src, dst).want(PhaseTarget, ""),
			see(atTarget, srcDone, dst).done(""),
		}},
		{"C56: the source pod never finishes", nil, []move{
			see(atTarget, job(succeeded), sidecar, dst).want(PhaseChecking, "to finish"),
			later(59*time.Second).want(PhaseChecking, ""),
			later(2*time.Second).failed(CodeSourceNotFinished, "only hook-sidecar-0 still runs"),
		}},
		{"a third pod is alive", nil, []move{
			see(atTarget, job(succeeded), srcDone, dst, pod("third", "i-1", "n2", "198.51.100.20")).want(PhaseChecking, ""),
			later(61*time.Second).failed(CodeStrayPod, "third on n2"),
		}},
		{"second actor restarts the machine", nil, []move{
			see(vmi("i-2", "n2"), job(running)).failed(CodeInstanceReplaced, "was restarted during its migration"),
		}},
		{"second actor is restarting the machine", nil, []move{
			see(vmi("i-1", "n1", phase(kubevirtv1.Succeeded), deleting), job(running), src).failed(CodeInstanceReplaced, "is being stopped or restarted, not by this command"),
		}},
		{"second actor stops the machine", nil, []move{
			see(job(running)).failed(CodeInstanceReplaced, "was stopped or deleted"),
		}},
		{"the guest ends", nil, []move{
			see(vmi("i-1", "n1", phase(kubevirtv1.Succeeded)), job(running), src).failed(CodeInstanceFailed, "ended during its migration (Succeeded)"),
		}},
		{"the MAC changed", func(s *migrationState) { s.expect[0].MAC = "02:00:00:00:00:20" }, []move{
			see(vmi("i-1", "n3", handed("m-1", "n3", completed), mac("02:00:00:00:00:99")), job(succeeded), srcDone, dst).failed(CodeWrongMAC, "02:00:00:00:00:99"),
		}},
		{"C46: an older failed target is newer than the source", nil, []move{
			see(atSource(), job(scheduling), src, pod("older", "i-1", "n2", "198.51.100.20", of("m-0"), ended(corev1.PodSucceeded)), dst).want(PhaseTarget, "dst on n3"),
			see(atTarget, job(succeeded), srcDone, pod("older", "i-1", "n2", "198.51.100.20", of("m-0"), ended(corev1.PodSucceeded)), dst).done(""),
		}},
		{"the source was a target once", nil, []move{
			see(atSource(), job(scheduling), pod("src", "i-1", "n1", "198.51.100.20", of("m-0")), dst).want(PhaseTarget, "dst on n3"),
		}},
		{"nothing is reserved", func(s *migrationState) { s.expect = nil }, []move{
			see(atSource(), job(scheduling), src, dstWrong).want(PhaseTarget, "dst on n3"),
			see(atTarget, job(succeeded), srcDone, dstWrong).done("one owner, source pod finished"),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newMigration()
			if tt.state != nil {
				tt.state(s)
			}
			play(t, s, tt.moves)
		})
	}
}
