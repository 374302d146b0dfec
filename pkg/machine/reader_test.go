package machine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"
)

func readerOf(kubevirt, core []runtime.Object) (Reader, *fake.Clientset, *kubevirtfake.Clientset) {
	k, c := kubevirtfake.NewSimpleClientset(kubevirt...), fake.NewClientset(core...)
	return Reader{KubeVirt: k, Core: c}, c, k
}

func TestReaderReadsTheSeeds(t *testing.T) {
	for _, file := range []string{"instance.yaml", "migration-2-running.yaml"} {
		d := seed(t, file)
		r, _, _ := readerOf(d.objects())
		v, err := r.View(context.Background(), RefOf(&d.vms[0]))
		if err != nil {
			t.Fatal(err)
		}
		want := d.view(t)
		if v.VMI.UID != want.VMI.UID || podName(v.CurrentPod()) != podName(want.CurrentPod()) || podName(v.TargetPod()) != podName(want.TargetPod()) || len(v.Pods) != len(want.Pods) || len(v.Migrations) != len(want.Migrations) {
			t.Errorf("%s: reader and index disagree: %+v, %+v", file, v, want)
		}
	}
}

func TestReaderViewOfAStoppedMachine(t *testing.T) {
	r, _, k := readerOf([]runtime.Object{newVM(nil, nil)}, nil)
	v, err := r.View(context.Background(), Ref{"tenant-a", "db-1"})
	if err != nil || v.VM == nil || v.VMI != nil || v.Started() {
		t.Fatalf("view %+v, %v", v, err)
	}
	if n := len(k.Actions()); n != 2 {
		t.Errorf("%d requests for a stopped machine, want the VM and its instance", n)
	}
}

func TestReaderKeepsToUIDs(t *testing.T) {
	v := running(nil, nil)
	stranger := launcher("stranger", "n1", corev1.PodRunning, 5)
	stranger.OwnerReferences = ownedBy("VirtualMachineInstance", "db-1", "i-other")
	labelled := launcher("labelled", "n1", corev1.PodRunning, 6)
	labelled.OwnerReferences = nil
	own := launcher("own", "n1", corev1.PodRunning, 0)
	other := migration("m9", kubevirtv1.MigrationRunning)
	other.Spec.VMIName = "web" // its label names this machine all the same
	r, _, _ := readerOf([]runtime.Object{v.VM, v.VMI, &other}, []runtime.Object{&stranger, &labelled, &own})
	got, err := r.View(context.Background(), Ref{"tenant-a", "db-1"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range got.Pods {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"own"}) || len(got.Migrations) != 0 {
		t.Errorf("pods %v, migrations %v", names, got.Migrations)
	}
}

func TestReaderErrors(t *testing.T) {
	ref := Ref{"tenant-a", "db-1"}
	r, _, _ := readerOf(nil, nil)
	if _, err := r.View(context.Background(), ref); !apierrors.IsNotFound(err) || !strings.HasPrefix(err.Error(), "virtualmachine tenant-a/db-1: ") {
		t.Errorf("missing machine: %v", err)
	}

	v := running(nil, nil)
	v.VMI.OwnerReferences[0].UID = "u-old"
	r, _, _ = readerOf([]runtime.Object{v.VM, v.VMI}, nil)
	_, err := r.View(context.Background(), ref)
	stranger := (*StrangerError)(nil)
	if !errors.As(err, &stranger) || !strings.Contains(err.Error(), "belongs to VirtualMachine db-1 (UID u-old)") {
		t.Errorf("instance of another machine: %v", err)
	}
	v.VMI.OwnerReferences = nil
	r, _, _ = readerOf([]runtime.Object{v.VM, v.VMI}, nil)
	if _, err = r.View(context.Background(), ref); err == nil || !strings.Contains(err.Error(), "belongs to nothing") {
		t.Errorf("bare instance: %v", err)
	}

	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	d := seed(t, "instance.yaml")
	r, core, _ := readerOf(d.objects())
	core.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
	if _, err := r.View(context.Background(), RefOf(&d.vms[0])); !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "virtualmachine tenant-a/vm-bridge: list its pods: ") {
		t.Errorf("pods forbidden: %v", err)
	}
}
