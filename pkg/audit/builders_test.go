package audit_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

const kubeOVNKey = "ovn.kubernetes.io/ip_address"

var now = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

// ago is a time before now; long is one that no grace time covers.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

var long = ago(72 * time.Hour)

// world is a cluster under construction.
type world struct {
	audit.Snapshot
	Options audit.Options
}

// newWorld is a cluster with Kube-OVN, three nodes and pool p1.
func newWorld() *world {
	w := &world{}
	w.Now = now
	w.LedgerNamespace = ledger.DefaultNamespace
	w.Ledger = &ledger.Snapshot{}
	// Room, so that pointers to elements stay good.
	w.VMs = make([]kubevirtv1.VirtualMachine, 0, 64)
	w.VMIs = make([]kubevirtv1.VirtualMachineInstance, 0, 64)
	w.Pods = make([]corev1.Pod, 0, 64)
	w.Nodes = make([]corev1.Node, 0, 64)
	w.Networks = audit.Unestablished()
	w.Networks.Primary = w.Networks.Named[profile.KubeOVN]
	w.pool("p1", func(p *ledger.Pool) {})
	for n := 1; n <= 3; n++ {
		w.node(fmt.Sprintf("n%d", n), fmt.Sprintf("192.0.2.%d", n))
	}
	return w
}

// pool adds a registered pool like p1 of the field cases: 198.51.100.0/24, .10 to .200, gateway .1, .50 out.
func (w *world) pool(name string, edit func(*ledger.Pool)) {
	p := ledger.Pool{
		Name: name, Network: ledger.DefaultNetwork, CIDRs: []string{"198.51.100.0/24", "2001:db8::/64"},
		Ranges:  []string{"198.51.100.10-198.51.100.200"},
		Exclude: []string{"198.51.100.50"}, Gateways: []string{"198.51.100.1"}, Profile: ledger.ProfileAuto,
	}
	edit(&p)
	w.Ledger.Pools = append(w.Ledger.Pools, p)
	w.registry(p.Network)[name] = slices.Clone(p.CIDRs)
}

// registry is the registry of a network, written long ago.
func (w *world) registry(network string) map[string][]string {
	for _, n := range w.Ledger.Networks {
		if n.Name == network {
			return n.Pools
		}
	}
	n := ledger.Network{Name: network, Pools: map[string][]string{}, Written: long.Time}
	w.Ledger.Networks = append(w.Ledger.Networks, n)
	return n.Pools
}

func (w *world) node(name, addr string) *corev1.Node {
	w.Nodes = append(w.Nodes, corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}, {Type: corev1.NodeHostName, Address: name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	})
	return &w.Nodes[len(w.Nodes)-1]
}

// uid is the UID that the builders give: "u-" and the name.
func uid(name string) types.UID { return types.UID("u-" + name) }

// row adds a row of interface default, reserved long ago.
func (w *world) row(addr, vm string, uid types.UID, edits ...func(*ledger.Entry)) {
	a := netip.MustParseAddr(addr)
	e := ledger.Entry{
		Network: ledger.DefaultNetwork, Addr: a, Key: "vmip-block-default/" + address.Key(a),
		Row: ledger.Row{VM: vm, UID: uid, Interface: "default", State: ledger.Reserved, Op: "op", Since: long.Time},
	}
	for _, edit := range edits {
		edit(&e)
	}
	w.Ledger.Entries = append(w.Ledger.Entries, e)
}

func state(s ledger.State) func(*ledger.Entry) { return func(e *ledger.Entry) { e.Row.State = s } }

func since(t metav1.Time) func(*ledger.Entry) { return func(e *ledger.Entry) { e.Row.Since = t.Time } }

func network(n string) func(*ledger.Entry) { return func(e *ledger.Entry) { e.Network = n } }

func split(ref string) (namespace, name string) {
	namespace, name, _ = strings.Cut(ref, "/")
	return namespace, name
}

// vm adds a stopped machine with one interface, bridge on the pod network.
func (w *world) vm(ref string) *kubevirtv1.VirtualMachine {
	ns, name := split(ref)
	vm := kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: uid(name), CreationTimestamp: long, Annotations: map[string]string{}},
		Spec: kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}},
			Spec: kubevirtv1.VirtualMachineInstanceSpec{
				Networks: []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()},
				Domain:   kubevirtv1.DomainSpec{Devices: kubevirtv1.Devices{Interfaces: []kubevirtv1.Interface{*kubevirtv1.DefaultBridgeNetworkInterface()}}},
			},
		}},
	}
	w.VMs = append(w.VMs, vm)
	return &w.VMs[len(w.VMs)-1]
}

