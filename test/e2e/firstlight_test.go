package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// TestFirstLight is the main job: a VM keeps its address through reserve, restart, live migration
// and audit, on every network plugin that can hold one.
func TestFirstLight(t *testing.T) {
	for _, c := range []struct {
		cni string
		// template says what the plugin is asked with.
		key, value func(ip string) string
		migrates   bool
	}{
		{"kube-ovn", same("ovn.kubernetes.io/ip_address"), func(ip string) string { return ip }, true},
		{"calico-3.31", same("cni.projectcalico.org/ipAddrs"), jsonList, false},
		{"calico-3.32", same("cni.projectcalico.org/ipAddrs"), jsonList, true},
		{"spiderpool", same("ipam.spidernet.io/ippool"), func(ip string) string {
			return `{"ipv4":["vmip-` + strings.ReplaceAll(ip, ".", "-") + `"],"ipv6":["vmip-fd00-`
		}, true},
	} {
		t.Run(c.cni, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.cni)
			reserve := []string{"reserve", "db-1", "--pool", w.lab, "--ip", w.ip(20)}
			if c.cni == "spiderpool" {
				w.ok("pool", "add", w.lab, "--cidr", w.prefix+".0/24,"+w.prefix6+"/120")
				reserve = append(reserve, "--ip", strings.TrimSuffix(w.prefix6, "00")+"20")
			} else {
				w.pool()
			}
			// With Calico's persistence and Spiderpool, a VM that has run keeps what the plugin has
			// recorded for it: such a VM reserves before its first start.
			sticky := c.cni == "calico-3.32" || c.cni == "spiderpool"
			if sticky {
				w.vm("db-1", halted)
			} else {
				w.running("db-1")
			}
			out := w.ok(reserve...)
			if want := "virtualmachine.kubevirt.io/db-1 reserved " + w.ip(20); !strings.HasPrefix(out, want) {
				t.Errorf("reserve prints %q, want %q", out, want)
			}
			if !sticky && !strings.Contains(out, "restart pending: the running pod has "+w.address("db-1")) {
				t.Errorf("reserve on a running VM prints %q", out)
			}
			vm := w.get("db-1")
			if got, want := vm.Spec.Template.ObjectMeta.Annotations[c.key(w.ip(20))], c.value(w.ip(20)); !strings.HasPrefix(got, want) {
				t.Errorf("template annotation is %q, want %q", got, want)
			}
			if vm.Spec.Template.ObjectMeta.Annotations["example.com/keep"] != "me" {
				t.Error("somebody else's template annotation is gone")
			}
			if sticky {
				w.kubectl(t, "", "patch", "vm", "db-1", "-n", w.namespace, "--type=merge", "-p", `{"spec":{"runStrategy":"Always"}}`)
				w.await("db-1", kubevirtv1.VirtualMachineStatusRunning)
			} else {
				w.fails(1, []string{"virtualmachine " + w.namespace + "/db-1"}, "migrate", "db-1", "--yes") // C34: a pending change is no thing to migrate with
				w.restart("db-1", w.ip(20))
			}
			w.state("db-1", "In-Use", w.ip(20))
			w.restart("db-1", w.ip(20))
			if c.migrates {
				w.migrate("db-1", w.ip(20))
				w.restart("db-1", w.ip(20)) // a migrated VM restarts into the same address
			} else {
				before := w.ledgerVersions()
				r := w.fails(1, []string{"NotStickyOverMigration", "nothing was changed"}, "migrate", "db-1", "--yes")
				if r.stdout != "" || w.ledgerVersions() != before {
					t.Errorf("a refused migration has left something behind: %s", r)
				}
				if list, err := w.virt.KubevirtV1().VirtualMachineInstanceMigrations(w.namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
					t.Errorf("a refused migration has made a migration object: %v, %v", list, err)
				}
			}
			w.state("db-1", "In-Use", w.ip(20))
			if r := w.run("audit"); r.code != 0 || r.stdout != "" {
				t.Errorf("audit of a healthy cluster: %s", r)
			}
			// A manifest that is applied again, without our annotation.
			w.dropTemplateAnnotation("db-1", c.key(w.ip(20)))
			r := w.run("audit")
			if r.code != 1 || !strings.Contains(r.stdout, "TemplateMissing") || !strings.Contains(r.stdout, w.ip(20)) {
				t.Errorf("audit of a lost annotation: %s", r)
			}
			w.ok("reserve", "db-1") // repairs
			if r := w.run("audit"); r.code != 0 {
				t.Errorf("audit after the repair: %s", r)
			}
		})
	}
}

