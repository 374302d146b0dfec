package e2e

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a first user gets wrong. Every refusal names the object, the value and the way out, exits
// with the documented status, prints nothing on stdout and has written nothing.
func TestReserveRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.vm("db-1", halted)
	w.vm("web-1", halted)
	w.fails(1, []string{"no pool"}, "reserve", "db-1")
	w.pool("--exclude", w.ip(50)+","+w.ip(96)+"/29")
	w.ok("reserve", "web-1", "--ip", w.ip(20))
	before := w.ledgerVersions()
	for _, c := range []struct {
		name  string
		code  int
		texts []string
		args  []string
	}{
		{"unknown VM", 1, []string{"virtualmachine " + w.namespace + "/nosuch", "not found"}, []string{"nosuch"}},
		{"unknown pool", 1, []string{`pool "nosuch" not found`, w.lab}, []string{"db-1", "--pool", "nosuch"}},
		{"unknown interface", 1, []string{`no interface "nosuch"`, "default"}, []string{"db-1", "--interface", "nosuch"}},
		{"outside, pool named", 1, []string{"203.0.113.7", "outside the pool's CIDR " + w.prefix + ".0/24"}, []string{"db-1", "--pool", w.lab, "--ip", "203.0.113.7"}},
		{"outside, no pool named", 1, []string{"no pool can give it 203.0.113.7", "pool " + w.lab + " has CIDR"}, []string{"db-1", "--ip", "203.0.113.7"}},
		{"C04 network address", 1, []string{w.ip(0), "network address"}, []string{"db-1", "--ip", w.ip(0)}},
		{"C04 gateway", 1, []string{w.ip(1), "gateway"}, []string{"db-1", "--ip", w.ip(1)}},
		{"C04 broadcast", 1, []string{w.ip(255), "broadcast"}, []string{"db-1", "--ip", w.ip(255)}},
		{"C04 excluded", 1, []string{w.ip(50), "excluded"}, []string{"db-1", "--ip", w.ip(50)}},
		{"C04 excluded by range", 1, []string{w.ip(101), "excluded"}, []string{"db-1", "--ip", w.ip(101)}},
		{"C05 taken by a stopped VM", 1, []string{w.ip(20), "reserved by virtualmachine " + w.namespace + "/web-1"}, []string{"db-1", "--ip", w.ip(20)}},
		{"malformed", 2, []string{`"198.51.100" is not an IP address`, "See 'kubectl vmip reserve -h'"}, []string{"db-1", "--ip", "198.51.100"}},
		{"with a prefix length", 2, []string{"write " + w.ip(20)}, []string{"db-1", "--ip", w.ip(20) + "/24"}},
		{"wrong family", 1, []string{"2001:db8::1"}, []string{"db-1", "--ip", "2001:db8::1"}},
		{"two of a family", 1, []string{w.ip(30), w.ip(31), "one address a family"}, []string{"db-1", "--ip", w.ip(30), "--ip", w.ip(31)}},
		{"one address, two VMs", 2, []string{"name exactly one"}, []string{"db-1", "web-1", "--ip", w.ip(30)}},
		{"no VM", 2, []string{"--all"}, nil},
		{"names and --all", 2, []string{"only one of"}, []string{"db-1", "--all"}},
		{"a pod", 2, []string{"pod/x", "vm/"}, []string{"pod/x"}},
		{"unknown flag", 2, []string{"--nosuch", "See 'kubectl vmip reserve -h'"}, []string{"db-1", "--nosuch"}},
		{"unknown dry run", 2, []string{"none", "client", "server"}, []string{"db-1", "--dry-run=true"}},
		{"unknown output", 2, []string{"json"}, []string{"db-1", "-o", "xml"}},
	} {
		r := w.fails(c.code, c.texts, append([]string{"reserve"}, c.args...)...)
		if r.stdout != "" {
			t.Errorf("%s: stdout %q", c.name, r.stdout)
		}
		if strings.Contains(r.stderr, "panic") || strings.Count(r.stderr, "error: ") != 1 {
			t.Errorf("%s: not one error: %s", c.name, r)
		}
	}
	if after := w.ledgerVersions(); after != before {
		t.Errorf("refused commands wrote to the ledger:\n%s\nwas\n%s", after, before)
	}
	w.untouched("db-1")
	// Another namespace is none of the pool's.
	other := &world{cluster: w.cluster, t: t, namespace: w.namespace + "-b", lab: w.lab, prefix: w.prefix}
	other.kubectl(t, "", "create", "namespace", other.namespace)
	other.vm("db-1", halted)
	other.fails(1, []string{"pool " + w.lab + " is for the namespaces [" + w.namespace + "], not for " + other.namespace}, "reserve", "db-1", "--pool", w.lab, "--ip", w.ip(30))
	// Automatic choice never takes what a stopped VM has reserved (C05), and says when nothing is left.
	w.ok("pool", "set", w.lab, "--range", w.ip(20)+"-"+w.ip(21))
	if out := w.ok("reserve", "db-1"); !strings.Contains(out, w.ip(21)) {
		t.Errorf("automatic choice beside a taken address: %q", out)
	}
	w.vm("web-2", halted)
	w.fails(1, []string{"pool " + w.lab + " has no free IPv4 address", "pool set " + w.lab}, "reserve", "web-2")
}

