package preflight

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

const ipKey = "ovn.kubernetes.io/ip_address"

func ips(list ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range list {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs
}

func ownedBy(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: kind, Name: name, UID: types.UID("u-" + name), Controller: new(true)}}
}

// healthy is a machine that runs on n1 with its reserved address, pinned MAC, bridge binding with
// opt-in, on a network that holds everything: nothing stands in the way of anything.
func healthy() Facts {
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "db-1", UID: "u-db-1"}}
	vm.Spec.RunStrategy = new(kubevirtv1.RunStrategyAlways)
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{ipKey: "198.51.100.20", bridgeOptIn: ""}}}
	spec := &vm.Spec.Template.Spec
	spec.Networks = []kubevirtv1.Network{{Name: "default", NetworkSource: kubevirtv1.NetworkSource{Pod: &kubevirtv1.PodNetwork{}}}}
	spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "default", MacAddress: "02:00:00:00:00:20", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}}}
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "db-1", UID: "i-db-1", OwnerReferences: ownedBy("VirtualMachine", "db-1")}}
	vmi.Annotations = map[string]string{ipKey: "198.51.100.20", bridgeOptIn: ""}
	vmi.Spec = *spec.DeepCopy()
	vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Running, "n1"
	vmi.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
	view := &machine.View{VM: vm, VMI: vmi, Pods: []corev1.Pod{pod("aaaaa", "n1", "")}}
	yes := profile.Capability{Answer: profile.Yes, Reason: "it does"}
	return Facts{
		View: view,
		Interfaces: []Interface{{
			Interface: view.Interfaces()[0], Profile: "kube-ovn", Version: "v1.14.10",
			Capabilities: profile.Capabilities{Choose: yes, Restart: yes, Migration: yes, DualStack: yes},
			Keys:         []string{ipKey}, Want: ips("198.51.100.20"), Asked: ips("198.51.100.20"), Next: ips("198.51.100.20"),
			Rows:        []ledger.Entry{row("198.51.100.20", ledger.Reserved)},
			Annotations: map[string]string{ipKey: "198.51.100.20"},
		}},
		Nodes: []corev1.Node{node("n1"), node("n2")},
	}
}

func row(a string, s ledger.State) ledger.Entry {
	return ledger.Entry{Network: "default", Addr: netip.MustParseAddr(a), Row: ledger.Row{VM: "tenant-a/db-1", UID: "u-db-1", Interface: "default", State: s}}
}

func pod(name, node, migration string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: name, UID: types.UID(name), OwnerReferences: ownedBy("VirtualMachineInstance", "db-1"), Labels: map[string]string{}}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	if migration != "" {
		p.Labels[kubevirtv1.MigrationJobLabel] = migration
	}
	return p
}

func node(name string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{kubevirtv1.NodeSchedulable: "true", corev1.LabelHostname: name}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func migration(uid types.UID, phase kubevirtv1.VirtualMachineInstanceMigrationPhase) kubevirtv1.VirtualMachineInstanceMigration {
	m := kubevirtv1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "move-" + string(uid), UID: uid}}
	m.Spec.VMIName, m.Status.Phase = "db-1", phase
	return m
}

// stop takes the instance away.
func stop(f *Facts) { f.View.VMI, f.View.Pods = nil, nil }

// iface is the only interface.
func iface(f *Facts) *Interface { return &f.Interfaces[0] }

func no(reason string) profile.Capability {
	return profile.Capability{Answer: profile.No, Reason: reason}
}

// check is one case of a rule. want is "CODE Severity", one for each verdict; says are parts of the
// messages and remedies.
type check struct {
	rule   Rule
	change func(*Facts)
	want   []string
	says   []string
}

func codes(list []Verdict) []string {
	var s []string
	for _, v := range list {
		s = append(s, v.Code+" "+string(v.Severity))
	}
	return s
}

func run1(t *testing.T, c check) {
	t.Helper()
	f := healthy()
	if c.change != nil {
		c.change(&f)
	}
	got := c.rule(&f)
	if !slices.Equal(codes(got), c.want) {
		t.Fatalf("got %+v, want %v", got, c.want)
	}
	var text []string
	for _, v := range got {
		text = append(text, v.Message+" | "+v.Remedy)
		if v.Message == "" || !strings.Contains(v.Object, "tenant-a/db-1") {
			t.Errorf("verdict %+v names no object or evidence", v)
		}
	}
	for _, part := range c.says {
		if !strings.Contains(strings.Join(text, "\n"), part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
}

var now = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
