package cni

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

func TestMain(m *testing.M) {
	klogFlags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(klogFlags)
	for k, v := range map[string]string{"logtostderr": "false", "stderrthreshold": "FATAL"} { // watches end with their test
		_ = klogFlags.Set(k, v)
	}
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// assets is the folder with etcd and kube-apiserver: KUBEBUILDER_ASSETS or CLUSTER_BIN, or what cmd/build has
// made, which takes minutes the first time.
var assets = sync.OnceValues(func() (string, error) {
	for _, dir := range []string{os.Getenv("KUBEBUILDER_ASSETS"), os.Getenv("CLUSTER_BIN")} {
		if dir != "" {
			return dir, nil
		}
	}
	c := exec.Command("go", "run", "./cmd/build")
	c.Dir, c.Stderr = "..", os.Stderr
	out, err := c.Output()
	return strings.TrimSpace(string(out)), err
})

// apiServer starts an etcd and a kube-apiserver of the test's own.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	if testing.Short() {
		t.Skip("needs etcd and kube-apiserver: -short")
	}
	assets, err := assets()
	if err != nil {
		t.Fatalf("no etcd and kube-apiserver: set KUBEBUILDER_ASSETS, or see what go run ./cmd/build says: %v", err)
	}
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	keyFile, tokens := filepath.Join(dir, "sa.key"), filepath.Join(dir, "tokens.csv")
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))
	must(t, os.WriteFile(tokens, []byte("token,admin,admin,system:masters\n"), 0o600))
	etcd, peer, api := freePort(t), freePort(t), freePort(t)
	run(t, assets, "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", "http://"+etcd, "--advertise-client-urls", "http://"+etcd,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer)
	_, port, _ := net.SplitHostPort(api)
	run(t, assets, "kube-apiserver", "--etcd-servers", "http://"+etcd, "--bind-address", "127.0.0.1", "--secure-port", port, "--cert-dir", dir,
		"--service-cluster-ip-range", "10.96.0.0/16", "--token-auth-file", tokens, "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile,
		"--disable-admission-plugins", "ServiceAccount")
	cfg := &rest.Config{Host: "https://" + api, BearerToken: "token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := rest.HTTPClientFor(cfg)
	must(t, err)
	eventually(t, "the API server is ready", func() bool {
		res, err := client.Get(cfg.Host + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode == http.StatusOK
	})
	return cfg
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	var log bytes.Buffer
	c := exec.Command(filepath.Join(dir, name), args...)
	c.Stdout, c.Stderr = &log, &log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() && os.Getenv("CNI_TEST_LOGS") != "" {
			t.Logf("%s: %s", name, log.String())
		}
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("timed out: %s", what)
}

const ns = "tenant-a"

// world is a cluster with KubeVirt's definitions, two nodes and a driver.
type world struct {
	*testing.T // of the subtest that runs
	root       *testing.T
	cfg        *rest.Config
	opts       Options
	kube       *kube
	d          Driver
	dyn        dynamic.Interface
	stop       func()
}

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func newWorld(t *testing.T, driver string, cidrs ...string) *world {
	t.Helper()
	t.Parallel()
	ctx := t.Context()
	if len(cidrs) == 0 {
		cidrs = []string{"198.51.100.0/24"}
	}
	w := &world{T: t, root: t, cfg: apiServer(t)}
	w.opts = Options{Config: w.cfg, PodCIDRs: prefixes(cidrs...), GCAfter: 300 * time.Millisecond}
	var err error
	w.kube, err = newKube(w.cfg)
	must(t, err)
	w.dyn = w.kube.dyn
	for _, f := range []func() (*apiext.CustomResourceDefinition, error){
		components.NewVirtualMachineCrd, components.NewVirtualMachineInstanceCrd, components.NewVirtualMachineInstanceMigrationCrd,
	} {
		def, err := f()
		must(t, err)
		_, err = w.kube.crds.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, def, metav1.CreateOptions{})
		must(t, err)
	}
	for _, n := range []string{"n1", "n2"} {
		_, err := w.kube.core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"kubernetes.io/hostname": n}}}, metav1.CreateOptions{})
		must(t, err)
	}
	must(t, w.kube.ensureNamespace(ctx, ns))
	w.d, err = New(driver, w.opts)
	must(t, err)
	must(t, w.d.Install(ctx))
	must(t, w.d.Install(ctx)) // idempotent
	w.run()
	eventually(t, "KubeVirt's definitions are served", func() bool {
		_, err := w.kube.vms.list(ctx, ns)
		_, err2 := w.kube.vmis.list(ctx, ns)
		return err == nil && err2 == nil
	})
	return w
}

func (w *world) run() {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	d := w.d
	wg.Go(func() {
		if err := d.Run(ctx); err != nil && ctx.Err() == nil {
			w.Errorf("Run: %v", err)
		}
	})
	w.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	w.root.Cleanup(w.stop)
}

