package sim

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// handler is virt-handler on all nodes, with the launchers and guests behind it.
type handler struct {
	*cluster
	queue *queue
}

func newHandler(c *cluster) *handler {
	h := &handler{cluster: c}
	h.queue = newQueue(c.log.With("component", "virt-handler"), 16, h.step)
	return h
}

// outcome is what a look at a VMI leads to, besides what has changed in it.
type outcome struct {
	// wait is when to look again, if nothing changes.
	wait   time.Duration
	events []event
}

type event struct {
	kind    string
	reason  kubevirtv1.SyncEvent
	message string
}

func (o *outcome) normal(reason kubevirtv1.SyncEvent, message string) {
	o.events = append(o.events, event{corev1.EventTypeNormal, reason, message})
}

func (o *outcome) warning(reason kubevirtv1.SyncEvent, message string) {
	o.events = append(o.events, event{corev1.EventTypeWarning, reason, message})
}

// step lets every node that has a part in a VMI play it. At most one of them writes: the watch
// brings the result back.
func (h *handler) step(ctx context.Context, key string) (time.Duration, error) {
	vmi := get[*kubevirtv1.VirtualMachineInstance](h.vmis, key)
	if vmi == nil {
		return 0, nil
	}
	var wait time.Duration
	for _, role := range []struct {
		node string
		play func(vmi *kubevirtv1.VirtualMachineInstance, node string, faults faults) outcome
	}{
		{vmi.Status.NodeName, h.instanceOn},
		{migrationSource(vmi), h.migrateFrom},
		{vmi.Labels[kubevirtv1.MigrationTargetNodeNameLabel], h.migrateTo},
	} {
		if !h.plays(role.node) || h.silent(role.node) {
			continue
		}
		after := vmi.DeepCopy()
		out := role.play(after, role.node, h.vmiFaults(vmi, role.node))
		if !changed(vmi, after) {
			if out.wait > 0 && (wait == 0 || out.wait < wait) {
				wait = out.wait
			}
			continue
		}
		_, err := h.virtHandlers[role.node].kubevirt.KubevirtV1().VirtualMachineInstances(vmi.Namespace).Update(ctx, after, metav1.UpdateOptions{})
		if err != nil {
			return 0, err
		}
		for _, e := range out.events {
			h.recorder("virt-handler", role.node).Event(after, e.kind, e.reason.String(), e.message)
		}
		return out.wait, nil
	}
	return wait, nil
}

func changed(a, b *kubevirtv1.VirtualMachineInstance) bool {
	return !equality.Semantic.DeepEqual(a.Status, b.Status) ||
		!equality.Semantic.DeepEqual(a.Labels, b.Labels) || !equality.Semantic.DeepEqual(a.Annotations, b.Annotations)
}

// instanceOn plays the node that a VMI is on: start, status, end.
func (h *handler) instanceOn(vmi *kubevirtv1.VirtualMachineInstance, node string, faults faults) (out outcome) {
	// Whatever happens to a migrating VMI is the business of the other two halves.
	if vmi.DeletionTimestamp == nil && migrating(vmi) {
		return out
	}
	pod := h.podOf(vmi, node)
	if pod == nil {
		return out // virt-controller notices
	}
	switch vmi.Status.Phase {
	case kubevirtv1.Scheduled:
		if vmi.DeletionTimestamp != nil || pod.DeletionTimestamp != nil || !computeRuns(pod) {
			return out
		}
		slow := faults.duration(FaultSlowStart)
		if out.wait = slow - h.watch.since(vmi.UID, "start", phaseTime(vmi)); slow > 0 && out.wait > 0 {
			return out
		}
		out.wait = 0
		// The agent is not up yet when the domain is.
		h.report(vmi, pod, faults, false)
		setPhase(vmi, kubevirtv1.Running)
		out.normal(kubevirtv1.Created, "VirtualMachineInstance defined.")
		out.normal(kubevirtv1.Started, "VirtualMachineInstance started.")
	case kubevirtv1.Running:
		phase, wait := h.guestEnd(vmi, pod, faults)
		out.wait = wait
		switch phase {
		case kubevirtv1.Succeeded:
			out.normal(kubevirtv1.Stopped, "The VirtualMachineInstance was shut down.")
		case kubevirtv1.Failed:
			out.warning(kubevirtv1.Stopped, "The VirtualMachineInstance crashed.")
		default:
			h.report(vmi, pod, faults, faults.on(GuestAgent))
			return out
		}
		out.normal(kubevirtv1.Deleted, "Signaled Deletion")
		setPhase(vmi, phase)
	}
	return out
}

