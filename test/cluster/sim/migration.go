package sim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// announceTimeout is how long the target waits for virt-controller to copy the ready timestamp to
// the pod. The real one doesn't wait for that, but for libvirt to call its job done, which takes as long.
const announceTimeout = 2 * time.Second

const libvirtError = "Live migration failed error encountered during MigrateToURI3 libvirt api call: virError(Code=%d, Domain=%d, Message='%s')"

// migrateFrom plays the source of a migration.
func (h *handler) migrateFrom(vmi *kubevirtv1.VirtualMachineInstance, node string, faults faults) (out outcome) {
	m := vmi.Status.MigrationState
	if vmi.IsFinal() || vmi.DeletionTimestamp != nil || m == nil || m.EndTimestamp != nil || vmi.Status.NodeName != node {
		return out
	}
	if pod := h.podOf(vmi, node); pod == nil || !computeRuns(pod) {
		return out
	}
	if m.StartTimestamp == nil {
		if m.TargetNodeAddress == "" || len(m.TargetDirectMigrationNodePorts) == 0 || faults.at(FaultMigrationHang, kubevirtv1.MigrationTargetReady) {
			return out
		}
		if faults.at(FaultMigrationFail, kubevirtv1.MigrationTargetReady) {
			if h.migrationPhase(m) == kubevirtv1.MigrationTargetReady {
				fail(m, &out, fmt.Sprintf(libvirtError, 38, 7, "Cannot recv data: Connection reset by peer"))
			}
			return out
		}
		m.StartTimestamp = ptr.To(metav1.Now())
		m.Mode = kubevirtv1.MigrationPreCopy
		out.normal(kubevirtv1.Migrating, "VirtualMachineInstance is migrating.")
		return out
	}
	if m.TargetNodeDomainReadyTimestamp != nil {
		return out // too late to stop it
	}
	if m.AbortRequested {
		if m.AbortStatus == "" {
			m.AbortStatus = kubevirtv1.MigrationAbortInProgress
			out.normal(kubevirtv1.Migrating, "VirtualMachineInstance is aborting migration.")
			return out
		}
		m.AbortStatus = kubevirtv1.MigrationAbortSucceeded
		fail(m, &out, "Live migration aborted ")
		return out
	}
	if target := h.pod(vmi.Namespace + "/" + m.TargetPod); target != nil && over(target) ||
		// A pod that the store doesn't show may also be one that it doesn't show yet.
		target == nil && h.migrationPhase(m) == kubevirtv1.MigrationFailed {
		fail(m, &out, fmt.Sprintf(libvirtError, 9, 10, "operation failed: migration out job: unexpectedly failed"))
		return out
	}
	if faults.at(FaultMigrationFail, kubevirtv1.MigrationRunning) && m.TargetNodeDomainDetected && h.migrationPhase(m) == kubevirtv1.MigrationRunning {
		fail(m, &out, fmt.Sprintf(libvirtError, 1, 10, "internal error: QEMU unexpectedly closed the monitor"))
		return out
	}
	return h.watchProgress(vmi, faults)
}

// watchProgress gives up a migration that stands still or takes too long, as virt-launcher's monitor does.
func (h *handler) watchProgress(vmi *kubevirtv1.VirtualMachineInstance, faults faults) (out outcome) {
	m := vmi.Status.MigrationState
	var limit int64
	var message string
	switch c := m.MigrationConfiguration; {
	case c == nil:
		return out
	case faults.at(FaultMigrationHang, kubevirtv1.MigrationRunning):
		limit = ptr.Deref(c.ProgressTimeout, 0)
		message = fmt.Sprintf("Live migration stuck for %d seconds and has been aborted", limit)
	case faults.on(FaultSlowMigration):
		limit = ptr.Deref(c.CompletionTimeoutPerGiB, 0) * guestGiB(vmi)
		message = fmt.Sprintf("Live migration is not completed after %d seconds and has been aborted", limit)
	}
	if limit == 0 {
		return out
	}
	if out.wait = time.Duration(limit)*time.Second - h.migrationTook(vmi); out.wait <= 0 {
		out.wait = 0
		m.AbortStatus = kubevirtv1.MigrationAbortSucceeded
		fail(m, &out, message)
	}
	return out
}

