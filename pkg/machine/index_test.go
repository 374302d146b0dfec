package machine

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func TestIndexTellsPodsApart(t *testing.T) {
	v := running([]kubevirtv1.Interface{bridge("default")}, []kubevirtv1.Network{podNetwork("default")})
	bare := kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "bare", UID: "i-bare"}}
	replica := kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "set-1", UID: "i-set", OwnerReferences: ownedBy("VirtualMachineInstanceReplicaSet", "set", "u-set")}}
	pods := []corev1.Pod{
		launcher("launcher", "n1", corev1.PodRunning, 0),
		provisioning(launcher("provisioner", "n1", corev1.PodRunning, 0)),
		launcher("of-bare", "n1", corev1.PodRunning, 0),
		launcher("hotplug", "n1", corev1.PodRunning, 0),
		launcher("labelled", "n1", corev1.PodRunning, 0),
		launcher("of-the-past", "n1", corev1.PodRunning, 0),
		launcher("batch", "n1", corev1.PodRunning, 0),
	}
	pods[2].OwnerReferences = ownedBy("VirtualMachineInstance", "bare", "i-bare")
	pods[3].OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "launcher", UID: "p-launcher", Controller: new(true)}}
	pods[3].Labels = map[string]string{"kubevirt.io": "hotplug-disk"}
	pods[4].OwnerReferences = nil // only a label says that it is the machine's
	pods[5].OwnerReferences = ownedBy("VirtualMachineInstance", "db-1", "i-old")
	pods[6].OwnerReferences = ownedBy("Job", "batch", "j")
	x := NewIndex([]kubevirtv1.VirtualMachine{*v.VM}, []kubevirtv1.VirtualMachineInstance{*v.VMI, bare, replica}, pods, nil)

	for n, want := range []struct {
		role    Role
		vmi, vm string
		ok      bool
	}{
		{Launcher, "db-1", "db-1", true},
		{Provisioner, "db-1", "db-1", true},
		{Launcher, "bare", "", true},
		{Attachment, "db-1", "db-1", true},
		{Other, "", "", false},
		{Launcher, "", "", false},
		{Other, "", "", false},
	} {
		p := &pods[n]
		vmi, vm, ok := x.Owner(p)
		if x.Role(p) != want.role || ok != want.ok || vmi != nil && vmi.Name != want.vmi || (vm != nil) != (want.vm != "") {
			t.Errorf("pod %s: role %s, owner %v %v %t; want %+v", p.Name, x.Role(p), vmi, vm, ok, want)
		}
	}
	var names []string
	for _, vmi := range x.Bare() {
		names = append(names, vmi.Name)
	}
	if !slices.Equal(names, []string{"bare", "set-1"}) {
		t.Errorf("bare instances %v", names)
	}
	view, ok := x.View(Ref{"tenant-a", "db-1"})
	if !ok || view.VMI == nil || len(view.Pods) != 2 {
		t.Errorf("view %+v, %t", view, ok)
	}
	if v := x.InstanceView(x.Bare()[0]); v.VM != nil || len(v.Pods) != 1 || v.Ref() != (Ref{"tenant-a", "bare"}) {
		t.Errorf("view of a bare instance %+v", v)
	}
}

// A VM recreated under its old name does not inherit what its predecessor left.
func TestIndexDecidesByUID(t *testing.T) {
	v := running(nil, nil)
	v.VM.UID = "u-new"
	x := NewIndex([]kubevirtv1.VirtualMachine{*v.VM}, []kubevirtv1.VirtualMachineInstance{*v.VMI}, nil, nil)
	view, ok := x.View(Ref{"tenant-a", "db-1"})
	if !ok || view.VMI != nil {
		t.Errorf("the machine got its predecessor's instance: %+v", view)
	}
	if len(x.Bare()) != 1 {
		t.Error("the predecessor's instance belongs to no machine of the index")
	}
	if _, ok := x.View(Ref{"tenant-a", "web"}); ok {
		t.Error("there is no such machine")
	}
}