// guestEnd tells whether the guest of a VMI has ended: Succeeded where it went in order. Otherwise
// it returns how long that will still take, where it is on its way.
func (h *handler) guestEnd(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod, faults faults) (kubevirtv1.VirtualMachineInstancePhase, time.Duration) {
	if e, ok := exited(pod); ok && e.Code != 0 && hosted(pod) {
		return kubevirtv1.Failed, 0
	}
	switch value, off := faults.get(GuestPoweroff); {
	case off && value == "crash":
		return kubevirtv1.Failed, 0
	case off:
		return kubevirtv1.Succeeded, 0
	}
	var asked time.Time
	switch {
	case vmi.DeletionTimestamp != nil:
		asked = vmi.DeletionTimestamp.Time
	case pod.DeletionTimestamp != nil:
		asked = pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
	default:
		return "", 0
	}
	if pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) <= 1 {
		return "", 0 // no guest shuts down within a second: the kubelet kills it
	}
	grace := time.Duration(ptr.Deref(vmi.Spec.TerminationGracePeriodSeconds, kubevirtv1.DefaultGracePeriodSeconds)) * time.Second
	needs := faults.duration(FaultSlowStop)
	if faults.on(FaultIgnoresShutdown) {
		needs = math.MaxInt64
	}
	took := h.watch.since(vmi.UID, "stop", asked)
	// The fastest guest is slower than virt-controller is with the pod, unless that is down.
	if wait := time.Second - took; pod.DeletionTimestamp == nil && wait > 0 {
		return "", wait
	}
	switch {
	case grace == 0: // killed at once, which counts as an orderly end without ACPI
		return kubevirtv1.Succeeded, 0
	case took >= needs:
		return kubevirtv1.Succeeded, 0
	case took >= grace:
		return kubevirtv1.Failed, 0
	default:
		return "", min(needs, grace) - took
	}
}

