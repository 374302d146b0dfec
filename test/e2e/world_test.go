package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// world is one test's own corner of a cluster: a namespace with a pool of its own, so that tests
// can run side by side. They share the ledger: two in one cluster would be a fault.
type world struct {
	*cluster
	t         *testing.T
	namespace string
	// lab is the pool of the namespace.
	lab string
	// prefix are the first three bytes of the test's own /24 inside the cluster's pod network,
	// prefix6 its /120.
	prefix, prefix6 string
}

var worlds atomic.Int32

func newWorld(t *testing.T, cni string) *world {
	t.Helper()
	return newWorldIn(t, clusterWith(t, cni))
}

func newWorldIn(t *testing.T, c *cluster) *world {
	t.Helper()
	n := worlds.Add(1)
	w := &world{cluster: c, t: t, namespace: fmt.Sprintf("t%d", n), lab: fmt.Sprintf("lab-t%d", n), prefix: fmt.Sprintf("10.16.%d", 100+n), prefix6: fmt.Sprintf("fd00:10:16::%x", 0x100*(16+n))}
	w.kubectl(t, "", "create", "namespace", w.namespace)
	return w
}

// ip is an address of the world's network.
func (w *world) ip(last int) string { return fmt.Sprintf("%s.%d", w.prefix, last) }

// run runs `kubectl vmip …` in the world's namespace.
func (w *world) run(args ...string) result {
	w.t.Helper()
	return w.vmip(w.t, append(args, "-n", w.namespace)...)
}

// ok runs a command that has to succeed and returns its output.
func (w *world) ok(args ...string) string {
	w.t.Helper()
	r := w.run(args...)
	if r.code != 0 {
		w.t.Fatalf("kubectl vmip %s: %s", strings.Join(args, " "), r)
	}
	return r.stdout
}

// fails runs a command that has to fail with a status and with all of the texts on stderr.
func (w *world) fails(code int, texts []string, args ...string) result {
	w.t.Helper()
	r := w.run(args...)
	if r.code != code {
		w.t.Errorf("kubectl vmip %s: exit %d, want %d: %s", strings.Join(args, " "), r.code, code, r)
	}
	for _, text := range texts {
		if !strings.Contains(r.stderr, text) {
			w.t.Errorf("kubectl vmip %s: stderr lacks %q: %s", strings.Join(args, " "), text, r)
		}
	}
	return r
}

// pool adds the world's pool: addresses 10 to 200 of its network unless more says otherwise.
func (w *world) pool(more ...string) {
	w.t.Helper()
	args := []string{"pool", "add", w.lab, "--cidr", w.prefix + ".0/24", "--gateway", w.ip(1), "--for-namespace", w.namespace}
	if !slices.Contains(more, "--range") {
		args = append(args, "--range", w.ip(10)+"-"+w.ip(200))
	}
	w.ok(append(args, more...)...)
}

// vm is a manifest; change alters it before it is created.
func (w *world) vm(name string, change func(*kubevirtv1.VirtualMachine)) *kubevirtv1.VirtualMachine {
	w.t.Helper()
	always := kubevirtv1.RunStrategyAlways
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}}
	vm.Spec.RunStrategy = &always
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"kubevirt.io/allow-pod-bridge-network-live-migration": "", "example.com/keep": "me"}
	spec := &vm.Spec.Template.Spec
	grace := int64(5)
	spec.TerminationGracePeriodSeconds = &grace
	spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
	spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{*kubevirtv1.DefaultBridgeNetworkInterface()}
	spec.Domain.Memory = &kubevirtv1.Memory{}
	spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: *mustQuantity("64Mi")}
	if change != nil {
		change(vm)
	}
	vm, err := w.virt.KubevirtV1().VirtualMachines(w.namespace).Create(w.t.Context(), vm, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return vm
}

// running makes VMs and waits until they run.
func (w *world) running(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.vm(name, nil)
	}
	for _, name := range names {
		w.await(name, kubevirtv1.VirtualMachineStatusRunning)
	}
}

func halted(vm *kubevirtv1.VirtualMachine) {
	strategy := kubevirtv1.RunStrategyHalted
	vm.Spec.RunStrategy = &strategy
}

