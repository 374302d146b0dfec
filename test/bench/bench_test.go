// Package bench measures whole operations against a peer, or against the least that they could
// cost, in one run and on one API server: ratios, since seconds are the machine's. The numbers go to
// .bench/results.json of the repository.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/config"
	wb "github.com/k8snetworkplumbingwg/whereabouts/pkg/storage/kubernetes"
	wbtypes "github.com/k8snetworkplumbingwg/whereabouts/pkg/types"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd"
	"github.com/kubectl-vmip/kubectl-vmip/test/testcluster"
)

const root = "../.."

var (
	cluster *testcluster.Cluster
	core    kubernetes.Interface
	virt    kubevirt.Interface

	mu      sync.Mutex
	results = map[string]float64{}
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "vmip-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries, err := testcluster.Build(root)
	if err == nil {
		cluster, err = testcluster.Start(binaries, filepath.Join(dir, "cluster"), "bench", "kube-ovn")
		defer func() {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	if err == nil {
		if core, err = kubernetes.NewForConfig(cluster.Config); err == nil {
			virt, err = kubevirt.NewForConfig(cluster.Config)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := save(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// save adds the numbers to those of other benchmarks.
func save() error {
	path := filepath.Join(root, ".bench", "results.json")
	all := map[string]float64{}
	if raw, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(raw, &all); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for k, v := range results {
		all[k] = v
	}
	raw, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

func report(b *testing.B, key string, value float64) {
	b.Helper()
	mu.Lock()
	defer mu.Unlock()
	results[key] = value
	b.ReportMetric(value, key)
}

// command runs a whole command line with clients of its own.
func command(stdin string, args ...string) (string, error) {
	var out, errOut bytes.Buffer
	args = append(args, "--kubeconfig", cluster.Kubeconfig)
	if code := cmd.Execute(context.Background(), genericiooptions.IOStreams{In: strings.NewReader(stdin), Out: &out, ErrOut: &errOut}, args); code != 0 {
		return "", fmt.Errorf("%v: exit %d: %s", args, code, errOut.String())
	}
	return out.String(), nil
}

func namespace(b *testing.B, name string) {
	b.Helper()
	if _, err := core.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}

// machines makes halted machines of a real size: 4 KiB and more.
func machines(b *testing.B, ns string, n, parallel int) {
	b.Helper()
	halted := kubevirtv1.RunStrategyHalted
	vm := &kubevirtv1.VirtualMachine{}
	vm.Spec.RunStrategy = &halted
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"example.com/notes": strings.Repeat("what people write about their machines. ", 100)}
	spec := &vm.Spec.Template.Spec
	spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
	spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{*kubevirtv1.DefaultBridgeNetworkInterface()}
	spec.Domain.Memory = &kubevirtv1.Memory{}
	spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	var g errgroup.Group
	g.SetLimit(parallel)
	for i := range n {
		g.Go(func() error {
			one := vm.DeepCopy()
			one.Namespace, one.Name = ns, "vm-"+strconv.Itoa(i)
			_, err := virt.KubevirtV1().VirtualMachines(ns).Create(context.Background(), one, metav1.CreateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}

// ledgerBytes is what the blocks of a network hold, with their owner labels.
func ledgerBytes(b *testing.B, network string) (bytes, rows int) {
	b.Helper()
	list, err := core.CoreV1().ConfigMaps("vmip-system").List(b.Context(), metav1.ListOptions{LabelSelector: "vmip.io/kind=block,vmip.io/network=" + network})
	if err != nil {
		b.Fatal(err)
	}
	for _, cm := range list.Items {
		for k, v := range cm.Data {
			bytes += len(k) + len(v)
		}
		for k := range cm.Labels {
			bytes += len(k)
		}
		rows += len(cm.Data)
	}
	return bytes, rows
}

// 64 commands at once in one /24, each with its own client and machine, beside 64 whereabouts ADDs at
// once in one /24 of the same API server.
func BenchmarkReserve64(b *testing.B) {
	const n = 64
	namespace(b, "bench-64")
	machines(b, "bench-64", n, 8)
	if _, err := command("", "pool", "add", "bench-64", "--network", "bench-64", "--cidr", "10.16.64.0/24", "--gateway", "10.16.64.1"); err != nil {
		b.Fatal(err)
	}
	ours := together(b, n, func(i int) error {
		_, err := command("", "reserve", "vm-"+strconv.Itoa(i), "-n", "bench-64", "--pool", "bench-64")
		return err
	})
	theirs := whereabouts(b, n)
	b.Logf("64 reserves %s, 64 whereabouts ADDs %s", ours, theirs)
	report(b, "reserve_64_speedup_whereabouts", theirs.Seconds()/ours.Seconds())
	report(b, "reserve_64_seconds", ours.Seconds())
}

func together(b *testing.B, n int, do func(int) error) time.Duration {
	b.Helper()
	var g errgroup.Group
	start := time.Now()
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

// whereabouts lets that many of its ADDs run at once, by its own code. One that gives up on its
// lease is called again, as a kubelet does.
func whereabouts(b *testing.B, n int) time.Duration {
	b.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/k8snetworkplumbingwg/whereabouts").Output()
	if err != nil {
		b.Fatal(err)
	}
	crds := filepath.Join(strings.TrimSpace(string(dir)), "doc", "crds")
	for _, kind := range []string{"ippools", "overlappingrangeipreservations"} {
		out, err := exec.Command(filepath.Join(cluster.Binaries, "kubectl"), "--kubeconfig", cluster.Kubeconfig, "apply", "-f", filepath.Join(crds, "whereabouts.cni.cncf.io_"+kind+".yaml")).CombinedOutput()
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		out, err = exec.Command(filepath.Join(cluster.Binaries, "kubectl"), "--kubeconfig", cluster.Kubeconfig, "wait", "--for=condition=Established", "crd/"+kind+".whereabouts.cni.cncf.io").CombinedOutput()
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
	}
	flat := filepath.Join(b.TempDir(), "whereabouts.conf")
	if err := os.WriteFile(flat, []byte("{}"), 0o600); err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	repeated := 0
	took := together(b, n, func(i int) error {
		conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"lan","type":"bridge","ipam":{"type":"whereabouts","range":"10.99.0.0/24","kubernetes":{"kubeconfig":%q}}}`, cluster.Kubeconfig)
		ipam, _, err := config.LoadIPAMConfig([]byte(conf), fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=bench-64;K8S_POD_NAME=pod-%d", i), flat)
		if err != nil {
			return err
		}
		var errs error
		for range 20 {
			client, err := wb.NewKubernetesIPAM(fmt.Sprintf("container-%d", i), "net1", *ipam)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), wbtypes.AddTimeLimit)
			_, err = wb.IPManagement(ctx, wbtypes.Allocate, *ipam, client)
			cancel()
			_ = client.Close()
			if err == nil {
				return nil
			}
			errs = errors.Join(errs, err)
			mu.Lock()
			repeated++
			mu.Unlock()
		}
		return errs
	})
	b.Logf("%d whereabouts ADDs had to be repeated", repeated)
	return took
}

// A plan of 1,000 machines beside 1,000 bare patches of machines: the least that it could cost.
func BenchmarkPlan1000(b *testing.B) {
	const n = 1000
	namespace(b, "bench-plan")
	machines(b, "bench-plan", n, 8)
	// The annotation is of the length that a reservation writes.
	patch := []byte(`{"metadata":{"annotations":{"example.com/bare":"` + strings.Repeat("x", 250) + `"}},"spec":{"template":{"metadata":{"annotations":{"example.com/address":"10.16.100.100"}}}}}`)
	bare := func() time.Duration {
		var g errgroup.Group
		g.SetLimit(16)
		start := time.Now()
		for i := range n {
			g.Go(func() error {
				_, err := virt.KubevirtV1().VirtualMachines("bench-plan").Patch(context.Background(), "vm-"+strconv.Itoa(i), types.MergePatchType, patch, metav1.PatchOptions{})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	if _, err := command("", "pool", "add", "bench-plan", "--network", "bench-plan", "--cidr", "10.16.96.0/20", "--gateway", "10.16.96.1"); err != nil {
		b.Fatal(err)
	}
	var plan strings.Builder
	plan.WriteString("name,pool\n")
	for i := range n {
		fmt.Fprintf(&plan, "vm-%d,bench-plan\n", i)
	}
	quiet(b, "bench-plan")
	least := bare()
	quiet(b, "bench-plan")
	writes := watchLedger(b)
	start := time.Now()
	if _, err := command(plan.String(), "reserve", "-f", "-", "-n", "bench-plan"); err != nil {
		b.Fatal(err)
	}
	took := time.Since(start)
	b.Logf("plan %s, bare patches %s", took, least)
	report(b, "plan_1000_ratio_bare_patches", took.Seconds()/least.Seconds())
	report(b, "plan_1000_ledger_writes", float64(writes()))
	size, rows := ledgerBytes(b, "bench-plan")
	report(b, "ledger_bytes_per_row", float64(size)/float64(rows))
}

// quiet waits until nobody has written to the machines for two seconds: the controllers' backlog is
// nobody's work here.
func quiet(b *testing.B, ns string) {
	b.Helper()
	last, since := "", time.Now()
	for begin := time.Now(); time.Since(begin) < 2*time.Minute && time.Since(since) < 2*time.Second; time.Sleep(250 * time.Millisecond) {
		vms, err := virt.KubevirtV1().VirtualMachines(ns).List(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		var now strings.Builder
		for _, vm := range vms.Items {
			now.WriteString(vm.ResourceVersion + " ")
		}
		if now.String() != last {
			last, since = now.String(), time.Now()
		}
	}
}

// watchLedger counts the writes of the ledger's objects from now on.
func watchLedger(b *testing.B) (stop func() int) {
	b.Helper()
	w, err := core.CoreV1().ConfigMaps("vmip-system").Watch(b.Context(), metav1.ListOptions{LabelSelector: "vmip.io/kind", SendInitialEvents: nil})
	if err != nil {
		b.Fatal(err)
	}
	list, err := core.CoreV1().ConfigMaps("vmip-system").List(b.Context(), metav1.ListOptions{LabelSelector: "vmip.io/kind"})
	if err != nil {
		b.Fatal(err)
	}
	known := map[string]bool{}
	for _, cm := range list.Items {
		known[cm.Name+"@"+cm.ResourceVersion] = true
	}
	n := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if cm, ok := e.Object.(*corev1.ConfigMap); ok && !known[cm.Name+"@"+cm.ResourceVersion] {
				n++
			}
		}
	}()
	return func() int {
		time.Sleep(time.Second) // the last events are on their way
		w.Stop()
		<-done
		return n
	}
}

// One reserve in a cluster of many machines and rows beside one in an empty cluster.
func BenchmarkReserveInALargeCluster(b *testing.B) {
	n := 10000
	if s := os.Getenv("BENCH_VMS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	const tries = 21
	namespace(b, "bench-one")
	machines(b, "bench-one", 2*tries, 8)
	if _, err := command("", "pool", "add", "bench-one", "--network", "bench-one", "--cidr", "10.16.80.0/24", "--gateway", "10.16.80.1"); err != nil {
		b.Fatal(err)
	}
	one := func(from int) time.Duration {
		var took []time.Duration
		for i := range tries {
			start := time.Now()
			if _, err := command("", "reserve", "vm-"+strconv.Itoa(from+i), "-n", "bench-one", "--pool", "bench-one"); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	empty := one(0)
	fill(b, n)
	large := one(tries)
	b.Logf("empty %s, with %d machines and rows %s", empty, n, large)
	report(b, "reserve_10k_ratio_empty", large.Seconds()/empty.Seconds())
	report(b, "reserve_one_ms", float64(empty.Milliseconds()))
}

// fill makes many machines with rows of their own, the admission webhooks off, and waits until the
// controllers have seen them.
func fill(b *testing.B, n int) {
	b.Helper()
	kubectl := func(stdin string, args ...string) string {
		c := exec.Command(filepath.Join(cluster.Binaries, "kubectl"), append([]string{"--kubeconfig", cluster.Kubeconfig}, args...)...)
		c.Stdin = strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	hooks := kubectl("", "get", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-o", "yaml")
	kubectl("", "delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "--all")
	namespace(b, "bench-many")
	start := time.Now()
	machines(b, "bench-many", n, 32)
	b.Logf("%d machines made in %s", n, time.Since(start))
	var g errgroup.Group
	g.SetLimit(4)
	for block := 0; block*250 < n; block++ {
		g.Go(func() error {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Name:        fmt.Sprintf("vmip-block-bench-many-10.50.%d.0-24", block),
				Labels:      map[string]string{"vmip.io/kind": "block", "vmip.io/network": "bench-many"},
				Annotations: map[string]string{"vmip.io/format": "v1alpha1"},
			}, Data: map[string]string{}}
			for i := range 250 {
				name := "bench-many/vm-" + strconv.Itoa(block*250+i)
				cm.Data[fmt.Sprintf("10.50.%d.%d", block, i+2)] = fmt.Sprintf(`{"vm":%q,"uid":"7b1f6c1e-0000-4000-8000-000000000000","interface":"default","mac":"02:00:00:00:00:20","state":"reserved","op":"01J0000000000000000000000","since":"2026-12-01T10:00:00Z"}`, name)
				cm.Labels["owner.vmip.io/"+fmt.Sprintf("%032x", block*250+i)] = ""
			}
			_, err := core.CoreV1().ConfigMaps("vmip-system").Create(context.Background(), cm, metav1.CreateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	kubectl(stripped(hooks), "apply", "-f", "-")
	quiet(b, "bench-many")
}

// stripped leaves out what a second create would be refused for.
func stripped(list string) string {
	var keep []string
	for _, line := range strings.Split(list, "\n") {
		if t := strings.TrimSpace(line); strings.HasPrefix(t, "resourceVersion:") || strings.HasPrefix(t, "uid:") {
			continue
		}
		keep = append(keep, line)
	}
	return strings.Join(keep, "\n")
}