func same(key string) func(string) string { return func(string) string { return key } }
func jsonList(ip string) string           { return `["` + ip + `"]` }

// restart restarts a VM with the command and checks the outcome without it.
func (w *world) restart(name, ip string) {
	w.t.Helper()
	before := w.vmi(name).UID
	out := w.ok("restart", name, "--yes")
	if want := "virtualmachine.kubevirt.io/" + name + " restarted"; !strings.HasPrefix(out, want) {
		w.t.Errorf("restart prints %q", out)
	}
	if after := w.vmi(name).UID; after == before {
		w.t.Errorf("virtualmachine %s was not restarted: its instance still has UID %s", name, after)
	}
	if got := w.address(name); got != ip {
		w.t.Fatalf("after the restart virtualmachine %s has %s, want %s", name, got, ip)
	}
}

// migrate live-migrates a VM with the command and checks the outcome without it.
func (w *world) migrate(name, ip string) {
	w.t.Helper()
	before := w.vmi(name)
	out := w.ok("migrate", name, "--yes")
	if want := "virtualmachine.kubevirt.io/" + name + " migrated"; !strings.HasPrefix(out, want) {
		w.t.Errorf("migrate prints %q", out)
	}
	after := w.vmi(name)
	if after.UID != before.UID || after.Status.NodeName == before.Status.NodeName {
		w.t.Errorf("virtualmachine %s: instance %s on %s became %s on %s", name, before.UID, before.Status.NodeName, after.UID, after.Status.NodeName)
	}
	if got := w.address(name); got != ip {
		w.t.Fatalf("after the migration virtualmachine %s has %s, want %s", name, got, ip)
	}
}

// state checks what list says about a VM.
func (w *world) state(name, state, ip string) {
	w.t.Helper()
	var list struct {
		Items []struct{ Name, Address, PodAddress, State string }
	}
	if err := json.Unmarshal([]byte(w.ok("list", name, "-o", "json")), &list); err != nil {
		w.t.Fatal(err)
	}
	for _, i := range list.Items {
		if i.Address == ip && i.State == state {
			return
		}
	}
	w.t.Errorf("list says %+v, want %s %s", list.Items, ip, state)
}

func (w *world) dropTemplateAnnotation(name, key string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: nil}}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.virt.KubevirtV1().VirtualMachines(w.namespace).Patch(w.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// Where no plugin can hold an address, nothing is written: an annotation that nobody reads would
// look like a promise.
func TestNoPluginRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "none")
	w.pool()
	w.running("db-1")
	before := w.ledgerVersions()
	r := w.fails(1, []string{"virtualmachine " + w.namespace + "/db-1"}, "reserve", "db-1")
	if r.stdout != "" || w.ledgerVersions() != before {
		t.Errorf("a refused reserve has left something behind: %s", r)
	}
	w.untouched("db-1")
	// The cluster is this test's alone: a first user also tries one without KubeVirt.
	w.kubectl(t, "", "delete", "vm", "db-1", "-n", w.namespace)
	w.kubectl(t, "", "delete", "crd", "virtualmachines.kubevirt.io", "virtualmachineinstances.kubevirt.io", "--timeout=30s")
	for _, args := range [][]string{{"reserve", "db-1"}, {"release", "db-1"}, {"list"}, {"restart", "db-1", "--yes"}, {"migrate", "db-1", "--yes"}} {
		if r := w.fails(1, []string{"KubeVirt"}, args...); r.stdout != "" || strings.Count(r.stderr, "error: ") != 1 {
			t.Errorf("without KubeVirt: %s", r)
		}
	}
	w.fails(2, []string{"KubeVirt"}, "audit")
}