// migrationTook is how long the guest's memory has been on its way.
func (h *handler) migrationTook(vmi *kubevirtv1.VirtualMachineInstance) time.Duration {
	m := vmi.Status.MigrationState
	return h.watch.since(vmi.UID, "migration "+string(m.MigrationUID), m.StartTimestamp.Time)
}

func guestGiB(vmi *kubevirtv1.VirtualMachineInstance) int64 {
	if m := vmi.Spec.Domain.Memory; m != nil && m.Guest != nil {
		return max(m.Guest.ScaledValue(0)>>30, 1)
	}
	return 1
}

// fail is what the source says of a migration that has failed. It leaves completed as it is: that
// is the target's word, and virt-controller's where no source has ever started.
func fail(m *kubevirtv1.VirtualMachineInstanceMigrationState, out *outcome, reason string) {
	now := metav1.Now()
	if m.StartTimestamp == nil {
		m.StartTimestamp = &now
		m.Mode = kubevirtv1.MigrationPreCopy
	}
	m.EndTimestamp = &now
	m.Failed = true
	m.FailureReason = reason
	out.warning(kubevirtv1.Migrated, fmt.Sprintf("VirtualMachineInstance migration uid %s failed. reason:%s", m.MigrationUID, reason))
}

// migrateTo plays the target of a migration.
func (h *handler) migrateTo(vmi *kubevirtv1.VirtualMachineInstance, node string, faults faults) (out outcome) {
	m := vmi.Status.MigrationState
	if vmi.IsFinal() || vmi.DeletionTimestamp != nil || m == nil || m.TargetNode != node {
		return out
	}
	if m.EndTimestamp != nil {
		if m.Completed || m.Failed {
			delete(vmi.Labels, kubevirtv1.MigrationTargetNodeNameLabel)
			delete(vmi.Annotations, kubevirtv1.CreateMigrationTarget)
		} else {
			finalizeMigration(vmi)
		}
		return out
	}
	pod := h.pod(vmi.Namespace + "/" + m.TargetPod)
	if pod == nil || !computeRuns(pod) {
		return out
	}
	switch {
	case m.TargetNodeAddress == "":
		if faults.at(FaultMigrationHang, kubevirtv1.MigrationPreparingTarget) ||
			faults.at(FaultMigrationFail, kubevirtv1.MigrationPreparingTarget) || faults.at(FaultMigrationFail, kubevirtv1.MigrationScheduled) {
			return out // in the second case the launcher is about to die
		}
		listen(m, h.address(node).String(), &out)
	case m.StartTimestamp == nil:
	case !m.TargetNodeDomainDetected:
		m.TargetNodeDomainDetected = true
	case m.TargetNodeDomainReadyTimestamp == nil:
		if m.AbortRequested || faults.at(FaultMigrationHang, kubevirtv1.MigrationRunning) || faults.at(FaultMigrationFail, kubevirtv1.MigrationRunning) {
			return out
		}
		slow := faults.duration(FaultSlowMigration)
		if out.wait = slow - h.migrationTook(vmi); slow > 0 && out.wait > 0 {
			return out
		}
		out.wait = 0
		m.TargetNodeDomainReadyTimestamp = ptr.To(metav1.Now())
		removeCondition(vmi, kubevirtv1.VirtualMachineInstanceMigrationRequired)
	default:
		if !hosted(pod) {
			ready := h.watch.since(vmi.UID, "announce "+string(m.MigrationUID), m.TargetNodeDomainReadyTimestamp.Time)
			if out.wait = announceTimeout - ready; out.wait > 0 {
				return out
			}
		}
		out.wait = 0
		h.takeOver(vmi, node, &out)
	}
	return out
}

