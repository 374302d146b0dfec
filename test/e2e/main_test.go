// Package e2e runs the built executable, as `kubectl vmip …` by a real kubectl, against real
// control planes: KubeVirt's own controllers and webhooks decide, and only the nodes are
// simulated. docs/development.md says how to run it.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"kubevirt.io/client-go/kubevirt"
)

// root is the repository.
const root = "../.."

var (
	binaries string // of the control plane, kubectl and virtctl
	plugins  string // a folder with nothing but the plugin: the PATH that kubectl gets
	scratch  string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "vmip-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	defer stopClusters()
	build := exec.Command("go", "-C", filepath.Join(root, "test/cluster"), "run", "./cmd/build")
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "building the control plane:", err)
		return 1
	}
	binaries = strings.TrimSpace(string(out))
	plugins = filepath.Join(scratch, "plugins")
	compile := exec.Command("go", "build", "-o", filepath.Join(plugins, "kubectl-vmip"), "./cmd/kubectl-vmip")
	compile.Dir, compile.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the plugin: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// cluster is a running control plane with simulated nodes.
type cluster struct {
	cni, dir, kubeconfig string
	core                 kubernetes.Interface
	virt                 kubevirt.Interface
	dynamic              dynamic.Interface
}

var clusters struct {
	sync.Mutex
	byName map[string]func() (*cluster, error)
	dirs   []string
}

// clusterWith returns the cluster of a CNI, started by the first test that asks for it.
func clusterWith(t *testing.T, cni string) *cluster {
	t.Helper()
	return clusterNamed(t, cni, cni)
}

// clusterNamed returns a cluster apart from the one that the tests of its CNI share, for what
// changes the whole of it.
func clusterNamed(t *testing.T, name, cni string) *cluster {
	t.Helper()
	clusters.Lock()
	if clusters.byName == nil {
		clusters.byName = map[string]func() (*cluster, error){}
	}
	start, ok := clusters.byName[name]
	if !ok {
		start = sync.OnceValues(func() (*cluster, error) { return startCluster(name, cni) })
		clusters.byName[name] = start
	}
	clusters.Unlock()
	c, err := start()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func startCluster(name, cni string) (*cluster, error) {
	c := &cluster{cni: cni, dir: filepath.Join(scratch, "cluster-"+name)}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	clusters.Lock()
	clusters.dirs = append(clusters.dirs, c.dir)
	clusters.Unlock()
	up := exec.Command(filepath.Join(binaries, "vmip-cluster"), "up", "--name", "e2e-"+name, "--dir", c.dir, "--cni", cni)
	if out, err := up.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("starting the %s cluster: %w\n%s", name, err, out)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = 500, 1000
	if c.core, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, err
	}
	if c.virt, err = kubevirt.NewForConfig(cfg); err != nil {
		return nil, err
	}
	c.dynamic, err = dynamic.NewForConfig(cfg)
	return c, err
}

func stopClusters() {
	for _, dir := range clusters.dirs {
		if out, err := exec.Command(filepath.Join(binaries, "vmip-cluster"), "down", "--dir", dir).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "stopping %s: %v\n%s", dir, err, out)
		}
	}
}

// result is what a command line did.
type result struct {
	stdout, stderr string
	code           int
}

func (r result) String() string {
	return fmt.Sprintf("exit %d\n--- stdout\n%s--- stderr\n%s", r.code, r.stdout, r.stderr)
}

// env is the environment of a command: nothing of the machine's but what is named here.
func (c *cluster) env(more ...string) []string {
	return append([]string{"PATH=" + plugins, "HOME=" + scratch, "KUBECONFIG=" + c.kubeconfig, "LANG=C.UTF-8"}, more...)
}

// exec runs a program with a deadline and returns what it did; only a program that could not be
// run at all fails the test.
func execute(t *testing.T, env []string, stdin, program string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %v: %v", program, args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// kubectl runs kubectl and fails the test where it fails.
func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	r := execute(t, c.env(), stdin, filepath.Join(binaries, "kubectl"), args...)
	if r.code != 0 {
		t.Fatalf("kubectl %s: %s", strings.Join(args, " "), r)
	}
	return r.stdout
}

// vmip runs `kubectl vmip …`.
func (c *cluster) vmip(t *testing.T, args ...string) result {
	t.Helper()
	return c.vmipWith(t, c.env(), args...)
}

func (c *cluster) vmipWith(t *testing.T, env []string, args ...string) result {
	t.Helper()
	r := execute(t, env, "", filepath.Join(binaries, "kubectl"), append([]string{"vmip"}, args...)...)
	t.Logf("kubectl vmip %s: %s", strings.Join(args, " "), r)
	return r
}