// names makes the machine name addresses as its reservation, with the annotation that asks for them.
func names(vm *kubevirtv1.VirtualMachine, addrs ...string) {
	value := strings.Join(addrs, ",")
	said := ledger.Reservations{Ledger: ledger.DefaultNamespace, UID: vm.UID, Interfaces: map[string]ledger.Reservation{
		"default": {Pool: "p1", Network: ledger.DefaultNetwork, Addresses: addrs, Op: "op", Annotations: map[string]string{kubeOVNKey: value}},
	}}
	text, err := said.Encode()
	if err != nil {
		panic(err)
	}
	vm.Annotations[ledger.AnnotationReservations] = text
	vm.Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = value
}

// reserved adds a stopped machine whose reservation is complete.
func (w *world) reserved(ref, addr string) *kubevirtv1.VirtualMachine {
	vm := w.vm(ref)
	names(vm, addr)
	w.row(addr, ref, vm.UID)
	return vm
}

// start runs a machine on a node: an instance with the template's annotations, and a pod with the
// addresses.
func (w *world) start(vm *kubevirtv1.VirtualMachine, node string, addrs ...string) (*kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
	vmi := kubevirtv1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vm.Namespace, Name: vm.Name, UID: "vmi-" + vm.UID, CreationTimestamp: ago(time.Hour),
			Annotations:     maps.Clone(vm.Spec.Template.ObjectMeta.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirtv1.VirtualMachineGroupVersionKind)},
		},
		Spec: *vm.Spec.Template.Spec.DeepCopy(),
		Status: kubevirtv1.VirtualMachineInstanceStatus{
			Phase: kubevirtv1.Running, NodeName: node,
			Interfaces: []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "default", InfoSource: "domain", IP: first(addrs), IPs: addrs}},
		},
	}
	w.VMIs = append(w.VMIs, vmi)
	stored := &w.VMIs[len(w.VMIs)-1]
	return stored, w.launcher(stored, "aaaaa", node, addrs...)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// launcher adds a running launcher pod of an instance.
func (w *world) launcher(vmi *kubevirtv1.VirtualMachineInstance, suffix, node string, addrs ...string) *corev1.Pod {
	p := w.pod(vmi.Namespace+"/virt-launcher-"+vmi.Name+"-"+suffix, node, addrs...)
	p.Labels = map[string]string{kubevirtv1.AppLabel: "virt-launcher", kubevirtv1.CreatedByLabel: string(vmi.UID)}
	p.Annotations = maps.Clone(vmi.Annotations)
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vmi, kubevirtv1.VirtualMachineInstanceGroupVersionKind)}
	return p
}

// pod adds a running pod that is no machine's.
func (w *world) pod(ref, node string, addrs ...string) *corev1.Pod {
	ns, name := split(ref)
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: uid(name), CreationTimestamp: ago(time.Hour)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: first(addrs)},
	}
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	w.Pods = append(w.Pods, p)
	return &w.Pods[len(w.Pods)-1]
}

// found are the findings as "Code object address".
func (w *world) found() []string {
	var list []string
	for _, f := range audit.Run(&w.Snapshot, w.Options).Findings {
		words := []string{string(f.Code), f.Subject.String()}
		if f.Addr.IsValid() {
			words = append(words, f.Addr.String())
		}
		list = append(list, strings.Join(words, " "))
	}
	return list
}

// expect compares the findings with all that there should be.
func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := w.found(); !slices.Equal(got, want) {
		var details []string
		for _, f := range audit.Run(&w.Snapshot, w.Options).Findings {
			details = append(details, fmt.Sprintf("%s: %s", f.Code, f.Evidence))
		}
		t.Errorf("findings:\n  %s\nwant:\n  %s\n%s", strings.Join(got, "\n  "), strings.Join(want, "\n  "), strings.Join(details, "\n"))
	}
}

// the returns the only finding of a code.
func (w *world) the(t *testing.T, code audit.Code) audit.Finding {
	t.Helper()
	var only *audit.Finding
	for _, f := range audit.Run(&w.Snapshot, w.Options).Findings {
		if f.Code == code {
			if only != nil {
				t.Fatalf("two findings %s", code)
			}
			only = &f
		}
	}
	if only == nil {
		t.Fatalf("no finding %s in %q", code, w.found())
	}
	return *only
}

// scenario is one state of a cluster and the findings that it has.
type scenario struct {
	name  string
	build func(*world)
	want  []string
}

func run(t *testing.T, scenarios []scenario) {
	t.Helper()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld()
			s.build(w)
			w.expect(t, s.want...)
		})
	}
}

func emptyVMs() *kubevirtv1.VirtualMachineList { return &kubevirtv1.VirtualMachineList{} }