// podOf is the launcher pod of a VMI on a node: one that isn't over, the newest where there are more.
func (h *handler) podOf(vmi *kubevirtv1.VirtualMachineInstance, node string) *corev1.Pod {
	pods := slices.DeleteFunc(h.podsOwnedBy(vmi.UID), func(p *corev1.Pod) bool { return !isLauncher(p) || p.Spec.NodeName != node })
	if len(pods) == 0 {
		return nil
	}
	return slices.MaxFunc(pods, func(a, b *corev1.Pod) int {
		switch {
		case terminal(a) != terminal(b) && terminal(a):
			return -1
		case terminal(a) != terminal(b):
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
}

// report fills in what virt-handler knows of a running domain.
func (h *handler) report(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod, faults faults, agent bool) {
	s := &vmi.Status
	s.SelinuxContext = "none"
	s.Machine = &kubevirtv1.Machine{Type: machineType(vmi)}
	if s.Memory != nil && s.Memory.GuestRequested != nil {
		s.Memory.GuestCurrent = s.Memory.GuestRequested
	}
	live, blockMigration := liveMigratable(vmi)
	replaceCondition(vmi, live)
	s.MigrationMethod = kubevirtv1.LiveMigration
	if blockMigration {
		s.MigrationMethod = kubevirtv1.BlockMigration
	}
	replaceCondition(vmi, storageLiveMigratable(vmi))

	connected := hasCondition(vmi, kubevirtv1.VirtualMachineInstanceAgentConnected)
	switch {
	case agent && !connected:
		s.Conditions = append(s.Conditions, kubevirtv1.VirtualMachineInstanceCondition{
			Type: kubevirtv1.VirtualMachineInstanceAgentConnected, Status: corev1.ConditionTrue, LastProbeTime: metav1.Now(),
		})
	case !agent && connected:
		removeCondition(vmi, kubevirtv1.VirtualMachineInstanceAgentConnected)
	}
	if agent && s.GuestOSInfo.Name == "" {
		s.GuestOSInfo = kubevirtv1.VirtualMachineInstanceGuestOSInfo{
			ID: "fedora", Name: "Fedora Linux", PrettyName: "Fedora Linux 43", Version: "43", VersionID: "43", Machine: "x86_64", KernelRelease: "6.17.1",
		}
	}
	if err := reportInterfaces(vmi, pod, h.firstPod(vmi), agent, faults); err != nil {
		h.log.Warn("interfaces", "vmi", key(vmi), "error", err)
	}
}

// firstPod is the launcher that a guest was booted in: what its network gave the guest there, the
// guest keeps, wherever it is migrated.
func (h *handler) firstPod(vmi *kubevirtv1.VirtualMachineInstance) *corev1.Pod {
	pods := slices.DeleteFunc(h.podsOwnedBy(vmi.UID), func(p *corev1.Pod) bool { return !isLauncher(p) })
	if len(pods) == 0 {
		return nil
	}
	return slices.MinFunc(pods, func(a, b *corev1.Pod) int {
		// Creation times are whole seconds, and a target may be created in the first pod's.
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Labels[kubevirtv1.MigrationJobLabel], b.Labels[kubevirtv1.MigrationJobLabel]))
	})
}

func machineType(vmi *kubevirtv1.VirtualMachineInstance) string {
	if m := vmi.Spec.Domain.Machine; m != nil && m.Type != "" && m.Type != "q35" {
		return m.Type
	}
	return canonicalMachine
}

func migrating(vmi *kubevirtv1.VirtualMachineInstance) bool {
	m := vmi.Status.MigrationState
	return m != nil && m.StartTimestamp != nil && m.EndTimestamp == nil
}

func migrationSource(vmi *kubevirtv1.VirtualMachineInstance) string {
	if m := vmi.Status.MigrationState; m != nil {
		return m.SourceNode
	}
	return ""
}

func setPhase(vmi *kubevirtv1.VirtualMachineInstance, phase kubevirtv1.VirtualMachineInstancePhase) {
	vmi.Status.Phase = phase
	for _, t := range vmi.Status.PhaseTransitionTimestamps {
		if t.Phase == phase {
			return
		}
	}
	vmi.Status.PhaseTransitionTimestamps = append(vmi.Status.PhaseTransitionTimestamps,
		kubevirtv1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: phase, PhaseTransitionTimestamp: metav1.Now()})
}

// phaseTime is when a VMI came to its phase.
func phaseTime(vmi *kubevirtv1.VirtualMachineInstance) time.Time {
	for _, t := range vmi.Status.PhaseTransitionTimestamps {
		if t.Phase == vmi.Status.Phase {
			return t.PhaseTransitionTimestamp.Time
		}
	}
	return vmi.CreationTimestamp.Time
}

func hasCondition(vmi *kubevirtv1.VirtualMachineInstance, t kubevirtv1.VirtualMachineInstanceConditionType) bool {
	for _, c := range vmi.Status.Conditions {
		if c.Type == t {
			return true
		}
	}
	return false
}

func removeCondition(vmi *kubevirtv1.VirtualMachineInstance, t kubevirtv1.VirtualMachineInstanceConditionType) {
	var kept []kubevirtv1.VirtualMachineInstanceCondition
	for _, c := range vmi.Status.Conditions {
		if c.Type != t {
			kept = append(kept, c)
		}
	}
	vmi.Status.Conditions = kept
}

// replaceCondition leaves an equal condition where it is.
func replaceCondition(vmi *kubevirtv1.VirtualMachineInstance, c kubevirtv1.VirtualMachineInstanceCondition) {
	for _, old := range vmi.Status.Conditions {
		if old.Type == c.Type && equality.Semantic.DeepEqual(old, c) {
			return
		}
	}
	removeCondition(vmi, c.Type)
	vmi.Status.Conditions = append(vmi.Status.Conditions, c)
}