// sub is a subtest that goes on with the world as it is.
func (w *world) sub(name string, f func(*testing.T)) {
	w.Helper()
	outer := w.T
	outer.Run(name, func(t *testing.T) {
		w.T = t
		defer func() { w.T = outer }()
		f(t)
	})
}

// restart replaces the driver, as a restart of the simulator does.
func (w *world) restart() {
	w.Helper()
	w.stop()
	var err error
	w.d, err = New(w.d.Name(), w.opts)
	must(w.T, err)
	w.run()
}

func (w *world) create(resource, kind string, o map[string]any, owner *unstructured.Unstructured) *unstructured.Unstructured {
	w.Helper()
	u := &unstructured.Unstructured{Object: o}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: kind})
	u.SetNamespace(ns)
	if owner != nil {
		u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true)}})
	}
	u, err := w.dyn.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: resource}).Namespace(ns).Create(w.Context(), u, metav1.CreateOptions{})
	must(w.T, err)
	return u
}

func (w *world) vm(name string) *unstructured.Unstructured {
	w.Helper()
	return w.create("virtualmachines", "VirtualMachine", map[string]any{
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": map[string]any{"domain": map[string]any{"devices": map[string]any{}}}}},
	}, nil)
}

func (w *world) vmi(vm *unstructured.Unstructured) *unstructured.Unstructured {
	w.Helper()
	return w.create("virtualmachineinstances", "VirtualMachineInstance", map[string]any{
		"metadata": map[string]any{"name": vm.GetName()},
		"spec":     map[string]any{"domain": map[string]any{"devices": map[string]any{}}},
	}, vm)
}

func (w *world) delete(resource, name string) {
	w.Helper()
	must(w.T, w.dyn.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: resource}).Namespace(ns).Delete(w.Context(), name, metav1.DeleteOptions{}))
}

// pod creates a pod on a node: a launcher where vmi is not nil, a migration's target where target says so.
func (w *world) pod(name, node string, annotations map[string]string, vmi *unstructured.Unstructured, target bool) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations, Labels: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: node, RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "compute", Image: "any"}}, TerminationGracePeriodSeconds: new(int64(30))},
	}
	if vmi != nil {
		p.GenerateName, p.Name = "virt-launcher-"+vmi.GetName()+"-", ""
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: vmi.GetName(), UID: vmi.GetUID(), Controller: new(true)}}
		p.Labels["kubevirt.io/created-by"] = string(vmi.GetUID())
	}
	if target {
		p.Labels[migrationJobLabel] = "job-uid"
		p.Annotations = map[string]string{migrationJobAnnotation: "job"}
		for k, v := range annotations {
			p.Annotations[k] = v
		}
	}
	p, err := w.kube.core.CoreV1().Pods(ns).Create(w.Context(), p, metav1.CreateOptions{})
	must(w.T, err)
	return p
}

// sandbox is a pod's sandbox as the runtime knows it.
type sandbox struct {
	w   *world
	req Request
	res Result
}

