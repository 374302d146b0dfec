// Package ledger breaks the ledger's protocol on purpose, against the real API server and KubeVirt's
// real webhooks: writers that stall, die or lose answers, at every call that they make, while others
// go on. docs/design/ledger.md has the protocol.
package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/test/fault"
	"github.com/kubectl-vmip/kubectl-vmip/test/testcluster"
)

var cluster *testcluster.Cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "vmip-ledger-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries, err := testcluster.Build("../..")
	if err == nil {
		cluster, err = testcluster.Start(binaries, filepath.Join(dir, "cluster"), "ledger", "kube-ovn")
		defer func() {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	if err == nil {
		err = subnets()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// subnets gives Kube-OVN the addresses of the tests' pools: machines can have no others.
func subnets() error {
	dyn, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return err
	}
	for name, block := range map[string]string{"lab": "198.51.100.0/22,2001:db8::/32", "more": "203.0.113.0/24", "worlds": "10.96.0.0/11"} {
		first, _, _ := strings.Cut(block, ",")
		gateway := netip.MustParsePrefix(first).Addr().Next().String()
		if strings.Contains(block, ",") {
			gateway += ",2001:db8::1"
		}
		_, err := dyn.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "subnets"}).Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubeovn.io/v1", "kind": "Subnet", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"cidrBlock": block, "gateway": gateway, "provider": "ovn", "vpc": "ovn-cluster", "default": false, "private": false, "natOutgoing": false},
		}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// annotation is where Kube-OVN reads the pod network's addresses.
const annotation = "ovn.kubernetes.io/ip_address"

// clock is the real time, moved forward by tests that wait for a cool-down, or at every look.
type clock struct{ ahead, step atomic.Int64 }

func (c *clock) Now() time.Time {
	return time.Now().Add(time.Duration(c.ahead.Add(c.step.Load())))
}

// writer is one process: clients of its own, over a transport that may break.
type writer struct {
	*reservation.Service
	transport *fault.Transport
	virt      kubevirt.Interface
	core      kubernetes.Interface

	mu    sync.Mutex
	warns []string
}

// world is one test's own namespace with a ledger of its own, so that tests can run side by side. They
// are one namespace: thousands of them are made.
type world struct {
	// detected are the network plugins, where detecting them is no part of the test.
	detected  func() (*profile.Cluster, error)
	t         testing.TB
	namespace string
	ledger    string
	clock     *clock
	// boss looks at the world from outside and makes machines.
	boss *writer
}

var worlds atomic.Int32

func newWorld(t testing.TB) *world {
	t.Helper()
	n := worlds.Add(1)
	w := &world{t: t, namespace: fmt.Sprintf("t%d", n), ledger: fmt.Sprintf("t%d", n), clock: &clock{}}
	w.boss = w.writer(nil)
	if _, err := w.boss.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return w
}

// writer starts a process whose calls go as the plan says; nil lets all pass.
func (w *world) writer(plan fault.Plan) *writer {
	w.t.Helper()
	x := &writer{transport: &fault.Transport{Plan: plan}}
	cfg := rest.CopyConfig(cluster.Config)
	cfg.ContentType = "application/json" // what goes over the wire can be read, and changed
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		x.transport.Next = next
		return x.transport
	})
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	var dyn dynamic.Interface
	if x.core, err = kubernetes.NewForConfigAndClient(cfg, client); err == nil {
		if x.virt, err = kubevirt.NewForConfigAndClient(cfg, client); err == nil {
			dyn, err = dynamic.NewForConfigAndClient(cfg, client)
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	core := x.core
	x.Service = &reservation.Service{
		Ledger:   &ledger.Store{ConfigMaps: core.CoreV1().ConfigMaps(w.ledger), Namespace: w.ledger, Clock: w.clock, FieldManager: ledger.FieldManager},
		KubeVirt: x.virt, Core: core, Dynamic: dyn, FieldManager: ledger.FieldManager,
		Profiles: func(ctx context.Context) (*profile.Cluster, error) {
			if w.detected != nil {
				return w.detected()
			}
			return profile.Detect(ctx, profile.Reader{Core: core, Dynamic: dyn})
		},
		Warn: func(format string, args ...any) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.warns = append(x.warns, fmt.Sprintf(format, args...))
		},
	}
	return x
}

