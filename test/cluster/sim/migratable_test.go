package sim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func testVMI(change ...func(*kubevirtv1.VirtualMachineInstance)) *kubevirtv1.VirtualMachineInstance {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	vmi.Spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
	vmi.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "default"}}
	for _, c := range change {
		c(vmi)
	}
	return vmi
}

func bound(m kubevirtv1.InterfaceBindingMethod) func(*kubevirtv1.VirtualMachineInstance) {
	return func(vmi *kubevirtv1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = m
	}
}

var (
	bridged    = bound(kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}})
	masquerade = bound(kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}})
)

func multus(isDefault bool) func(*kubevirtv1.VirtualMachineInstance) {
	return func(vmi *kubevirtv1.VirtualMachineInstance) {
		vmi.Spec.Networks[0].NetworkSource = kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "lan", Default: isDefault}}
	}
}

func volume(v kubevirtv1.VolumeSource, modes ...corev1.PersistentVolumeAccessMode) func(*kubevirtv1.VirtualMachineInstance) {
	return func(vmi *kubevirtv1.VirtualMachineInstance) {
		vmi.Spec.Volumes = []kubevirtv1.Volume{{Name: "root", VolumeSource: v}}
		vmi.Spec.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "root"}}
		if len(modes) > 0 {
			vmi.Status.VolumeStatus = []kubevirtv1.VolumeStatus{{Name: "root", PersistentVolumeClaimInfo: &kubevirtv1.PersistentVolumeClaimInfo{AccessModes: modes}}}
		}
	}
}

var claim = kubevirtv1.VolumeSource{PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
	PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"},
}}

func TestLiveMigratable(t *testing.T) {
	const interfaceMessage = "cannot migrate VMI which does not use masquerade or a migratable plugin to connect to the pod network"
	const allShared = "live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"
	optIn := func(value string) func(*kubevirtv1.VirtualMachineInstance) {
		return func(vmi *kubevirtv1.VirtualMachineInstance) {
			vmi.Annotations = map[string]string{"kubevirt.io/allow-pod-bridge-network-live-migration": value}
		}
	}
	for name, c := range map[string]struct {
		vmi             *kubevirtv1.VirtualMachineInstance
		reason, message string
		block           bool
	}{
		"masquerade":                 {vmi: testVMI(masquerade)},
		"bridge":                     {vmi: testVMI(bridged), reason: "InterfaceNotLiveMigratable", message: interfaceMessage},
		"bridge, opted in":           {vmi: testVMI(bridged, optIn(""))},
		"bridge, opted in by false":  {vmi: testVMI(bridged, optIn("false"))},
		"bridge on a multus network": {vmi: testVMI(bridged, multus(false))},
		"bridge on a multus default": {vmi: testVMI(bridged, multus(true))},
		"binding plugin": {vmi: testVMI(bound(kubevirtv1.InterfaceBindingMethod{}), func(v *kubevirtv1.VirtualMachineInstance) {
			v.Spec.Domain.Devices.Interfaces[0].Binding = &kubevirtv1.PluginBinding{Name: "x"}
		}), reason: "InterfaceNotLiveMigratable", message: interfaceMessage},
		"no interfaces": {vmi: testVMI(func(v *kubevirtv1.VirtualMachineInstance) { v.Spec.Domain.Devices.Interfaces = nil })},
		"host device": {vmi: testVMI(masquerade, func(v *kubevirtv1.VirtualMachineInstance) {
			v.Spec.Domain.Devices.HostDevices = []kubevirtv1.HostDevice{{Name: "x"}}
		}), reason: "HostDeviceNotLiveMigratable", message: "VMI uses a PCI host devices"},
		"container disk":              {vmi: testVMI(masquerade, volume(kubevirtv1.VolumeSource{ContainerDisk: &kubevirtv1.ContainerDiskSource{}})), block: true},
		"shared claim":                {vmi: testVMI(masquerade, volume(claim, corev1.ReadWriteMany))},
		"claim of one":                {vmi: testVMI(masquerade, volume(claim, corev1.ReadWriteOnce)), reason: "DisksNotLiveMigratable", message: "cannot migrate VMI: PVC disk is not shared, " + allShared, block: true},
		"claim that is not known yet": {vmi: testVMI(masquerade, volume(claim)), reason: "DisksNotLiveMigratable", message: "cannot migrate VMI: Unable to determine if PVC disk is shared, " + allShared, block: true},
		"the interface comes first":   {vmi: testVMI(bridged, volume(claim, corev1.ReadWriteOnce)), reason: "InterfaceNotLiveMigratable", message: interfaceMessage, block: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, block := liveMigratable(c.vmi)
			want := corev1.ConditionTrue
			if c.reason != "" {
				want = corev1.ConditionFalse
			}
			if got.Status != want || got.Reason != c.reason || got.Message != c.message || block != c.block {
				t.Errorf("got %+v, block migration %v", got, block)
			}
		})
	}
	if got := storageLiveMigratable(testVMI(bridged)); got.Reason != "NotMigratable" || got.Message != "InterfaceNotLiveMigratable: "+interfaceMessage {
		t.Errorf("StorageLiveMigratable: %+v", got)
	}
}
