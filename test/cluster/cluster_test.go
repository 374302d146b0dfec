package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirt "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/control"
)

// bin is the folder of the binaries; `make cluster-build` has made them, or it takes minutes.
var bin = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "run", "./cmd/build")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

// command runs one of the binaries and returns what it printed on both streams.
func command(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	dir, err := bin()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, name), args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// testCluster is a cluster that ends with the test.
type testCluster struct {
	dir, kubeconfig string
	args            []string
	virt            *kubevirt.KubevirtV1Client
}

// up starts a cluster. It may be called from any goroutine.
func up(t *testing.T, name string, args ...string) (*testCluster, error) {
	t.Helper()
	c := &testCluster{dir: filepath.Join(t.TempDir(), name)}
	c.args = append([]string{"up", "--name", name, "--dir", c.dir}, args...)
	t.Cleanup(func() {
		if out, err := exec.Command(filepath.Join(must(bin()), "vmip-cluster"), "down", "--dir", c.dir).CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	out, err := command(t, "vmip-cluster", c.args...)
	if err != nil {
		return nil, fmt.Errorf("up: %w\n%s", err, out)
	}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	if want := "export KUBECONFIG=" + c.kubeconfig; !strings.Contains(out, want) {
		t.Errorf("up doesn't print %q:\n%s", want, out)
	}
	kubeconfig, err := os.ReadFile(c.kubeconfig)
	if err != nil {
		return nil, err
	}
	c.virt, err = client(kubeconfig)
	return c, err
}

func client(kubeconfig []byte) (*kubevirt.KubevirtV1Client, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return kubevirt.NewForConfig(config)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (c *testCluster) state(t *testing.T) *control.State {
	t.Helper()
	s, err := control.Load(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// virtctl is KubeVirt's own client, against this cluster.
func (c *testCluster) virtctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := command(t, "virtctl", append([]string{"--kubeconfig", c.kubeconfig}, args...)...); err != nil {
		t.Fatalf("virtctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (c *testCluster) vm(t *testing.T, name string) *kubevirtv1.VirtualMachine {
	t.Helper()
	vm, err := c.virt.VirtualMachines("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func (c *testCluster) vmi(t *testing.T, name string) *kubevirtv1.VirtualMachineInstance {
	t.Helper()
	vmi, err := c.virt.VirtualMachineInstances("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return vmi
}

// create creates a VM that can be migrated.
func (c *testCluster) create(t *testing.T, name string, strategy kubevirtv1.VirtualMachineRunStrategy) *kubevirtv1.VirtualMachine {
	t.Helper()
	vm, err := c.virt.VirtualMachines("default").Create(t.Context(), newVM(name, strategy), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func newVM(name string, strategy kubevirtv1.VirtualMachineRunStrategy) *kubevirtv1.VirtualMachine {
	masquerade := kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}}
	return &kubevirtv1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: ptr.To(strategy),
			Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
				Domain: kubevirtv1.DomainSpec{
					Memory: &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))},
					Devices: kubevirtv1.Devices{
						Interfaces: []kubevirtv1.Interface{{Name: "default", InterfaceBindingMethod: masquerade}},
					},
				},
				Networks: []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()},
			}},
		},
	}
}

// eventually waits until ok reports no reason to wait any longer.
func eventually(t *testing.T, what string, ok func() (missing string)) {
	t.Helper()
	start := time.Now()
	for {
		missing := ok()
		if missing == "" {
			t.Logf("%s after %.1f s", what, time.Since(start).Seconds())
			return
		}
		if time.Since(start) > 20*time.Second {
			t.Fatalf("%s: not after 20 s: %s", what, missing)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *testCluster) waitStatus(t *testing.T, name string, want kubevirtv1.VirtualMachinePrintableStatus) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is %s", name, want), func() string {
		if got := c.vm(t, name).Status.PrintableStatus; got != want {
			return "it is " + string(got)
		}
		return ""
	})
}

func TestCluster(t *testing.T) {
	if _, err := bin(); err != nil {
		t.Fatalf("build: %v", err)
	}
	// Two at once: they must not meet in ports, folders or processes.
	var c, other *testCluster
	var g errgroup.Group
	g.Go(func() (err error) { c, err = up(t, "first", "--nodes", "2"); return })
	g.Go(func() (err error) { other, err = up(t, "other", "--nodes", "1", "--cni", "none"); return })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}

	t.Run("starts, restarts, migrates and stops a VM", func(t *testing.T) { testLifecycle(t, c) })
	t.Run("refuses a restricted label", func(t *testing.T) { testRestrictedLabel(t, c) })
	t.Run("keeps annotations of a template from running VMs", func(t *testing.T) { testAnnotation(t, c) })
	t.Run("lets virt-handler alone write status", func(t *testing.T) { testStatus(t, c) })
	t.Run("gives a new user no rights", func(t *testing.T) { testUser(t, c) })
	t.Run("is left alone by a second up", func(t *testing.T) { testIdempotence(t, c) })
	t.Run("survives restarts of its components", func(t *testing.T) { testRestart(t, other) })
	t.Run("leaves nothing behind", func(t *testing.T) { testDown(t, c, other) })
}

