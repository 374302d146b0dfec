// Package machine is the view of one virtual machine: its interfaces and bindings, the running
// instance, the pods that carry it and the addresses that they have. Pods are attributed by UIDs
// and owner references only, never by labels: vm.kubevirt.io/name is the guest's hostname.
package machine

import (
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Ref names a virtual machine.
type Ref struct{ Namespace, Name string }

func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// RefOf returns the name of a virtual machine.
func RefOf(vm *kubevirtv1.VirtualMachine) Ref { return Ref{vm.Namespace, vm.Name} }

// View is everything that was read about one machine.
type View struct {
	VM *kubevirtv1.VirtualMachine
	// VMI is nil where the machine does not run.
	VMI *kubevirtv1.VirtualMachineInstance
	// Pods are the pods controlled by the VMI's UID, finished ones included.
	Pods []corev1.Pod
	// Migrations are the migration objects that name the VMI, by age.
	Migrations []kubevirtv1.VirtualMachineInstanceMigration
}

// Ref names the machine. A view without a VM is one of a VMI that no VM owns.
func (v *View) Ref() Ref {
	switch {
	case v.VM != nil:
		return RefOf(v.VM)
	case v.VMI != nil:
		return Ref{v.VMI.Namespace, v.VMI.Name}
	}
	return Ref{}
}