// net are the beginnings of an IPv4 /24 and an IPv6 /64 that no other world has: commands that look
// for claims of others see all of the cluster.
func (w *world) net() (v4, v6 string) {
	var n int
	if _, err := fmt.Sscanf(w.namespace, "t%d", &n); err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprintf("10.%d.%d", 100+n/256, n%256), fmt.Sprintf("2001:db8:%x", n)
}

func (w *world) ref(name string) machine.Ref { return machine.Ref{Namespace: w.namespace, Name: name} }

// pool adds a pool; "" stands for 198.51.100.0/24 without its gateway.
func (w *world) pool(p ledger.Pool) {
	w.t.Helper()
	if p.Name == "" {
		p.Name = "lab"
	}
	if p.CIDRs == nil {
		p.CIDRs, p.Gateways = []string{"198.51.100.0/24"}, []string{"198.51.100.1"}
	}
	ns, err := w.boss.core.CoreV1().Namespaces().Get(w.t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.boss.Ledger.AddPool(w.t.Context(), p, ns.UID); err != nil {
		w.t.Fatal(err)
	}
}

// vm makes halted machines.
func (w *world) vm(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := w.create(name, nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) create(name string, template map[string]string) error {
	_, err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Create(w.t.Context(), w.machine(name, template), metav1.CreateOptions{})
	return err
}

// machine is a halted one, with bridge on the pod network.
func (w *world) machine(name string, template map[string]string) *kubevirtv1.VirtualMachine {
	halted, grace := kubevirtv1.RunStrategyHalted, int64(1)
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}}
	vm.Spec.RunStrategy = &halted
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	vm.Spec.Template.ObjectMeta.Annotations = template
	spec := &vm.Spec.Template.Spec
	spec.TerminationGracePeriodSeconds = &grace
	spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
	spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{*kubevirtv1.DefaultBridgeNetworkInterface()}
	spec.Domain.Memory = &kubevirtv1.Memory{}
	spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	return vm
}

