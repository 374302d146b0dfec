package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// C14: 50 commands for 50 VMs at once give 50 addresses, and several for one VM give one; nobody
// sees an error.
func TestC14Concurrency(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool("--range", w.ip(10)+"-"+w.ip(73)) // 64 addresses
	const vms, twins = 50, 6
	for i := range vms {
		w.vm(fmt.Sprintf("vm-%d", i), halted)
	}
	w.vm("twin", halted)
	results := make([]result, vms+twins)
	var wg sync.WaitGroup
	for i := range results {
		name := "twin"
		if i < vms {
			name = fmt.Sprintf("vm-%d", i)
		}
		wg.Go(func() { results[i] = w.quiet("reserve", name) })
	}
	wg.Wait()
	owner, twin := map[string]string{}, map[string]bool{}
	for i, r := range results {
		if r.code != 0 || strings.Contains(r.stderr, "error") {
			t.Errorf("command %d: %s", i, r)
			continue
		}
		fields := strings.Fields(r.stdout)
		ip := fields[2]
		if i >= vms {
			twin[ip] = true
		}
		if other, taken := owner[ip]; taken && other != fields[0] {
			t.Errorf("%s is given to %s and %s", ip, other, fields[0])
		}
		owner[ip] = fields[0]
	}
	if len(owner) != vms+1 || len(twin) != 1 {
		t.Errorf("%d VMs have %d addresses, the twin has %v", vms+1, len(owner), twin)
	}
	reserved := 0
	for ip, raw := range w.rows() {
		var row struct{ VM, State string }
		if err := json.Unmarshal([]byte(raw), &row); err != nil {
			t.Errorf("row %s: %s: %v", ip, raw, err)
		}
		if row.State == "held" && row.VM == w.namespace+"/twin" {
			continue // one of its commands lost the race: the address cools down
		}
		if reserved++; row.State != "reserved" {
			t.Errorf("row %s: %s", ip, raw)
		}
		name := strings.TrimPrefix(row.VM, w.namespace+"/")
		if got := w.get(name).Spec.Template.ObjectMeta.Annotations["ovn.kubernetes.io/ip_address"]; got != ip {
			t.Errorf("the ledger has %s for %s, its template %q", ip, name, got)
		}
	}
	if reserved != vms+1 {
		t.Errorf("the ledger has %d reserved rows, want %d", reserved, vms+1)
	}
	if r := w.run("audit"); r.code != 0 {
		t.Errorf("audit: %s", r)
	}
}

// quiet is run without a log of its output.
func (w *world) quiet(args ...string) result {
	w.t.Helper()
	args = append([]string{"vmip"}, append(args, "-n", w.namespace)...)
	return execute(w.t, w.env(), "", filepath.Join(binaries, "kubectl"), args...)
}

// recorder passes requests on to the API server and keeps them.
type recorder struct {
	mu       sync.Mutex
	requests []string
}

