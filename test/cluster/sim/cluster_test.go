package sim_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirt "kubevirt.io/client-go/kubevirt"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/cni"
	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/control"
	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/sim"
)

const nodeCount = 3

// env is the cluster that all tests share; each has a namespace of its own. It runs where CLUSTER_BIN
// names the folder that cmd/build prints; without it, those tests are skipped:
//
//	CLUSTER_BIN=$(go run ./cmd/build) go test ./sim
var env struct {
	dir    string
	config *rest.Config
	core   kubernetes.Interface
	kv     kubevirt.Interface
	cni    *network
	player *player
}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	flag.Parse()
	bin := os.Getenv("CLUSTER_BIN")
	if bin == "" || testing.Short() {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "sim-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	env.dir = dir
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- control.Supervise(ctx, control.Options{Name: "sim-test", Nodes: nodeCount, CNI: "none", Dir: dir, Bin: bin, Unattended: true})
	}()
	defer func() { stop(); <-ended }()
	for {
		if state, err := control.Load(dir); err == nil && state.Phase == control.Ready {
			break
		}
		select {
		case err := <-ended:
			ended <- err
			fmt.Fprintln(os.Stderr, "no control plane:", err)
			return 1
		case <-time.After(100 * time.Millisecond):
		}
	}
	if env.config, err = clientcmd.BuildConfigFromFlags("", control.Options{Dir: dir}.Kubeconfig()); err == nil {
		env.config.QPS = -1
		env.core, err = kubernetes.NewForConfig(env.config)
	}
	if err == nil {
		env.kv, err = kubevirt.NewForConfig(env.config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	env.cni = &network{}
	env.player = play()
	defer func() { env.player.stop() }()
	return m.Run()
}

// player is a running simulator.
type player struct {
	cancel context.CancelFunc
	done   chan error
}

func play() *player {
	ctx, cancel := context.WithCancel(context.Background())
	p := &player{cancel, make(chan error, 1)}
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	go func() {
		p.done <- sim.Run(ctx, sim.Options{Config: env.config, Nodes: nodeCount, CNI: env.cni, Log: log})
	}()
	return p
}

func (p *player) stop() {
	p.cancel()
	<-p.done
}

// network is a CNI driver that keeps an address for each VM, and for each pod without one. It
// writes down who calls.
type network struct {
	mu    sync.Mutex
	next  int
	held  map[string]netip.Addr
	calls []call
	// refuse, where set, is asked before an ADD.
	refuse func(cni.Request) error
}

type call struct {
	op, pod, id string
	at          time.Time
}

func (n *network) Name() string                  { return "test-1.2" }
func (n *network) Install(context.Context) error { return nil }
func (n *network) Run(context.Context) error     { return nil }

func (n *network) Add(_ context.Context, req cni.Request) (cni.Result, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call{"ADD", req.Pod.Name, req.ContainerID, time.Now()})
	if n.refuse != nil {
		if err := n.refuse(req); err != nil {
			return cni.Result{}, err
		}
	}
	holder := req.Pod.Namespace + "/" + req.Pod.Name
	if owner := metav1.GetControllerOf(req.Pod); owner != nil {
		holder = req.Pod.Namespace + "/" + owner.Name
	}
	if n.held == nil {
		n.held = map[string]netip.Addr{}
	}
	addr, ok := n.held[holder]
	if !ok {
		n.next++
		addr = netip.AddrFrom4([4]byte{10, 16, byte(n.next >> 8), byte(n.next)})
		n.held[holder] = addr
	}
	return cni.Result{IPs: []netip.Addr{addr}, MAC: "02:00:00:00:00:" + req.ContainerID[:2], Annotations: map[string]string{
		"test/address":                      addr.String() + "/16",
		"k8s.v1.cni.cncf.io/network-status": fmt.Sprintf(`[{"name":"test","interface":"eth0","ips":[%q],"default":true}]`, addr),
	}}, nil
}

func (n *network) Del(_ context.Context, req cni.Request) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call{"DEL", req.Pod.Name, req.ContainerID, time.Now()})
	return nil
}

func (n *network) setRefuse(f func(cni.Request) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = f
}

// of returns the calls for a pod.
func (n *network) of(pod string) []call {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.calls), func(c call) bool { return c.pod != pod })
}

func ops(calls []call) string {
	var s []string
	for _, c := range calls {
		s = append(s, c.op)
	}
	return strings.Join(s, " ")
}

// eventually polls until check returns nil.
func eventually(t *testing.T, timeout time.Duration, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func newNamespace(t *testing.T) string {
	t.Helper()
	if env.core == nil {
		t.Skip("CLUSTER_BIN names no folder with the control plane's binaries, or -short")
	}
	ns, err := env.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "sim-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = env.core.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{})
	})
	return ns.Name
}

// vm is a VM under test.
type vm struct {
	t        *testing.T
	ns, name string
}

type option func(*kubevirtv1.VirtualMachine)