// listen publishes where the target's migration proxy waits for the source.
func listen(m *kubevirtv1.VirtualMachineInstanceMigrationState, address string, out *outcome) {
	sum := fnv.New32()
	sum.Write([]byte(m.MigrationUID))
	first := 30000 + int(sum.Sum32()%30000)
	m.TargetNodeAddress = address
	m.TargetDirectMigrationNodePorts = map[string]int{}
	var ports []string
	// The ports behind the proxy: libvirt's socket, QEMU's memory and QEMU's block migration.
	for i, port := range []int{0, 49152, 49153} {
		listening := strconv.Itoa(first + i)
		m.TargetDirectMigrationNodePorts[listening] = port
		ports = append(ports, listening)
	}
	slices.Sort(ports)
	out.normal(kubevirtv1.PreparingTarget, "VirtualMachineInstance Migration Target Prepared.")
	out.normal(kubevirtv1.PreparingTarget, fmt.Sprintf("Migration Target is listening at %s, on ports: %s", address, ports[0]+","+ports[1]+","+ports[2]))
}

// takeOver moves a VMI to the node that its guest now runs on.
func (h *handler) takeOver(vmi *kubevirtv1.VirtualMachineInstance, node string, out *outcome) {
	m := vmi.Status.MigrationState
	m.EndTimestamp = ptr.To(metav1.Now())
	vmi.Labels[kubevirtv1.NodeNameLabel] = node
	delete(vmi.Labels, kubevirtv1.OutdatedLauncherImageLabel)
	delete(vmi.Annotations, kubevirtv1.EvictionSourceAnnotation)
	vmi.Status.NodeName = node
	vmi.Status.EvacuationNodeName = ""
	vmi.Status.LauncherContainerImageVersion = ""
	vmi.Status.MigrationTransport = kubevirtv1.MigrationTransportUnix
	if m.TargetMemoryOverhead != nil {
		if vmi.Status.Memory == nil {
			vmi.Status.Memory = &kubevirtv1.MemoryStatus{}
		}
		vmi.Status.Memory.MemoryOverhead = m.TargetMemoryOverhead
	}
	out.normal(kubevirtv1.Migrated, fmt.Sprintf("The VirtualMachineInstance migrated to node %s.", node))
}

// finalizeMigration plugs in what a hot-plug migration was for, and calls it completed.
func finalizeMigration(vmi *kubevirtv1.VirtualMachineInstance) {
	if cpu := vmi.Spec.Domain.CPU; cpu != nil && hasCondition(vmi, kubevirtv1.VirtualMachineInstanceVCPUChange) {
		vmi.Status.CurrentCPUTopology = &kubevirtv1.CPUTopology{Sockets: cpu.Sockets, Cores: cpu.Cores, Threads: cpu.Threads}
	}
	delete(vmi.Labels, kubevirtv1.VirtualMachinePodCPULimitsLabel)
	removeCondition(vmi, kubevirtv1.VirtualMachineInstanceVCPUChange)

	if hasCondition(vmi, kubevirtv1.VirtualMachineInstanceMemoryChange) && vmi.Status.Memory != nil && vmi.Spec.Domain.Memory != nil {
		vmi.Status.Memory.GuestRequested = vmi.Spec.Domain.Memory.Guest
	}
	delete(vmi.Labels, kubevirtv1.VirtualMachinePodMemoryRequestsLabel)
	delete(vmi.Labels, kubevirtv1.MemoryHotplugOverheadRatioLabel)
	removeCondition(vmi, kubevirtv1.VirtualMachineInstanceMemoryChange)

	removeCondition(vmi, kubevirtv1.VirtualMachineInstanceVolumesChange)
	vmi.Status.MigratedVolumes = nil
	vmi.Status.MigrationState.Completed = true
}