// add is ADD for a new sandbox, with what the kubelet writes after it.
func (w *world) add(p *corev1.Pod) (*sandbox, error) {
	w.Helper()
	s := &sandbox{w: w, req: Request{Pod: p, Node: p.Spec.NodeName, ContainerID: strings.ReplaceAll(string(uuid.NewUUID()), "-", "")}}
	var err error
	if s.res, err = w.d.Add(w.Context(), s.req); err != nil {
		var e *Error
		if !errors.As(err, &e) {
			w.Errorf("Add fails with a %T: %v", err, err)
		}
		must(w.T, w.d.Del(w.Context(), s.req)) // as containerd does
		return s, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": s.res.Annotations}})
	must(w.T, err)
	_, err = w.kube.core.CoreV1().Pods(ns).Patch(w.Context(), p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	must(w.T, err)
	s.phase(corev1.PodRunning)
	return s, nil
}

// phase writes a pod's phase, with its addresses.
func (s *sandbox) phase(phase corev1.PodPhase) {
	s.w.Helper()
	status := map[string]any{"phase": phase}
	if phase == corev1.PodRunning {
		var ips []map[string]string
		for _, a := range s.res.IPs {
			ips = append(ips, map[string]string{"ip": a.String()})
		}
		status["podIP"], status["podIPs"] = s.res.IPs[0].String(), ips
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	must(s.w.T, err)
	_, err = s.w.kube.core.CoreV1().Pods(ns).Patch(s.w.Context(), s.req.Pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	must(s.w.T, err)
}

func (w *world) mustAdd(p *corev1.Pod) *sandbox {
	w.Helper()
	s, err := w.add(p)
	must(w.T, err)
	return s
}

// addFails wants ADD to fail with exactly this message.
func (w *world) addFails(p *corev1.Pod, message string) *Error {
	w.Helper()
	_, err := w.add(p)
	var e *Error
	if !errors.As(err, &e) || e.Message != message {
		w.Errorf("Add:\n got %v\nwant %s", err, message)
	}
	if e == nil {
		e = &Error{}
	}
	return e
}

// end is what the kubelet does to a pod that is going: deletion, DEL, the object gone.
func (s *sandbox) end() {
	s.w.Helper()
	pods := s.w.kube.core.CoreV1().Pods(ns)
	must(s.w.T, pods.Delete(s.w.Context(), s.req.Pod.Name, metav1.DeleteOptions{}))
	s.phase(corev1.PodSucceeded)
	must(s.w.T, s.w.d.Del(s.w.Context(), s.req))
	must(s.w.T, s.w.d.Del(s.w.Context(), s.req)) // idempotent
	must(s.w.T, pods.Delete(s.w.Context(), s.req.Pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	must(s.w.T, s.w.d.Del(s.w.Context(), s.req)) // and without a pod
}

// complete is the source of a migration when it is over: the sandbox goes, the pod stays.
func (s *sandbox) complete() {
	s.w.Helper()
	s.phase(corev1.PodSucceeded)
	must(s.w.T, s.w.d.Del(s.w.Context(), s.req))
}

func (s *sandbox) ips() string { return strings.Join(texts(s.res.IPs), ",") }

// guest is a running VM.
type guest struct {
	*sandbox
	vm, instance *unstructured.Unstructured
	annotations  map[string]string
}

// start creates a VM's instance and launcher.
func (w *world) start(vm *unstructured.Unstructured, node string, annotations map[string]string) *guest {
	w.Helper()
	g, err := w.tryStart(vm, node, annotations)
	must(w.T, err)
	return g
}

func (w *world) tryStart(vm *unstructured.Unstructured, node string, annotations map[string]string) (*guest, error) {
	w.Helper()
	vmi := w.vmi(vm)
	s, err := w.add(w.pod("", node, annotations, vmi, false))
	return &guest{s, vm, vmi, annotations}, err
}

// shutDown stops the VM: the launcher goes, then the instance.
func (g *guest) shutDown() {
	g.w.Helper()
	g.end()
	g.w.delete("virtualmachineinstances", g.vm.GetName())
}

// migrate adds the target pod.
func (g *guest) migrate(node string) (*sandbox, error) {
	g.w.Helper()
	return g.w.add(g.w.pod("", node, g.annotations, g.instance, true))
}

// handOver is the moment when the domain runs on the target.
func (g *guest) handOver(target *sandbox) {
	g.w.Helper()
	patch := fmt.Sprintf(`{"status":{"migrationState":{"targetPod":%q,"targetNodeDomainReadyTimestamp":%q}}}`, target.req.Pod.Name, time.Now().UTC().Format(time.RFC3339))
	must(g.w.T, g.w.kube.vmis.patch(g.w.Context(), ns, g.instance.GetName(), json.RawMessage(patch)))
	g.complete()
	g.sandbox = target
}

// plain is an ordinary pod with its sandbox.
func (w *world) plain(name, node string, annotations map[string]string) *corev1.Pod {
	w.Helper()
	return w.pod(name, node, annotations, nil, false)
}

// twin is a second driver on the same cluster, with locks of its own: what is left in common is the API.
func (w *world) twin() Driver {
	w.Helper()
	d, err := New(w.d.Name(), w.opts)
	must(w.T, err)
	return d
}

// parallel adds twenty pods at once, through one driver after the other, and wants twenty different addresses.
func (w *world) parallel(drivers ...Driver) {
	w.Helper()
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		got []string
	)
	for i := range 20 {
		p := w.plain(fmt.Sprintf("crowd-%d", i), fmt.Sprintf("n%d", i%2+1), nil)
		wg.Go(func() {
			res, err := drivers[i/2%len(drivers)].Add(w.Context(), Request{Pod: p, Node: p.Spec.NodeName, ContainerID: "crowd" + p.Name})
			if err != nil {
				w.Errorf("Add: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, res.IPs[0].String())
		})
	}
	wg.Wait()
	slices.Sort(got)
	if n := len(slices.Compact(got)); n != 20 {
		w.Errorf("20 parallel ADDs gave %d distinct addresses: %v", n, got)
	}
}

func (w *world) equal(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: got %s, want %s", what, got, want)
	}
}

func (w *world) gone(what string, get func() error) {
	w.Helper()
	eventually(w.T, what, func() bool { return apierrors.IsNotFound(get()) })
}

// never watches for longer than every collector needs.
func (w *world) never(what string, f func() bool) {
	w.Helper()
	for end := time.Now().Add(5 * w.opts.GCAfter); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if f() {
			w.Errorf("should not happen: %s", what)
			return
		}
	}
}

// deleting deletes an object that a finalizer holds, as KubeVirt's do.
func (w *world) deleting(resource, name string) {
	w.Helper()
	client := w.dyn.Resource(schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: resource}).Namespace(ns)
	_, err := client.Patch(w.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{})
	must(w.T, err)
	must(w.T, client.Delete(w.Context(), name, metav1.DeleteOptions{}))
}