func (w *world) await(name string, status kubevirtv1.VirtualMachinePrintableStatus) {
	w.t.Helper()
	w.eventually("virtualmachine "+name+" "+string(status), func(ctx context.Context) (string, bool, error) {
		vm, err := w.virt.KubevirtV1().VirtualMachines(w.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", false, err
		}
		return string(vm.Status.PrintableStatus), vm.Status.PrintableStatus == status, nil
	})
}

// eventually waits for something that the cluster does on its own.
func (w *world) eventually(what string, check func(context.Context) (last string, done bool, err error)) {
	w.t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (done bool, err error) {
		last, done, err = check(ctx)
		return done, err
	})
	if err != nil {
		w.t.Fatalf("%s: %v (last seen: %s)", what, err, last)
	}
}

func (w *world) get(name string) *kubevirtv1.VirtualMachine {
	w.t.Helper()
	vm, err := w.virt.KubevirtV1().VirtualMachines(w.namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return vm
}

// untouched checks that the plugin has never written to a VM. Its resourceVersion says nothing:
// KubeVirt writes annotations and status of its own.
func (w *world) untouched(name string) {
	w.t.Helper()
	for _, m := range w.get(name).ManagedFields {
		if m.Manager == "kubectl-vmip" {
			w.t.Errorf("the plugin has written to virtualmachine %s: %s", name, m.FieldsV1)
		}
	}
}

func (w *world) vmi(name string) *kubevirtv1.VirtualMachineInstance {
	w.t.Helper()
	vmi, err := w.virt.KubevirtV1().VirtualMachineInstances(w.namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return vmi
}

// livePods are the unfinished pods of a VM, found without the code under test.
func (w *world) livePods(name string) (pods []corev1.Pod) {
	w.t.Helper()
	uid := w.vmi(name).UID
	list, err := w.core.CoreV1().Pods(w.namespace).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range list.Items {
		owner := metav1.GetControllerOf(&p)
		if owner != nil && owner.UID == uid && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			pods = append(pods, p)
		}
	}
	return pods
}

// address is what the only live pod of a VM has.
func (w *world) address(name string) string {
	w.t.Helper()
	pods := w.livePods(name)
	if len(pods) != 1 {
		w.t.Fatalf("virtualmachine %s has %d live pods", name, len(pods))
	}
	return pods[0].Status.PodIP
}

// ledgerVersions are the resourceVersions of the world's pool and blocks: a refused command
// leaves them as they were.
func (w *world) ledgerVersions() string {
	w.t.Helper()
	list, err := w.core.CoreV1().ConfigMaps("vmip-system").List(w.t.Context(), metav1.ListOptions{LabelSelector: "vmip.io/kind"})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, cm := range list.Items {
		if strings.Contains(cm.Name, w.prefix+".") || cm.Labels["vmip.io/pool"] == w.lab {
			out = append(out, cm.Name+"@"+cm.ResourceVersion)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// rows are the ledger's rows by address, as they stand in the ConfigMaps.
func (w *world) rows() map[string]string {
	w.t.Helper()
	list, err := w.core.CoreV1().ConfigMaps("vmip-system").List(w.t.Context(), metav1.ListOptions{LabelSelector: "vmip.io/kind=block"})
	if err != nil {
		w.t.Fatal(err)
	}
	rows := map[string]string{}
	for _, cm := range list.Items {
		for k, v := range cm.Data {
			if _, err := netip.ParseAddr(k); err == nil && strings.HasPrefix(k, w.prefix+".") {
				rows[k] = v
			}
		}
	}
	return rows
}

// user returns the environment of somebody with no rights but those that the test gives.
func (w *world) user(name string) []string {
	w.t.Helper()
	r := execute(w.t, w.env(), "", filepath.Join(binaries, "vmip-cluster"), "kubeconfig", "--dir", w.dir, "--user", name)
	if r.code != 0 {
		w.t.Fatalf("kubeconfig of %s: %s", name, r)
	}
	path := filepath.Join(w.t.TempDir(), name)
	writeFile(w.t, path, r.stdout)
	return []string{"PATH=" + plugins, "HOME=" + scratch, "KUBECONFIG=" + path}
}
