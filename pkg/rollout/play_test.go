package rollout

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

var db1 = machine.Ref{Namespace: "tenant-a", Name: "db-1"}

func uidOf(s string) types.UID { return types.UID(s) }

// move is one look of a state machine at the world, and what it has to make of it.
type move struct {
	objects []runtime.Object
	same    bool
	after   time.Duration

	phase, says string
	outcome     v1alpha1.Outcome
	code        string
	aborts      bool
}

// see shows a world; later shows the last one again after a while.
func see(objects ...runtime.Object) move { return move{objects: objects} }
func later(d time.Duration) move         { return move{same: true, after: d} }

func (m move) want(phase, says string) move { m.phase, m.says = phase, says; return m }
func (m move) abort(says string) move {
	m.phase, m.says, m.aborts = PhaseAborting, says, true
	return m
}
func (m move) done(says string) move { m.outcome, m.says = v1alpha1.Done, says; return m }
func (m move) failed(code, says string) move {
	m.outcome, m.code, m.says = v1alpha1.Failed, code, says
	return m
}

func newWorldOf(objects ...runtime.Object) *world {
	w := newWorld()
	for _, o := range objects {
		w.put(source{}, o)
	}
	return w
}

func play(t *testing.T, s stepper, moves []move) {
	t.Helper()
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	var w *world
	for n, m := range moves {
		if m.same {
			now = now.Add(m.after)
		} else {
			w, now = newWorldOf(m.objects...), now.Add(100*time.Millisecond)
		}
		d := s.observe(w, now)
		if m.outcome == "" {
			if d.end != nil {
				t.Fatalf("move %d: ended with %+v", n, *d.end)
			}
			if d.phase != m.phase || !strings.Contains(d.detail, m.says) || d.abort != m.aborts {
				t.Fatalf("move %d: %s %q (abort %v), want %s %q (abort %v)", n, d.phase, d.detail, d.abort, m.phase, m.says, m.aborts)
			}
			continue
		}
		if d.end == nil {
			t.Fatalf("move %d: still %s %q, want %s %s", n, d.phase, d.detail, m.outcome, m.code)
		}
		if d.end.outcome != m.outcome || d.end.code != m.code || !strings.Contains(d.end.message, m.says) {
			t.Fatalf("move %d: %+v, want %s %s %q", n, *d.end, m.outcome, m.code, m.says)
		}
	}
}

func expected(addrs ...string) []Expectation {
	e := Expectation{Interface: machine.Interface{Name: "default", Pod: true, Binding: machine.Bridge}}
	for _, a := range addrs {
		e.Addresses = append(e.Addresses, netip.MustParseAddr(a))
	}
	return []Expectation{e}
}

func vm(edits ...func(*kubevirtv1.VirtualMachine)) *kubevirtv1.VirtualMachine {
	always := kubevirtv1.RunStrategyAlways
	v := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "db-1", UID: "u-db1"}}
	v.Spec.RunStrategy = &always
	v.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: instanceSpec()}
	for _, edit := range edits {
		edit(v)
	}
	return v
}

func strategyOf(s kubevirtv1.VirtualMachineRunStrategy) func(*kubevirtv1.VirtualMachine) {
	return func(v *kubevirtv1.VirtualMachine) { v.Spec.RunStrategy = &s }
}

func printed(s kubevirtv1.VirtualMachinePrintableStatus) func(*kubevirtv1.VirtualMachine) {
	return func(v *kubevirtv1.VirtualMachine) { v.Status.PrintableStatus = s }
}

func requested(a kubevirtv1.StateChangeRequestAction) func(*kubevirtv1.VirtualMachine) {
	return func(v *kubevirtv1.VirtualMachine) {
		v.Status.StateChangeRequests = []kubevirtv1.VirtualMachineStateChangeRequest{{Action: a}}
	}
}

func instanceSpec() kubevirtv1.VirtualMachineInstanceSpec {
	s := kubevirtv1.VirtualMachineInstanceSpec{
		TerminationGracePeriodSeconds: new(int64(180)),
		Networks:                      []kubevirtv1.Network{{Name: "default", NetworkSource: kubevirtv1.NetworkSource{Pod: &kubevirtv1.PodNetwork{}}}},
	}
	s.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "default", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}}}
	return s
}

func vmi(uid, node string, edits ...func(*kubevirtv1.VirtualMachineInstance)) *kubevirtv1.VirtualMachineInstance {
	v := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant-a", Name: "db-1", UID: types.UID(uid),
		OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachine", Name: "db-1", UID: "u-db1", Controller: new(true)}},
	}}
	v.Spec = instanceSpec()
	v.Status.Phase, v.Status.NodeName = kubevirtv1.Running, node
	for _, edit := range edits {
		edit(v)
	}
	return v
}

func deleting(v *kubevirtv1.VirtualMachineInstance) { v.DeletionTimestamp = new(metav1.Now()) }

func phase(p kubevirtv1.VirtualMachineInstancePhase) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) { v.Status.Phase = p }
}

func unsynchronized(message string) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{
			Type: kubevirtv1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: "FailedCreate", Message: message,
		}}
	}
}

func guest(addrs ...string) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "default", IPs: addrs, InfoSource: "domain, guest-agent"}}
	}
}

func masquerade(v *kubevirtv1.VirtualMachineInstance) {
	v.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}}
}

func mac(address string) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "default", MAC: address, InfoSource: "domain"}}
	}
}

// pod returns a launcher pod of an instance; its UID is "p-" and its name. Edits are functions on
// the pod, strings its addresses.
func pod(name, instance, node string, rest ...any) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant-a", Name: name, UID: types.UID("p-" + name), Labels: map[string]string{kubevirtv1.CreatedByLabel: instance},
		OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachineInstance", Name: "db-1", UID: types.UID(instance), Controller: new(true)}},
	}}
	p.Spec.NodeName = node
	p.Status.Phase = corev1.PodPending
	for _, r := range rest {
		switch r := r.(type) {
		case string:
			p.Status.Phase = corev1.PodRunning
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: r})
			p.Status.PodIP = p.Status.PodIPs[0].IP
		case func(*corev1.Pod):
			r(p)
		}
	}
	return p
}

func ended(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func event(uid, about, reason, message string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "tenant-a", Name: uid, UID: types.UID(uid), ResourceVersion: "7"},
		InvolvedObject: corev1.ObjectReference{UID: types.UID(about)},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message,
		LastTimestamp: metav1.NewTime(time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)),
	}
}