func testLifecycle(t *testing.T, c *testCluster) {
	c.create(t, "vm", kubevirtv1.RunStrategyHalted)
	c.waitStatus(t, "vm", kubevirtv1.VirtualMachineStatusStopped)

	c.virtctl(t, "start", "vm")
	c.waitStatus(t, "vm", kubevirtv1.VirtualMachineStatusRunning)
	started := c.vmi(t, "vm")
	if started.Status.NodeName == "" || len(started.Status.Interfaces) != 1 || started.Status.Interfaces[0].IP == "" {
		t.Errorf("running without a node or an address: %+v", started.Status)
	}

	c.virtctl(t, "restart", "vm")
	eventually(t, "vm has a new instance that runs", func() string {
		vmi, err := c.virt.VirtualMachineInstances("default").Get(t.Context(), "vm", metav1.GetOptions{})
		switch {
		case err != nil:
			return err.Error()
		case vmi.UID == started.UID:
			return "it is the old one"
		case vmi.Status.Phase != kubevirtv1.Running:
			return "it is " + string(vmi.Status.Phase)
		}
		return ""
	})
	c.waitStatus(t, "vm", kubevirtv1.VirtualMachineStatusRunning)

	before := c.vmi(t, "vm")
	c.virtctl(t, "migrate", "vm")
	eventually(t, "vm is migrated", func() string {
		list, err := c.virt.VirtualMachineInstanceMigrations("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return fmt.Sprintf("%d migrations, %v", len(list.Items), err)
		}
		switch phase := list.Items[0].Status.Phase; phase {
		case kubevirtv1.MigrationSucceeded:
			return ""
		case kubevirtv1.MigrationFailed:
			t.Fatalf("migration failed: %+v", list.Items[0].Status)
			return ""
		default:
			return "it is " + string(phase)
		}
	})
	after := c.vmi(t, "vm")
	if after.UID != before.UID || after.Status.NodeName == before.Status.NodeName {
		t.Errorf("migrated from %s of %s to %s of %s", before.Status.NodeName, before.UID, after.Status.NodeName, after.UID)
	}

	c.virtctl(t, "stop", "vm")
	c.waitStatus(t, "vm", kubevirtv1.VirtualMachineStatusStopped)
	eventually(t, "vm's instance is gone", func() string {
		_, err := c.virt.VirtualMachineInstances("default").Get(t.Context(), "vm", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("got %v", err)
	})
}

func testRestrictedLabel(t *testing.T, c *testCluster) {
	vm := newVM("restricted", kubevirtv1.RunStrategyHalted)
	vm.Spec.Template.ObjectMeta.Labels = map[string]string{kubevirtv1.NodeNameLabel: "n1"}
	_, err := c.virt.VirtualMachines("default").Create(t.Context(), vm, metav1.CreateOptions{})
	const want = "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// A template that changes under a running VM raises no condition: who relies on RestartRequired is wrong.
func testAnnotation(t *testing.T, c *testCluster) {
	c.create(t, "annotated", kubevirtv1.RunStrategyAlways)
	c.waitStatus(t, "annotated", kubevirtv1.VirtualMachineStatusRunning)
	patched, err := c.virt.VirtualMachines("default").Patch(t.Context(), "annotated", types.MergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"annotations":{"example.com/address":"10.0.0.1"}}}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "virt-controller has seen the change", func() string {
		if got := c.vm(t, "annotated").Status.DesiredGeneration; got < patched.Generation {
			return fmt.Sprintf("it saw generation %d of %d", got, patched.Generation)
		}
		return ""
	})
	for _, condition := range c.vm(t, "annotated").Status.Conditions {
		if condition.Type == kubevirtv1.VirtualMachineRestartRequired {
			t.Errorf("condition %+v", condition)
		}
	}
	if got := c.vmi(t, "annotated").Annotations["example.com/address"]; got != "" {
		t.Errorf("the running instance got the annotation: %q", got)
	}
}

