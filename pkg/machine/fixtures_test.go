package machine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func ownedBy(kind, name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: kind, Name: name, UID: uid, Controller: new(true)}}
}

func newVM(interfaces []kubevirtv1.Interface, networks []kubevirtv1.Network) *kubevirtv1.VirtualMachine {
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "db-1", UID: "u-db1", ResourceVersion: "7"}}
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	vm.Spec.Template.Spec.Domain.Devices.Interfaces = interfaces
	vm.Spec.Template.Spec.Networks = networks
	return vm
}

func podNetwork(name string) kubevirtv1.Network {
	return kubevirtv1.Network{Name: name, NetworkSource: kubevirtv1.NetworkSource{Pod: &kubevirtv1.PodNetwork{}}}
}

func multus(name, attachment string) kubevirtv1.Network {
	return kubevirtv1.Network{Name: name, NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: attachment}}}
}

func bridge(name string) kubevirtv1.Interface {
	return kubevirtv1.Interface{Name: name, InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}}
}

func masquerade(name string) kubevirtv1.Interface {
	return kubevirtv1.Interface{Name: name, InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}}}
}

// running is db-1 with an instance on n1.
func running(interfaces []kubevirtv1.Interface, networks []kubevirtv1.Network) *View {
	vm := newVM(interfaces, networks)
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "db-1", UID: "i-db1", OwnerReferences: ownedBy("VirtualMachine", "db-1", "u-db1")}}
	vmi.Spec = vm.Spec.Template.Spec
	vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Running, "n1"
	return &View{VM: vm, VMI: vmi}
}

var start = time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)

// launcher is a launcher pod of db-1; age counts in minutes from start.
func launcher(name, node string, phase corev1.PodPhase, minute int) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant-a", Name: name, UID: types.UID("p-" + name), CreationTimestamp: metav1.NewTime(start.Add(time.Duration(minute) * time.Minute)),
			Labels: map[string]string{kubevirtv1.CreatedByLabel: "i-db1"}, OwnerReferences: ownedBy("VirtualMachineInstance", "db-1", "i-db1"),
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// of makes the pod the target of a migration.
func of(migration types.UID, p corev1.Pod) corev1.Pod {
	p.Labels[kubevirtv1.MigrationJobLabel] = string(migration)
	return p
}

func migration(uid types.UID, phase kubevirtv1.VirtualMachineInstanceMigrationPhase) kubevirtv1.VirtualMachineInstanceMigration {
	m := kubevirtv1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "move-" + string(uid), UID: uid, Labels: map[string]string{kubevirtv1.MigrationSelectorLabel: "db-1"}}}
	m.Spec.VMIName, m.Status.Phase = "db-1", phase
	return m
}
