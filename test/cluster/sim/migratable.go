package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/kubevirt/pkg/network/vmispec"
)

// obstacle is a reason against a live migration.
type obstacle struct{ reason, message string }

// obstacles are those that don't come from disks, in the order in which virt-handler looks for
// them. The network's is KubeVirt's own function; binding plugins count as not migratable.
func obstacles(vmi *kubevirtv1.VirtualMachineInstance) (found []obstacle) {
	if err := vmispec.VerifyVMIMigratable(vmi, nil); err != nil {
		found = append(found, obstacle{kubevirtv1.VirtualMachineInstanceReasonInterfaceNotMigratable, err.Error()})
	}
	if d := vmi.Spec.Domain.Devices; len(d.HostDevices) > 0 || len(d.GPUs) > 0 {
		found = append(found, obstacle{kubevirtv1.VirtualMachineInstanceReasonHostDeviceNotMigratable, "VMI uses a PCI host devices"})
	}
	if s := vmi.Spec.Domain.LaunchSecurity; s != nil && s.SEV != nil {
		found = append(found, obstacle{kubevirtv1.VirtualMachineInstanceReasonSEVNotMigratable, "VMI uses SEV"})
	}
	return found
}

// liveMigratable is the VMI's LiveMigratable condition, and whether disks have to be copied.
func liveMigratable(vmi *kubevirtv1.VirtualMachineInstance) (c kubevirtv1.VirtualMachineInstanceCondition, block bool) {
	c = kubevirtv1.VirtualMachineInstanceCondition{Type: kubevirtv1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}
	block, err := localDisks(vmi)
	found := obstacles(vmi)
	if err != nil {
		found = append(found, obstacle{kubevirtv1.VirtualMachineInstanceReasonDisksNotMigratable, err.Error()})
	}
	if len(found) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, found[0].reason, found[0].message
	}
	return c, block
}

// storageLiveMigratable is the condition that counts where volumes are migrated along.
func storageLiveMigratable(vmi *kubevirtv1.VirtualMachineInstance) kubevirtv1.VirtualMachineInstanceCondition {
	c := kubevirtv1.VirtualMachineInstanceCondition{Type: kubevirtv1.VirtualMachineInstanceIsStorageLiveMigratable, Status: corev1.ConditionTrue}
	var messages []string
	for _, o := range obstacles(vmi) {
		messages = append(messages, o.reason+": "+o.message)
	}
	if len(messages) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, kubevirtv1.VirtualMachineInstanceReasonNotMigratable, strings.Join(messages, ", ")
	}
	return c
}

// localDisks tells whether a migration has to copy disks, with an error where it can't.
func localDisks(vmi *kubevirtv1.VirtualMachineInstance) (block bool, err error) {
	block = len(vmi.Status.MigratedVolumes) > 0
	shared := func(volume string) (known, ok bool) {
		i := slices.IndexFunc(vmi.Status.VolumeStatus, func(s kubevirtv1.VolumeStatus) bool { return s.Name == volume })
		if i < 0 || vmi.Status.VolumeStatus[i].PersistentVolumeClaimInfo == nil {
			return false, false
		}
		return true, slices.Contains(vmi.Status.VolumeStatus[i].PersistentVolumeClaimInfo.AccessModes, corev1.ReadWriteMany) ||
			slices.ContainsFunc(vmi.Status.MigratedVolumes, func(m kubevirtv1.StorageMigratedVolumeInfo) bool { return m.VolumeName == volume })
	}
	const all = "live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"
	for _, v := range vmi.Spec.Volumes {
		var claim string
		switch {
		case v.PersistentVolumeClaim != nil:
			claim = v.PersistentVolumeClaim.ClaimName
		case v.DataVolume != nil:
			claim = v.DataVolume.Name
		case v.HostDisk != nil:
			if v.HostDisk.Shared == nil || !*v.HostDisk.Shared {
				return true, errors.New("cannot migrate VMI with non-shared HostDisk")
			}
			continue
		default:
			if !virtiofs(vmi, v.Name) && !readOnly(vmi, v.Name) {
				block = true
			}
			continue
		}
		switch known, ok := shared(v.Name); {
		case !known:
			return true, fmt.Errorf("cannot migrate VMI: Unable to determine if PVC %v is shared, %s", claim, all)
		case !ok:
			return true, fmt.Errorf("cannot migrate VMI: PVC %v is not shared, %s", claim, all)
		}
	}
	return block, nil
}

func virtiofs(vmi *kubevirtv1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Filesystems, func(f kubevirtv1.Filesystem) bool { return f.Name == volume })
}

func readOnly(vmi *kubevirtv1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d kubevirtv1.Disk) bool {
		return d.Name == volume && d.CDRom != nil && (d.CDRom.ReadOnly == nil || *d.CDRom.ReadOnly)
	})
}
