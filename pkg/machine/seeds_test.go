package machine

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// dump is a List of objects as kubectl prints it.
type dump struct {
	vms        []kubevirtv1.VirtualMachine
	vmis       []kubevirtv1.VirtualMachineInstance
	pods       []corev1.Pod
	migrations []kubevirtv1.VirtualMachineInstanceMigration
}

func seed(t *testing.T, name string) dump {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "seeds", name))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Items []map[string]any `json:"items"`
	}
	if err := yaml.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	var d dump
	for _, o := range list.Items {
		switch o["kind"] {
		case "VirtualMachine":
			d.vms = append(d.vms, as[kubevirtv1.VirtualMachine](t, o))
		case "VirtualMachineInstance":
			d.vmis = append(d.vmis, as[kubevirtv1.VirtualMachineInstance](t, o))
		case "Pod":
			d.pods = append(d.pods, as[corev1.Pod](t, o))
		case "VirtualMachineInstanceMigration":
			d.migrations = append(d.migrations, as[kubevirtv1.VirtualMachineInstanceMigration](t, o))
		default:
			t.Fatalf("%s: unexpected kind %v", name, o["kind"])
		}
	}
	return d
}

func as[T any](t *testing.T, o map[string]any) T {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var v T
	if err := yaml.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (d dump) index() *Index { return NewIndex(d.vms, d.vmis, d.pods, d.migrations) }

func (d dump) view(t *testing.T) *View {
	t.Helper()
	v, ok := d.index().View(RefOf(&d.vms[0]))
	if !ok {
		t.Fatal("the machine is not in the index")
	}
	return v
}

// objects are what a fake client starts with.
func (d dump) objects() (kubevirt, core []runtime.Object) {
	for n := range d.vms {
		kubevirt = append(kubevirt, &d.vms[n])
	}
	for n := range d.vmis {
		kubevirt = append(kubevirt, &d.vmis[n])
	}
	for n := range d.migrations {
		kubevirt = append(kubevirt, &d.migrations[n])
	}
	for n := range d.pods {
		core = append(core, &d.pods[n])
	}
	return kubevirt, core
}

func addrs(s ...string) Addresses {
	var list Addresses
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

// The first seed: instance and pod, read by owner references.
func TestSeedInstance(t *testing.T) {
	d := seed(t, "instance.yaml")
	x := d.index()
	vmi, vm, ok := x.Owner(&d.pods[0])
	if !ok || vm == nil || vmi.Name != "vm-bridge" || vm.UID != d.vms[0].UID || x.Role(&d.pods[0]) != Launcher {
		t.Fatalf("the pod was attributed to %v, %v, %v", vmi, vm, ok)
	}
	v := d.view(t)
	if !v.Running() || v.Migrating() || v.Paused() || v.TargetPod() != nil {
		t.Error("the instance runs and does not migrate")
	}
	pod := v.CurrentPod()
	if pod == nil || pod.Name != "virt-launcher-vm-bridge-dn7zf" {
		t.Fatalf("current pod %v", pod)
	}
	list := v.Interfaces()
	want := Interface{Name: "red", Pod: true, Binding: Bridge}
	if len(list) != 1 || list[0] != want {
		t.Fatalf("interfaces %+v, want %+v", list, want)
	}
	if got, known := PodAddresses(pod, list[0]); !known || !slices.Equal(got, addrs("198.51.100.33", "2001:db8::33")) {
		t.Errorf("pod addresses %v, %t", got, known)
	}
	if got := StatusAddresses(v.VMI, list[0]); !slices.Equal(got, addrs("198.51.100.33", "2001:db8::33")) {
		t.Errorf("status addresses %v", got)
	}
	if got := GuestAddresses(v.VMI, list[0]); got != nil {
		t.Errorf("no agent has reported, and the guest is said to have %v", got)
	}
	if got := StatusMAC(v.VMI, list[0]); got != "02:00:00:00:00:33" {
		t.Errorf("MAC %q", got)
	}
	c := Condition(v.VMI, kubevirtv1.VirtualMachineInstanceIsMigratable)
	if c.Status != corev1.ConditionFalse || c.Reason != "InterfaceNotLiveMigratable" {
		t.Errorf("condition %+v", c)
	}
}

// The listings of a restart and of a migration.
func TestSeedListings(t *testing.T) {
	const old, next = "virt-launcher-vm-bridge-old", "virt-launcher-vm-bridge-new"
	const source, first, second = "virt-launcher-vm-migration-lv7h8", "virt-launcher-vm-migration-rmqvm", "virt-launcher-vm-migration-g89xw"
	for _, c := range []struct {
		file, current, target string
		live                  []string
		migrating             bool
	}{
		{"restart-1-running.yaml", old, "", []string{old}, false},
		{"restart-2-stopped.yaml", "", "", nil, false},
		{"restart-3-started.yaml", next, "", []string{next}, false},
		{"migration-1-scheduling.yaml", source, first, []string{source, first}, true},
		{"migration-2-running.yaml", source, second, []string{source, second}, true},
		{"migration-3-succeeded.yaml", second, "", []string{second}, false},
	} {
		t.Run(c.file, func(t *testing.T) {
			v := seed(t, c.file).view(t)
			if got := podName(v.CurrentPod()); got != c.current {
				t.Errorf("current pod %q, want %q", got, c.current)
			}
			if got := podName(v.TargetPod()); got != c.target {
				t.Errorf("target pod %q, want %q", got, c.target)
			}
			if got := podNames(v.LivePods()); !slices.Equal(got, c.live) {
				t.Errorf("live pods %v, want %v", got, c.live)
			}
			if v.Migrating() != c.migrating {
				t.Errorf("migrating %t", v.Migrating())
			}
			if stray := v.StrayTargets(); len(stray) > 0 {
				t.Errorf("stray targets %v", podNames(stray))
			}
		})
	}
}

func podName(p *corev1.Pod) string {
	if p == nil {
		return ""
	}
	return p.Name
}

func podNames(pods []*corev1.Pod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}