// recreate deletes a machine and makes it again; its template is kept, as a manifest that was
// exported and applied again does.
func (w *world) recreate(name string) error {
	api := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace)
	old, err := api.Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := api.Delete(w.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for range 600 {
		if _, err = api.Get(w.t.Context(), name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return w.create(name, old.Spec.Template.ObjectMeta.Annotations)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s is not gone: %w", name, err)
}

func (w *world) get(name string) *kubevirtv1.VirtualMachine {
	w.t.Helper()
	vm, err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return vm
}

// asks is the address that a machine's template asks for.
func (w *world) asks(name string) string {
	w.t.Helper()
	return w.get(name).Spec.Template.ObjectMeta.Annotations[annotation]
}

// edit changes template annotations as a user, or GitOps, would.
func (w *world) edit(name string, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}})
	if err != nil {
		return err
	}
	_, err = w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Patch(w.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// reserve asks for the addresses, or for any, in the pool lab.
func (w *world) reserve(x *writer, name string, addrs ...string) (reservation.Result, error) {
	return w.ask(x, reservation.Request{VM: w.ref(name)}, addrs...)
}

func (w *world) replace(x *writer, name string, addrs ...string) (reservation.Result, error) {
	return w.ask(x, reservation.Request{VM: w.ref(name), Replace: true}, addrs...)
}

func (w *world) ask(x *writer, req reservation.Request, addrs ...string) (reservation.Result, error) {
	for _, a := range addrs {
		req.Addresses = append(req.Addresses, netip.MustParseAddr(a))
	}
	out := x.Reserve(w.t.Context(), []reservation.Request{req}, nil)
	return out[0].Result, out[0].Err
}

func (w *world) release(x *writer, name string) (reservation.Result, error) {
	return x.Release(w.t.Context(), reservation.ReleaseRequest{VM: w.ref(name)})
}

// rows are the ledger's rows as they stand, damaged ones too.
func (w *world) rows() []ledger.Entry {
	w.t.Helper()
	snap, err := w.boss.Ledger.Snapshot(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(snap.Damaged) > 0 {
		w.t.Fatalf("the ledger is damaged: %v", snap.Damaged)
	}
	return snap.Entries
}

// states says in which state a machine's rows are: "198.51.100.2 reserved".
func (w *world) states(name string) (list []string) {
	w.t.Helper()
	for _, e := range w.rows() {
		if e.Row.VM == w.namespace+"/"+name {
			list = append(list, e.Addr.String()+" "+string(e.Row.State))
		}
	}
	return list
}

// is compares the rows of a machine, and what its template asks for, with what they should be.
func (w *world) is(name, template string, rows ...string) {
	w.t.Helper()
	if got := w.states(name); !slices.Equal(got, rows) {
		w.t.Errorf("%s has the rows %q, want %q", name, got, rows)
	}
	if got := w.asks(name); got != template {
		w.t.Errorf("%s asks for %q, want %q", name, got, template)
	}
	w.sound()
}

// sound checks what must hold at every moment at which nobody writes, whoever has died before:
// what a template asks for is the machine's by its row; an interface has at most one address that
// it goes by; whoever has a row is found by its label.
func (w *world) sound() {
	w.t.Helper()
	if err := w.unsound(); err != nil {
		w.t.Error(err)
	}
}

func (w *world) unsound() error {
	ctx := context.WithoutCancel(w.t.Context())
	snap, err := w.boss.Ledger.Snapshot(ctx)
	if err != nil {
		return err
	}
	vms, err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	blocks, err := w.boss.core.CoreV1().ConfigMaps(w.ledger).List(ctx, metav1.ListOptions{LabelSelector: ledger.LabelKind + "=" + ledger.KindBlock})
	if err != nil {
		return err
	}
	var errs []error
	at := map[netip.Addr]ledger.Entry{}
	for _, e := range snap.Entries {
		at[e.Addr] = e
		label := false
		for _, cm := range blocks.Items {
			if strings.HasPrefix(e.Key, cm.Name+"/") {
				_, label = cm.Labels[e.Row.Owner().Label()]
			}
		}
		if e.Err == nil && e.Row.State != ledger.Foreign && !label {
			errs = append(errs, fmt.Errorf("row %s has no owner label", e))
		}
	}
	for _, cm := range blocks.Items {
		labels := 0
		for k := range cm.Labels {
			if strings.HasPrefix(k, ledger.LabelOwner) {
				labels++
			}
		}
		if labels > len(cm.Data) {
			errs = append(errs, fmt.Errorf("block %s has %d owner labels and %d rows", cm.Name, labels, len(cm.Data)))
		}
	}
	asked := map[netip.Addr]string{}
	for i := range vms.Items {
		vm := &vms.Items[i]
		for _, text := range strings.FieldsFunc(vm.Spec.Template.ObjectMeta.Annotations[annotation], func(r rune) bool { return r == ',' }) {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return err
			}
			if other, twice := asked[a]; twice {
				errs = append(errs, fmt.Errorf("%s and %s both ask for %s", other, vm.Name, a))
			}
			asked[a] = vm.Name
			e, ok := at[a]
			switch {
			case !ok:
				errs = append(errs, fmt.Errorf("%s asks for %s, which has no row", vm.Name, a))
			case e.Row.VM != vm.Namespace+"/"+vm.Name:
				errs = append(errs, fmt.Errorf("%s asks for %s, which is %s's", vm.Name, a, e.Row.VM))
			case e.Row.State == ledger.Held || e.Row.State == ledger.Leaving:
				errs = append(errs, fmt.Errorf("%s asks for %s, which is %s", vm.Name, a, e.Row.State))
			}
		}
	}
	return errors.Join(errs...)
}

// detect finds the network plugins of the cluster once for all.
var detect = sync.OnceValues(func() (*profile.Cluster, error) {
	core, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		return nil, err
	}
	return profile.Detect(context.Background(), profile.Reader{Core: core, Dynamic: dyn})
})

