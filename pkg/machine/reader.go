package machine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt"
)

// Reader reads one machine at a time. Its requests do not grow with the cluster.
type Reader struct {
	KubeVirt kubevirt.Interface
	Core     kubernetes.Interface
}

// VM reads a virtual machine.
func (r Reader) VM(ctx context.Context, ref Ref) (*kubevirtv1.VirtualMachine, error) {
	vm, err := r.KubeVirt.KubevirtV1().VirtualMachines(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("virtualmachine %s: %w", ref, err)
	}
	return vm, nil
}

// View reads a virtual machine, its instance, the pods that the instance controls, and its
// migrations. An instance of the same name that belongs to something else is an error: nothing
// that is read from it would be about the machine.
func (r Reader) View(ctx context.Context, ref Ref) (*View, error) {
	vm, err := r.VM(ctx, ref)
	if err != nil {
		return nil, err
	}
	v := &View{VM: vm}
	vmi, err := r.KubeVirt.KubevirtV1().VirtualMachineInstances(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return v, nil
	case err != nil:
		return nil, fmt.Errorf("virtualmachine %s: read its instance: %w", ref, err)
	}
	if owner := controlledBy(vmi, "VirtualMachine"); owner == nil || owner.UID != vm.UID {
		return nil, &StrangerError{Ref: ref, VMI: vmi, VM: vm}
	}
	v.VMI = vmi
	if v.Pods, err = r.pods(ctx, vmi); err != nil {
		return nil, fmt.Errorf("virtualmachine %s: list its pods: %w", ref, err)
	}
	if v.Migrations, err = r.migrations(ctx, vmi); err != nil {
		return nil, fmt.Errorf("virtualmachine %s: list its migrations: %w", ref, err)
	}
	return v, nil
}

// pods lists by label, and keeps what the owner reference confirms: anybody may write a label.
func (r Reader) pods(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) ([]corev1.Pod, error) {
	list, err := r.Core.CoreV1().Pods(vmi.Namespace).List(ctx, metav1.ListOptions{LabelSelector: kubevirtv1.CreatedByLabel + "=" + string(vmi.UID)})
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		owner := controlledBy(&p, "VirtualMachineInstance")
		return owner == nil || owner.UID != vmi.UID
	})
	sortPods(pods)
	return pods, nil
}

func (r Reader) migrations(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) ([]kubevirtv1.VirtualMachineInstanceMigration, error) {
	var opts metav1.ListOptions
	if len(vmi.Name) <= validation.LabelValueMaxLength { // a longer name has no label
		opts.LabelSelector = kubevirtv1.MigrationSelectorLabel + "=" + vmi.Name
	}
	list, err := r.KubeVirt.KubevirtV1().VirtualMachineInstanceMigrations(vmi.Namespace).List(ctx, opts)
	if err != nil {
		return nil, err
	}
	migrations := slices.DeleteFunc(list.Items, func(m kubevirtv1.VirtualMachineInstanceMigration) bool { return m.Spec.VMIName != vmi.Name })
	sortMigrations(migrations)
	return migrations, nil
}

func sortPods(pods []corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int { return byAge(&a, &b) })
}

func sortMigrations(list []kubevirtv1.VirtualMachineInstanceMigration) {
	slices.SortStableFunc(list, func(a, b kubevirtv1.VirtualMachineInstanceMigration) int { return byAge(&a, &b) })
}

// byAge orders by creation, and by name within a second, which is the resolution of timestamps.
func byAge(a, b metav1.Object) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
}

// StrangerError is a VMI that has the name of a VM and belongs to something else.
type StrangerError struct {
	Ref Ref
	VM  *kubevirtv1.VirtualMachine
	VMI *kubevirtv1.VirtualMachineInstance
}

func (e *StrangerError) Error() string {
	owner := "nothing"
	if o := metav1.GetControllerOf(e.VMI); o != nil {
		owner = fmt.Sprintf("%s %s (UID %s)", o.Kind, o.Name, o.UID)
	}
	return fmt.Sprintf("virtualmachine %s (UID %s): the virtualmachineinstance of that name belongs to %s: delete it, or wait until it is gone", e.Ref, e.VM.UID, owner)
}