// through returns an environment whose kubeconfig leads through a recorder.
func (w *world) through(rec *recorder) []string {
	w.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig)
	if err != nil {
		w.t.Fatal(err)
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	target, err := url.Parse(cfg.Host)
	if err != nil {
		w.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.FlushInterval = transport, -1
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rec.mu.Lock()
		rec.requests = append(rec.requests, r.Method+" "+r.URL.RequestURI())
		rec.mu.Unlock()
		proxy.ServeHTTP(rw, r)
	}))
	w.t.Cleanup(server.Close)
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	writeFile(w.t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
current-context: c
`, server.URL))
	return []string{"PATH=" + plugins, "HOME=" + scratch, "KUBECONFIG=" + path}
}

// A reserve makes two writes, and never lists the cluster's machines or pods, but for one look at
// who has the candidate.
func TestReserveRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.running("db-1", "db-2")
	for _, args := range [][]string{{"reserve", "db-1", "--ip", w.ip(20)}, {"reserve", "db-2"}} {
		rec := &recorder{}
		// Kube-OVN's first row makes the block; the second one finds it.
		r := w.vmipWith(t, w.through(rec), append(args, "-n", w.namespace)...)
		if r.code != 0 {
			t.Fatal(r)
		}
		var writes, lists []string
		for _, req := range rec.requests {
			method, path, _ := strings.Cut(req, " ")
			u, err := url.Parse(path)
			if err != nil {
				t.Fatal(err)
			}
			last := u.Path[strings.LastIndex(u.Path, "/")+1:]
			switch {
			case method != http.MethodGet:
				writes = append(writes, req)
			case slices.Contains([]string{"pods", "virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations", "ips", "nodes"}, last):
				lists = append(lists, u.Path+" "+u.Query().Get("fieldSelector"))
			}
		}
		if len(writes) != 2 {
			t.Errorf("%v wrote %d times: %v", args, len(writes), writes)
		}
		if len(lists) != 1 || !strings.HasPrefix(lists[0], "/api/v1/pods status.podIP=") {
			t.Errorf("%v listed %v", args, lists)
		}
		t.Logf("%v: %d requests", args, len(rec.requests))
	}
}

// Repeating is safe, and a reservation of the address that the pod already has needs no restart.
func TestReserveIdempotentAndInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.running("db-1")
	ip := w.address("db-1")
	w.ok("pool", "add", "auto", "--cidr", ip+"/32", "--for-namespace", w.namespace)
	out := w.ok("reserve", "db-1", "--ip", ip)
	if strings.Contains(out, "restart pending") || w.vmi("db-1").Annotations["ovn.kubernetes.io/ip_address"] != ip {
		t.Errorf("the running instance is not annotated with the address that it has: %q, %v", out, w.vmi("db-1").Annotations)
	}
	before := w.ledgerVersions()
	for range 2 {
		if out := w.ok("reserve", "db-1"); !strings.Contains(out, "db-1 unchanged "+ip) {
			t.Errorf("again: %q", out)
		}
	}
	if r := w.run("reserve", "db-1", "--error-unchanged"); r.code != 3 {
		t.Errorf("--error-unchanged: %s", r)
	}
	if w.ledgerVersions() != before || w.get("db-1").Spec.Template.ObjectMeta.Annotations["ovn.kubernetes.io/ip_address"] != ip {
		t.Error("a repeated reserve wrote")
	}
	w.state("db-1", "In-Use", ip)
	w.migrate("db-1", ip) // C34's other side: the target is made from the instance, which has the address
	w.fails(1, []string{"no pool can give it " + w.ip(20)}, "reserve", "db-1", "--ip", w.ip(20))
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.vm("db-1", halted)
	w.vm("db-2", halted)
	w.ok("reserve", "db-2", "--ip", w.ip(30))
	before := w.ledgerVersions()
	for mode, suffix := range map[string]string{"client": "(dry run)", "server": "(server dry run)"} {
		if out := w.ok("reserve", "db-1", "--ip", w.ip(20), "--dry-run="+mode); !strings.Contains(out, "reserved "+w.ip(20)) || !strings.Contains(out, suffix) {
			t.Errorf("%s: %q", mode, out)
		}
		if out := w.ok("reserve", "db-1", "--dry-run="+mode); !strings.Contains(out, "reserved "+w.ip(10)) {
			t.Errorf("%s, automatic: %q", mode, out)
		}
		w.fails(1, []string{"reserved by virtualmachine"}, "reserve", "db-1", "--ip", w.ip(30), "--dry-run="+mode)
		if out := w.ok("release", "db-2", "--dry-run="+mode); !strings.Contains(out, "released "+w.ip(30)) || !strings.Contains(out, suffix) {
			t.Errorf("release %s: %q", mode, out)
		}
		w.ok("pool", "set", w.lab, "--exclude", w.ip(50), "--dry-run="+mode)
		w.ok("pool", "add", "second", "--cidr", "203.0.113.0/24", "--dry-run="+mode)
	}
	if w.ledgerVersions() != before {
		t.Error("a dry run wrote to the ledger")
	}
	w.untouched("db-1")
}

// C45: too early is refused, the template is cleaned in the same operation, the address cools
// down, and its last owner may have it back.
func TestRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool("--range", w.ip(20)+"-"+w.ip(22))
	w.running("db-1")
	w.ok("reserve", "db-1", "--ip", w.ip(20))
	w.restart("db-1", w.ip(20))
	before := w.ledgerVersions()
	r := w.fails(1, []string{"address " + w.ip(20) + " is in use", "virt-launcher-db-1", "--at-shutdown"}, "release", "db-1")
	if r.stdout != "" || w.ledgerVersions() != before {
		t.Errorf("a refused release wrote: %s", r)
	}
	w.kubectl(t, "", "patch", "vm", "db-1", "-n", w.namespace, "--type=merge", "-p", `{"spec":{"runStrategy":"Halted"}}`)
	w.await("db-1", kubevirtv1.VirtualMachineStatusStopped)
	w.ok("release", "db-1")
	vm := w.get("db-1")
	if _, left := vm.Spec.Template.ObjectMeta.Annotations["ovn.kubernetes.io/ip_address"]; left || vm.Annotations["vmip.io/reservations"] != "" {
		t.Errorf("the template is not cleaned: %v %v", vm.Spec.Template.ObjectMeta.Annotations, vm.Annotations)
	}
	if vm.Spec.Template.ObjectMeta.Annotations["example.com/keep"] != "me" {
		t.Error("somebody else's annotation went with ours")
	}
	w.state("db-1", "Held", w.ip(20))
	w.vm("web-1", halted)
	w.fails(1, []string{w.ip(20), "was released by " + w.namespace + "/db-1", "cools down until"}, "reserve", "web-1", "--ip", w.ip(20))
	if out := w.ok("reserve", "web-1"); !strings.Contains(out, w.ip(21)) {
		t.Errorf("automatic choice took an address that cools down: %q", out)
	}
	if out := w.ok("release", "db-1"); !strings.Contains(out, "unchanged") {
		t.Errorf("released again: %q", out)
	}
	if out := w.ok("reserve", "db-1"); !strings.Contains(out, "reserved "+w.ip(20)) {
		t.Errorf("the last owner comes back: %q", out)
	}
	w.fails(1, []string{"no reservation"}, "release", "web-1", "--interface", "nosuch")
	// A VM that was deleted keeps its address until it is released by name.
	w.kubectl(t, "", "delete", "vm", "db-1", "-n", w.namespace)
	w.state("db-1", "VM-Missing", w.ip(20))
	w.ok("release", "db-1")
	w.state("db-1", "Held", w.ip(20))
}

// --at-shutdown marks the address; the next command that finds it unused lets it cool down.
func TestReleaseAtShutdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.running("db-1")
	w.ok("reserve", "db-1", "--ip", w.ip(20))
	w.restart("db-1", w.ip(20))
	if out := w.ok("release", "db-1", "--at-shutdown"); !strings.Contains(out, "virt-launcher-db-1") {
		t.Errorf("what it waits for: %q", out)
	}
	w.state("db-1", "Releasing", w.ip(20))
	w.vm("web-1", halted)
	w.fails(1, []string{"releasing by virtualmachine"}, "reserve", "web-1", "--ip", w.ip(20))
	w.kubectl(t, "", "patch", "vm", "db-1", "-n", w.namespace, "--type=merge", "-p", `{"spec":{"runStrategy":"Halted"}}`)
	w.await("db-1", kubevirtv1.VirtualMachineStatusStopped)
	w.ok("release", "db-1")
	w.state("db-1", "Held", w.ip(20))
}

// C50: an address that a pod has is nobody's to reserve.
func TestForeignPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "squatter", Annotations: map[string]string{"ovn.kubernetes.io/ip_address": w.ip(10)}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "app.example.com/c"}}}}
	if _, err := w.core.CoreV1().Pods(w.namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.kubectl(t, "", "wait", "pod/squatter", "-n", w.namespace, "--for=condition=Ready", "--timeout=30s")
	w.vm("db-1", halted)
	w.fails(1, []string{w.ip(10), "in use by pod " + w.namespace + "/squatter"}, "reserve", "db-1", "--ip", w.ip(10))
	if out := w.ok("reserve", "db-1"); !strings.Contains(out, w.ip(11)) {
		t.Errorf("automatic choice beside a pod: %q", out)
	}
	// The pod came after the reservation: audit tells.
	w.vm("db-2", halted)
	w.ok("reserve", "db-2", "--ip", w.ip(30))
	late := pod.DeepCopy()
	late.Name, late.Annotations = "late", map[string]string{"ovn.kubernetes.io/ip_address": w.ip(30)}
	if _, err := w.core.CoreV1().Pods(w.namespace).Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.kubectl(t, "", "wait", "pod/late", "-n", w.namespace, "--for=condition=Ready", "--timeout=30s")
	r := w.run("audit")
	if r.code != 1 || !strings.Contains(r.stdout, "AddressInUseByOther") || !strings.Contains(r.stdout, "late") || strings.Contains(r.stdout, "squatter") {
		t.Errorf("audit: %s", r)
	}
}