// findings is what an audit of this world alone finds.
func (w *world) findings() (list []string) {
	w.t.Helper()
	c := &audit.Cluster{Core: w.boss.core, KubeVirt: w.boss.virt, Ledger: w.boss.Ledger, Clock: w.clock, Profiles: func(context.Context) (*profile.Cluster, error) { return detect() }}
	s, err := c.Load(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	// Other worlds have the same addresses and ledgers of their own.
	s.OtherLedgers = nil
	s.VMs = slices.DeleteFunc(s.VMs, func(o kubevirtv1.VirtualMachine) bool { return o.Namespace != w.namespace })
	s.VMIs = slices.DeleteFunc(s.VMIs, func(o kubevirtv1.VirtualMachineInstance) bool { return o.Namespace != w.namespace })
	s.Pods = slices.DeleteFunc(s.Pods, func(o corev1.Pod) bool { return o.Namespace != w.namespace })
	for _, f := range audit.Run(s, audit.Options{Grace: time.Nanosecond}).Findings {
		list = append(list, fmt.Sprintf("%s %s %s: %s", f.Code, f.Subject, f.Addr, f.Evidence))
	}
	return list
}

// whole checks, beside sound, that nothing is half done: every reserved row is named by its
// machine, and there is one a family.
func (w *world) whole() {
	w.t.Helper()
	w.sound()
	seen := map[string]string{}
	for _, e := range w.rows() {
		if e.Row.State != ledger.Reserved {
			continue
		}
		key := fmt.Sprint(e.Row.VM, e.Row.Interface, e.Family())
		if other, twice := seen[key]; twice {
			w.t.Errorf("%s has two reserved rows, %s and %s", e.Row.VM, other, e.Addr)
		}
		seen[key] = e.Addr.String()
		name := e.Row.Owner().Name
		if vm, err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Get(w.t.Context(), name, metav1.GetOptions{}); err == nil && e.Row.UID == vm.UID {
			said, err := ledger.ReservationsOf(vm.Annotations)
			if err != nil || !said.Names(e.Row.Interface, e.Addr) || !strings.Contains(vm.Spec.Template.ObjectMeta.Annotations[annotation], e.Addr.String()) {
				w.t.Errorf("%s is reserved for %s, which does not name it (asks for %q)", e.Addr, name, vm.Spec.Template.ObjectMeta.Annotations[annotation])
			}
		}
	}
}

// stall is a writer that stops before a call and goes on when it is woken.
type stall struct {
	*writer
	wake    func()
	reached <-chan struct{}
}

// stalled makes a writer that stops before the first call whose text has all the words.
func (w *world) stalled(words ...string) *stall { return w.stalledAt(1, words...) }

// stalledAt makes a writer that stops before the n-th such call.
func (w *world) stalledAt(n int, words ...string) *stall {
	wake, reached := make(chan struct{}), make(chan struct{})
	s := &stall{wake: sync.OnceFunc(func() { close(wake) }), reached: reached}
	s.writer = w.writer(func(c fault.Call) fault.Action {
		for _, word := range words {
			if !strings.Contains(c.String(), word) {
				return fault.Action{}
			}
		}
		if n--; n != 0 {
			return fault.Action{}
		}
		close(reached)
		return fault.Action{Wait: wake}
	})
	return s
}

// during runs `slow` until the writer stalls, then `meanwhile`, then the rest of `slow`.
func (s *stall) during(t testing.TB, slow func(), meanwhile func()) {
	t.Helper()
	defer s.wake()
	done := make(chan struct{})
	go func() { defer close(done); slow() }()
	select {
	case <-s.reached:
	case <-done:
		t.Fatal("the writer never reached the call at which it should stall")
	case <-time.After(time.Minute):
		t.Fatal("the writer does not get there")
	}
	meanwhile()
	s.wake()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the woken writer does not end")
	}
}

// objects are the ledger's ConfigMaps of a kind.
func (w *world) objects(kind string) []corev1.ConfigMap {
	w.t.Helper()
	list, err := w.boss.core.CoreV1().ConfigMaps(w.ledger).List(w.t.Context(), metav1.ListOptions{LabelSelector: ledger.LabelKind + "=" + kind})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}