func testStatus(t *testing.T, c *testCluster) {
	vmi := c.vmi(t, "annotated")
	got, err := c.virt.VirtualMachineInstances("default").Patch(t.Context(), "annotated", types.MergePatchType,
		[]byte(`{"status":{"nodeName":"elsewhere"},"metadata":{"annotations":{"example.com/mine":"yes"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Status.NodeName != vmi.Status.NodeName {
		t.Errorf("an administrator changed the status to node %s", got.Status.NodeName)
	}
	if got.Annotations["example.com/mine"] != "yes" {
		t.Errorf("the annotation of the same patch is lost")
	}
}

func testUser(t *testing.T, c *testCluster) {
	kubeconfig, err := command(t, "vmip-cluster", "kubeconfig", "--dir", c.dir, "--user", "nobody", "--group", "nothing")
	if err != nil {
		t.Fatalf("%v\n%s", err, kubeconfig)
	}
	virt, err := client([]byte(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	_, err = virt.VirtualMachines("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "nobody"`) {
		t.Errorf("got %v, want forbidden", err)
	}
}

func testIdempotence(t *testing.T, c *testCluster) {
	before := c.state(t)
	out, err := command(t, "vmip-cluster", c.args...)
	if err != nil || !strings.Contains(out, "cluster first is already running: 2 nodes, CNI kube-ovn\n") {
		t.Errorf("up: %v\n%s", err, out)
	}
	if after := c.state(t); after.Supervisor != before.Supervisor {
		t.Errorf("the supervisor is another one: %+v, was %+v", after.Supervisor, before.Supervisor)
	}
	out, err = command(t, "vmip-cluster", append(c.args, "--nodes", "3")...)
	const want = "error: cluster first runs with other settings (2 nodes, CNI kube-ovn, asked for 3 nodes, CNI kube-ovn): stop it first, with `make cluster-down`\n"
	if err == nil || out != want {
		t.Errorf("up with other settings: %v, got %q, want %q", err, out, want)
	}
}

func testRestart(t *testing.T, c *testCluster) {
	before := c.state(t)
	// virt-controller last: it takes its time to come back to an API server that was away.
	for _, args := range [][]string{{"kube-apiserver"}, {"virt-controller", "--kill"}} {
		if out, err := command(t, "vmip-cluster", append([]string{"restart-component", "--dir", c.dir}, args...)...); err != nil {
			t.Fatalf("restart %v: %v\n%s", args, err, out)
		}
	}
	after := c.state(t)
	for i, now := range after.Components {
		was := before.Components[i]
		switch now.Name {
		case "kube-apiserver", "virt-controller":
			if now.PID == was.PID || now.Port != was.Port {
				t.Errorf("%s: process %d on port %d, was %d on %d", now.Name, now.PID, now.Port, was.PID, was.Port)
			}
		}
	}
	eventually(t, "the cluster is healthy", func() string {
		if err := after.Check(t.Context()); err != nil {
			return err.Error()
		}
		return ""
	})
	c.create(t, "later", kubevirtv1.RunStrategyAlways)
	c.waitStatus(t, "later", kubevirtv1.VirtualMachineStatusRunning)
}

func testDown(t *testing.T, c, other *testCluster) {
	state := c.state(t)
	if out, err := command(t, "vmip-cluster", "down", "--dir", c.dir); err != nil || out != "cluster first is stopped\n" {
		t.Errorf("down: %v\n%s", err, out)
	}
	checkGone(t, state)
	for _, path := range []string{state.Dir, state.Data} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if out, err := command(t, "vmip-cluster", "down", "--dir", c.dir); err != nil || out != "no cluster is running\n" {
		t.Errorf("second down: %v\n%s", err, out)
	}
	if err := other.state(t).Check(t.Context()); err != nil {
		t.Errorf("the other cluster: %v", err)
	}
	// The children of a supervisor that is killed have nobody else to end them.
	state = other.state(t)
	state.Supervisor.Signal(syscall.SIGKILL)
	eventually(t, "the killed supervisor's children are gone", func() string {
		for _, p := range state.Components {
			if p.Alive() {
				return p.Name + " is alive"
			}
		}
		return ""
	})
}

// checkGone looks for the processes of a cluster, by id and by what their command lines name.
func checkGone(t *testing.T, s *control.State) {
	t.Helper()
	for _, c := range s.Components {
		if c.Alive() {
			t.Errorf("%s still runs as %d", c.Name, c.PID)
		}
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		// A process that ends meanwhile can't be read, which is fine.
		if data, err := os.ReadFile(line); err == nil && bytes.Contains(data, []byte(s.Dir)) {
			t.Errorf("%s still runs: %q", filepath.Dir(line), data)
		}
	}
}

// What fails to come up says which component and why, and leaves nothing running.
func TestUpFails(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "virt-api", "virt-controller"} {
		if err := os.Symlink(filepath.Join(must(bin()), name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	broken := []byte("#!/bin/sh\necho nothing to control >&2\nexit 3\n")
	if err := os.WriteFile(filepath.Join(dir, "kube-controller-manager"), broken, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	out, err := command(t, "vmip-cluster", "up", "--name", "fails", "--dir", state, "--bin", dir)
	if err == nil {
		t.Fatal("it came up")
	}
	for _, want := range []string{"    nothing to control\n", "error: cluster fails failed: kube-controller-manager: died: exit status 3\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	s, err := control.Load(state)
	if err != nil {
		t.Fatal(err)
	}
	checkGone(t, s)
	if _, err := os.Stat(s.Data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", s.Data, err)
	}
}