func annotated(pairs ...string) option {
	return func(v *kubevirtv1.VirtualMachine) {
		for i := 0; i < len(pairs); i += 2 {
			v.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func bridge(v *kubevirtv1.VirtualMachine) {
	v.Spec.Template.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}
}

func newVM(t *testing.T, ns, name string, options ...option) *vm {
	t.Helper()
	v := &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{}},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: ptr.To(kubevirtv1.RunStrategyAlways),
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}},
				Spec: kubevirtv1.VirtualMachineInstanceSpec{
					Domain: kubevirtv1.DomainSpec{
						Memory: &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))},
						Devices: kubevirtv1.Devices{Interfaces: []kubevirtv1.Interface{{
							Name: "default", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}},
						}}},
					},
					Networks: []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()},
				},
			},
		},
	}
	for _, o := range options {
		o(v)
	}
	if _, err := env.kv.KubevirtV1().VirtualMachines(ns).Create(t.Context(), v, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Faults that hold something fast would keep the namespace.
		ctx := context.Background()
		_, _ = env.kv.KubevirtV1().VirtualMachines(ns).Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{})
		_ = env.kv.KubevirtV1().VirtualMachines(ns).Delete(ctx, name, metav1.DeleteOptions{})
	})
	return &vm{t, ns, name}
}

func (v *vm) vmi() *kubevirtv1.VirtualMachineInstance {
	vmi, err := env.kv.KubevirtV1().VirtualMachineInstances(v.ns).Get(v.t.Context(), v.name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return vmi
}

func (v *vm) await(what string, check func(*kubevirtv1.VirtualMachineInstance) bool) *kubevirtv1.VirtualMachineInstance {
	v.t.Helper()
	return v.awaitFor(20*time.Second, what, check)
}

func (v *vm) awaitFor(timeout time.Duration, what string, check func(*kubevirtv1.VirtualMachineInstance) bool) (vmi *kubevirtv1.VirtualMachineInstance) {
	v.t.Helper()
	eventually(v.t, timeout, what, func() error {
		if vmi = v.vmi(); vmi == nil {
			return errors.New("no VMI")
		}
		if !check(vmi) {
			return fmt.Errorf("VMI is %s on %s, migration state %+v", vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.MigrationState)
		}
		return nil
	})
	return vmi
}

func (v *vm) running() *kubevirtv1.VirtualMachineInstance {
	v.t.Helper()
	return v.await("running", func(vmi *kubevirtv1.VirtualMachineInstance) bool { return vmi.Status.Phase == kubevirtv1.Running })
}

// pods are the VM's launcher pods, oldest first.
func (v *vm) pods() []corev1.Pod {
	v.t.Helper()
	list, err := env.core.CoreV1().Pods(v.ns).List(v.t.Context(), metav1.ListOptions{LabelSelector: "kubevirt.io=virt-launcher"})
	if err != nil {
		v.t.Fatal(err)
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Annotations["kubevirt.io/domain"] != v.name })
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		// Creation times are whole seconds: a migration's target is the younger one.
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)*2 + strings.Compare(a.Labels[kubevirtv1.MigrationJobLabel], b.Labels[kubevirtv1.MigrationJobLabel])
	})
	return pods
}

func (v *vm) annotate(name, value string) {
	v.t.Helper()
	if value == "" {
		value = "null"
	} else {
		value = fmt.Sprintf("%q", value)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, name, value)
	if _, err := env.kv.KubevirtV1().VirtualMachines(v.ns).Patch(v.t.Context(), v.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		v.t.Fatal(err)
	}
}

// migrate starts a migration.
func (v *vm) migrate() *migration {
	v.t.Helper()
	m, err := env.kv.KubevirtV1().VirtualMachineInstanceMigrations(v.ns).Create(v.t.Context(), &kubevirtv1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: v.name + "-"}, Spec: kubevirtv1.VirtualMachineInstanceMigrationSpec{VMIName: v.name},
	}, metav1.CreateOptions{})
	if err != nil {
		v.t.Fatal(err)
	}
	return &migration{v, m.Name, string(m.UID)}
}

type migration struct {
	*vm
	name, uid string
}

func (m *migration) get() (*kubevirtv1.VirtualMachineInstanceMigration, error) {
	return env.kv.KubevirtV1().VirtualMachineInstanceMigrations(m.ns).Get(m.t.Context(), m.name, metav1.GetOptions{})
}

func (m *migration) reaches(phase kubevirtv1.VirtualMachineInstanceMigrationPhase) (vmim *kubevirtv1.VirtualMachineInstanceMigration) {
	m.t.Helper()
	eventually(m.t, 20*time.Second, "migration", func() (err error) {
		if vmim, err = m.get(); err == nil && vmim.Status.Phase != phase {
			err = fmt.Errorf("phase is %s, not %s", vmim.Status.Phase, phase)
		}
		return err
	})
	return vmim
}

func (m *migration) target() *corev1.Pod {
	list, err := env.core.CoreV1().Pods(m.ns).List(m.t.Context(), metav1.ListOptions{LabelSelector: kubevirtv1.MigrationJobLabel + "=" + m.uid})
	if err != nil || len(list.Items) != 1 {
		return nil
	}
	return &list.Items[0]
}

// phases are those that the migration has been in.
func phases(vmim *kubevirtv1.VirtualMachineInstanceMigration) string {
	var s []string
	for _, p := range vmim.Status.PhaseTransitionTimestamps {
		s = append(s, string(p.Phase))
	}
	return strings.Join(s, " ")
}

func podCondition(pod *corev1.Pod, t corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.PodCondition{}
}

func vmiCondition(vmi *kubevirtv1.VirtualMachineInstance, t kubevirtv1.VirtualMachineInstanceConditionType) kubevirtv1.VirtualMachineInstanceCondition {
	for _, c := range vmi.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return kubevirtv1.VirtualMachineInstanceCondition{}
}

func eventsOf(t *testing.T, ns, name, reason string) []corev1.Event {
	t.Helper()
	list, err := env.core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=" + reason})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
