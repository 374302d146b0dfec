package machine

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Role is what a pod is to a virtual machine.
type Role int

// The roles.
const (
	// Other pods are none of KubeVirt's machines'.
	Other Role = iota
	// Launcher pods carry a guest, or will.
	Launcher
	// Provisioner pods stand in for a guest until a volume is bound; they get addresses.
	Provisioner
	// Attachment pods hold hot-plugged volumes of a launcher pod; they get addresses.
	Attachment
)

func (r Role) String() string {
	return [...]string{"other", "launcher", "provisioner", "attachment"}[r]
}

// Index answers for a whole cluster, or a dump of one, which pod belongs to which machine. It
// decides by UIDs. It is built once and only read afterwards.
type Index struct {
	vms        map[types.UID]*kubevirtv1.VirtualMachine
	vmis       map[types.UID]*kubevirtv1.VirtualMachineInstance
	pods       map[types.UID]*corev1.Pod
	byRef      map[Ref]*kubevirtv1.VirtualMachine
	instance   map[Ref]*kubevirtv1.VirtualMachineInstance
	owned      map[types.UID][]*corev1.Pod
	migrations map[Ref][]*kubevirtv1.VirtualMachineInstanceMigration
	refs       []Ref
	bare       []*kubevirtv1.VirtualMachineInstance
}

// NewIndex builds an Index. The lists must not change while it is used.
func NewIndex(vms []kubevirtv1.VirtualMachine, vmis []kubevirtv1.VirtualMachineInstance, pods []corev1.Pod, migrations []kubevirtv1.VirtualMachineInstanceMigration) *Index {
	x := &Index{
		vms:        make(map[types.UID]*kubevirtv1.VirtualMachine, len(vms)),
		vmis:       make(map[types.UID]*kubevirtv1.VirtualMachineInstance, len(vmis)),
		pods:       make(map[types.UID]*corev1.Pod, len(pods)),
		byRef:      make(map[Ref]*kubevirtv1.VirtualMachine, len(vms)),
		instance:   make(map[Ref]*kubevirtv1.VirtualMachineInstance, len(vmis)),
		owned:      make(map[types.UID][]*corev1.Pod, len(vmis)),
		migrations: make(map[Ref][]*kubevirtv1.VirtualMachineInstanceMigration, len(migrations)),
		refs:       make([]Ref, 0, len(vms)),
	}
	for n := range vms {
		vm := &vms[n]
		x.vms[vm.UID], x.byRef[RefOf(vm)] = vm, vm
		x.refs = append(x.refs, RefOf(vm))
	}
	slices.SortFunc(x.refs, func(a, b Ref) int { return strings.Compare(a.String(), b.String()) })
	for n := range vmis {
		vmi := &vmis[n]
		x.vmis[vmi.UID], x.instance[Ref{vmi.Namespace, vmi.Name}] = vmi, vmi
		if x.VMOf(vmi) == nil {
			x.bare = append(x.bare, vmi)
		}
	}
	for n := range pods {
		p := &pods[n]
		x.pods[p.UID] = p
		if o := controlledBy(p, "VirtualMachineInstance"); o != nil {
			x.owned[o.UID] = append(x.owned[o.UID], p)
		}
	}
	for n := range migrations {
		m := &migrations[n]
		ref := Ref{m.Namespace, m.Spec.VMIName}
		x.migrations[ref] = append(x.migrations[ref], m)
	}
	return x
}

// Refs lists the machines, by namespace and name.
func (x *Index) Refs() []Ref { return x.refs }

// Bare lists the VMIs that no VM of the index owns: they have no lasting identity.
func (x *Index) Bare() []*kubevirtv1.VirtualMachineInstance { return x.bare }

// VM returns the machine of that UID, nil where there is none.
func (x *Index) VM(uid types.UID) *kubevirtv1.VirtualMachine { return x.vms[uid] }

// VMOf returns the machine that owns a VMI, nil for one that stands alone or belongs to something
// else than a VM of the index.
func (x *Index) VMOf(vmi *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachine {
	o := controlledBy(vmi, "VirtualMachine")
	if o == nil {
		return nil
	}
	return x.vms[o.UID]
}

// Role tells KubeVirt's kinds of pods apart, by their controllers. A pod whose VMI or launcher pod
// is not in the index keeps its role: the lists may have been read at different moments.
func (x *Index) Role(p *corev1.Pod) Role {
	if controlledBy(p, "VirtualMachineInstance") != nil {
		if Provisioning(p) {
			return Provisioner
		}
		return Launcher
	}
	o := controlledBy(p, "Pod")
	if o == nil {
		return Other
	}
	if launcher := x.pods[o.UID]; launcher != nil && controlledBy(launcher, "VirtualMachineInstance") != nil {
		return Attachment
	}
	return Other
}

// Owner resolves a pod to its VMI and VM, through the launcher pod for a volume's attachment pod.
// ok is false where the pod is none of KubeVirt's or its VMI is not in the index; vm is nil where
// no VM owns the VMI.
func (x *Index) Owner(p *corev1.Pod) (vmi *kubevirtv1.VirtualMachineInstance, vm *kubevirtv1.VirtualMachine, ok bool) {
	if o := controlledBy(p, "Pod"); o != nil {
		if p = x.pods[o.UID]; p == nil {
			return nil, nil, false
		}
	}
	o := controlledBy(p, "VirtualMachineInstance")
	if o == nil || x.vmis[o.UID] == nil {
		return nil, nil, false
	}
	vmi = x.vmis[o.UID]
	return vmi, x.VMOf(vmi), true
}

// View assembles what the lists say about one machine. A VMI of its name that it does not own is
// left out.
func (x *Index) View(ref Ref) (*View, bool) {
	vm := x.byRef[ref]
	if vm == nil {
		return nil, false
	}
	v := &View{VM: vm}
	if vmi := x.instance[ref]; vmi != nil && x.VMOf(vmi) == vm {
		x.fill(v, vmi)
	}
	return v, true
}

// InstanceView is the view of a VMI that no VM owns.
func (x *Index) InstanceView(vmi *kubevirtv1.VirtualMachineInstance) *View {
	v := &View{VM: x.VMOf(vmi)}
	x.fill(v, vmi)
	return v
}

func (x *Index) fill(v *View, vmi *kubevirtv1.VirtualMachineInstance) {
	v.VMI = vmi
	for _, p := range x.owned[vmi.UID] {
		v.Pods = append(v.Pods, *p)
	}
	for _, m := range x.migrations[Ref{vmi.Namespace, vmi.Name}] {
		v.Migrations = append(v.Migrations, *m)
	}
	sortPods(v.Pods)
	sortMigrations(v.Migrations)
}