// A pool is refused as a whole or made as a whole.
func TestPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	for _, c := range []struct {
		texts []string
		args  []string
	}{
		{[]string{"needs --cidr"}, []string{w.lab}},
		{[]string{`"x" is not a CIDR`}, []string{w.lab, "--cidr", "x"}},
		{[]string{"did you mean " + w.prefix + ".0/24"}, []string{w.lab, "--cidr", w.ip(5) + "/24"}},
		{[]string{"not inside the pool's CIDR"}, []string{w.lab, "--cidr", w.prefix + ".0/24", "--range", "203.0.113.1-203.0.113.9"}},
		{[]string{"gateway 203.0.113.1 is outside"}, []string{w.lab, "--cidr", w.prefix + ".0/24", "--gateway", "203.0.113.1"}},
		{[]string{"two IPv4 CIDRs"}, []string{w.lab, "--cidr", w.prefix + ".0/24,203.0.113.0/24"}},
		{[]string{"at least 1m"}, []string{w.lab, "--cidr", w.prefix + ".0/24", "--hold-for", "5s"}},
		{[]string{`unknown profile "nosuch"`, "calico"}, []string{w.lab, "--cidr", w.prefix + ".0/24", "--profile", "nosuch"}},
		{[]string{`"Bad_Name"`}, []string{"Bad_Name", "--cidr", w.prefix + ".0/24"}},
	} {
		w.fails(2, c.texts, append([]string{"pool", "add"}, c.args...)...)
	}
	if got := w.ledgerVersions(); got != "" {
		t.Errorf("refused pools left %s", got)
	}
	if out := w.ok("pool", "add", w.lab, "--cidr", w.prefix+".0/24", "--range", w.ip(10)+"-"+w.ip(200), "--gateway", w.ip(1), "--for-namespace", w.namespace); out != "pool/"+w.lab+" added (191 addresses, profile auto)\n" {
		t.Errorf("pool add prints %q", out)
	}
	if out := w.ok("pool", "add", w.lab, "--cidr", w.prefix+".0/24", "--range", w.ip(10)+"-"+w.ip(200), "--gateway", w.ip(1), "--for-namespace", w.namespace); !strings.Contains(out, "unchanged") {
		t.Errorf("the same pool again: %q", out)
	}
	w.fails(1, []string{"already exists", "pool set " + w.lab}, "pool", "add", w.lab, "--cidr", "203.0.113.0/24")
	// C21: one address, one pool, within one network.
	w.fails(1, []string{"overlaps CIDR " + w.prefix + ".0/24 of pool " + w.lab, "--network"}, "pool", "add", w.lab+"-2", "--cidr", w.prefix+".128/25")
	w.ok("pool", "add", w.lab+"-2", "--cidr", w.prefix+".128/25", "--network", "isolated", "--for-namespace", w.namespace)
	w.vm("db-1", halted)
	w.ok("reserve", "db-1", "--pool", w.lab, "--ip", w.ip(20))
	w.fails(1, []string{"pool " + w.lab + " can't be changed", w.ip(20), w.namespace + "/db-1"}, "pool", "set", w.lab, "--exclude", w.ip(20))
	w.fails(1, []string{"pool " + w.lab + " can't be removed", w.ip(20), w.namespace + "/db-1"}, "pool", "remove", w.lab)
	if out := w.ok("pool", "show", w.lab); !strings.Contains(out, "1 rows, 190 of 191 addresses free") || strings.Contains(out, "pending") {
		t.Errorf("pool show after refused changes: %q", out)
	}
	w.ok("pool", "set", w.lab, "--exclude", w.ip(50))
	w.vm("db-2", halted)
	w.fails(1, []string{"excluded"}, "reserve", "db-2", "--ip", w.ip(50))
	w.ok("pool", "remove", w.lab+"-2")
	w.fails(1, []string{"not found"}, "pool", "show", w.lab+"-2")
	out := w.ok("pool", "list")
	if !strings.HasPrefix(out, "NAME ") || !strings.Contains(out, "\n"+w.lab+" ") || strings.Contains(out, w.lab+"-2") {
		t.Errorf("pool list: %q", out)
	}
}

func TestNoClusterNoRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.vm("db-1", halted)
	none := []string{"PATH=" + plugins, "HOME=" + t.TempDir()}
	for _, args := range [][]string{{"reserve", "db-1"}, {"list"}, {"release", "db-1"}, {"restart", "db-1", "--yes"}, {"migrate", "db-1", "--yes"}, {"pool", "list"}} {
		r := w.vmipWith(t, none, args...)
		if r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, "kubeconfig") {
			t.Errorf("%v without a kubeconfig: %s", args, r)
		}
	}
	if r := w.vmipWith(t, none, "audit"); r.code != 2 || r.stdout != "" {
		t.Errorf("audit without a kubeconfig: %s", r)
	}
	if r := w.vmipWith(t, none, "version", "--client"); r.code != 0 {
		t.Errorf("version --client needs no cluster: %s", r)
	}
	r := w.vmip(t, "list", "--server", "https://127.0.0.1:1")
	if r.code != 1 || !strings.Contains(r.stderr, "127.0.0.1:1") {
		t.Errorf("nobody listens: %s", r)
	}
	// Somebody without any right: the server's sentence, then how to ask and what grants it.
	stranger := w.user("stranger")
	before := w.ledgerVersions()
	r = w.vmipWith(t, stranger, "reserve", "db-1", "-n", w.namespace)
	if r.code != 1 || !strings.Contains(r.stderr, "forbidden") || !strings.Contains(r.stderr, "auth can-i get virtualmachines") || !strings.Contains(r.stderr, w.namespace) {
		t.Errorf("reserve by a stranger: %s", r)
	}
	// Somebody who may edit VMs and not the ledger.
	w.kubectl(t, "", "create", "rolebinding", "editor", "-n", w.namespace, "--clusterrole=kubevirt.io:edit", "--user=editor")
	r = w.vmipWith(t, w.user("editor"), "reserve", "db-1", "-n", w.namespace)
	if r.code != 1 || !strings.Contains(r.stderr, "configmaps") {
		t.Errorf("reserve without the ledger: %s", r)
	}
	if w.ledgerVersions() != before {
		t.Error("refused commands wrote to the ledger")
	}
	// Somebody who may do everything but migrate: KubeVirt keeps that right in a role of its own.
	w.kubectl(t, "", "create", "rolebinding", "admin", "-n", w.namespace, "--clusterrole=kubevirt.io:admin", "--user=tenant")
	w.kubectl(t, "", "create", "rolebinding", "ledger", "-n", "vmip-system", "--clusterrole=edit", "--user=tenant")
	tenant := w.user("tenant")
	r = w.vmipWith(t, tenant, "reserve", "db-1", "-n", w.namespace)
	if r.code != 0 || !strings.Contains(r.stderr, "may not list pods") {
		t.Errorf("reserve by a tenant who may not list all pods: %s", r)
	}
}

// Unknown fields of newer KubeVirt versions, other people's annotations and the status survive.
func TestPatchIsMinimal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.vm("db-1", nil)
	w.await("db-1", "Running")
	patch := `{"metadata":{"annotations":{"example.com/mine":"yes"},"labels":{"team":"db"}}}`
	if _, err := w.virt.KubevirtV1().VirtualMachines(w.namespace).Patch(t.Context(), "db-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	before := w.get("db-1")
	w.ok("reserve", "db-1", "--ip", w.ip(20))
	after := w.get("db-1")
	if after.Annotations["example.com/mine"] != "yes" || after.Labels["team"] != "db" {
		t.Errorf("other people's metadata: %v %v", after.Annotations, after.Labels)
	}
	want := before.DeepCopy()
	want.Spec.Template.ObjectMeta.Annotations["ovn.kubernetes.io/ip_address"] = w.ip(20)
	if got, want := toJSON(t, after.Spec), toJSON(t, want.Spec); got != want {
		t.Errorf("spec is\n%s\nwant\n%s", got, want)
	}
	managed := false
	for _, f := range after.ManagedFields {
		managed = managed || f.Manager == "kubectl-vmip"
	}
	if !managed {
		t.Errorf("no field manager kubectl-vmip: %v", after.ManagedFields)
	}
}
