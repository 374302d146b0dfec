package ledger

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// command runs a whole command line against the world's own ledger.
func (w *world) command(stdin string, args ...string) (stdout, stderr string, code int) {
	w.t.Helper()
	var out, errOut bytes.Buffer
	args = append(args, "--kubeconfig", cluster.Kubeconfig, "-n", w.namespace, "--ledger-namespace", w.ledger)
	code = cmd.Execute(w.t.Context(), genericiooptions.IOStreams{In: strings.NewReader(stdin), Out: &out, ErrOut: &errOut}, args)
	return out.String(), errOut.String(), code
}

func (w *world) ok(stdin string, args ...string) string {
	w.t.Helper()
	out, errOut, code := w.command(stdin, args...)
	if code != 0 {
		w.t.Fatalf("%v: exit %d\n%s%s", args, code, out, errOut)
	}
	return out
}

// A plan that was exported, imported into an empty ledger and exported again is the same: it is the
// ledger's backup. Machines that did not exist yet keep their addresses until they do.
func TestPlanIsTheLedgersBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.vm("db-1", "db-2", "web")
	net, net6 := w.net()
	whole := strings.NewReplacer("NET", net, "V6", net6).Replace
	plan := whole(`apiVersion: vmip.io/v1alpha1
kind: ReservationPlan
pools:
- {name: lab, cidrs: [NET.0/24, "V6::/120"], gateways: [NET.1], exclude: [NET.50], holdFor: 5m}
items:
- {name: db-1, addresses: [NET.20, "V6::20"]}
- {name: db-2, pool: lab}
- {name: web, addresses: [NET.30], mac: "02:00:00:00:00:30"}
- {name: later, addresses: [NET.40]}
`)
	out := w.ok(plan, "reserve", "-f", "-")
	if !strings.Contains(out, whole("later reserved NET.40 (the virtual machine does not exist yet)")) || !strings.Contains(out, whole("db-1 reserved NET.20,V6::20")) {
		t.Errorf("reserve -f: %s", out)
	}
	first := w.ok("", "list", "-o", "plan")
	for _, want := range []string{"holdFor: 5m\n", whole("- NET.50"), "name: later", "mac: \"02:00:00:00:00:30\""} {
		if !strings.Contains(first, want) {
			t.Errorf("the plan lacks %q:\n%s", want, first)
		}
	}
	if err := w.boss.core.CoreV1().ConfigMaps(w.ledger).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: ledger.LabelKind}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(file, []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	w.ok("", "reserve", "-f", file)
	if second := w.ok("", "list", "-o", "plan"); second != first {
		t.Errorf("exported again:\n%s\nwas\n%s", second, first)
	}
	if out := w.ok("", "reserve", "-f", file); strings.Count(out, " unchanged ") != 4 {
		t.Errorf("once more: %s", out)
	}
	if got := w.asks("db-1"); got != whole("NET.20,V6::20") {
		t.Errorf("db-1 asks for %s", got)
	}
	// The machine to come takes its row over, and nobody else gets it meanwhile.
	_, errOut, code := w.command("", "reserve", "db-1", "--replace", "--ip", whole("NET.40"))
	if code != 1 || !strings.Contains(errOut, "t"+strings.TrimPrefix(w.namespace, "t")+"/later") {
		t.Errorf("an address that waits for its machine: %d %s", code, errOut)
	}
	w.vm("later")
	w.ok("", "reserve", "later", "--ip", whole("NET.40"))
	w.is("later", whole("NET.40"), whole("NET.40 reserved"))
	w.whole()
}

// What contradicts itself is refused before anything is written, all of it at once; a pool that is
// there and otherwise than the plan has it too.
func TestPlanRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.vm("db-1")
	w.pool(ledger.Pool{})
	before := fmt.Sprint(w.objects(ledger.KindBlock), w.objects(ledger.KindPool))
	for name, c := range map[string]struct {
		plan string
		code int
		want []string
	}{
		"one address twice": {"name,addresses\ndb-1,198.51.100.9\nweb,198.51.100.9\n", 2, []string{"line 2 gives 198.51.100.9", "line 3"}},
		"another pool":      {"apiVersion: vmip.io/v1alpha1\nkind: ReservationPlan\npools: [{name: lab, cidrs: [198.51.100.0/25]}]\nitems: [{name: db-1}]\n", 1, []string{"pool lab is not as the plan has it"}},
		"no plan":           {"kind: Pod\n", 2, []string{"ReservationPlan"}},
	} {
		out, errOut, code := w.command(c.plan, "reserve", "-f", "-")
		if code != c.code || out != "" {
			t.Errorf("%s: exit %d, %s%s", name, code, out, errOut)
		}
		for _, want := range c.want {
			if !strings.Contains(errOut, want) {
				t.Errorf("%s: %s lacks %q", name, errOut, want)
			}
		}
	}
	if after := fmt.Sprint(w.objects(ledger.KindBlock), w.objects(ledger.KindPool)); after != before {
		t.Error("a refused plan wrote to the ledger")
	}
	if out, errOut, code := w.command("", "reserve", "db-1", "-f", "x"); code != 2 || !strings.Contains(errOut, "give only one of") {
		t.Errorf("a plan and a name: %d %s%s", code, out, errOut)
	}
}

// C19: what exists is adopted, restart-free; of two machines that claim one address the one that
// runs with it keeps it, and the other is told.
func TestC19Adoption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ip := fmt.Sprintf("10.16.%d.20", 200+worlds.Load()%50)
	for name, annotations := range map[string]map[string]string{"a": {annotation: ip}, "b": nil, "c": {annotation: ip}, "idle": nil} {
		if err := w.create(name, annotations); err != nil {
			t.Fatal(err)
		}
	}
	always := []byte(`{"spec":{"runStrategy":"Always"}}`)
	for _, name := range []string{"a", "b"} {
		if _, err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Patch(t.Context(), name, "application/merge-patch+json", always, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		for try := 0; w.get(name).Status.PrintableStatus != kubevirtv1.VirtualMachineStatusRunning; try++ {
			if try == 600 {
				t.Fatalf("%s does not run", name)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	w.pool(ledger.Pool{CIDRs: []string{"10.16.0.0/16"}})
	out, errOut, code := w.command("", "reserve", "--all", "--adopt")
	if code != 1 || !strings.Contains(out, "/a reserved "+ip+"\n") || !regexp.MustCompile(`/b reserved 10\.16\.[0-9.]+\n`).MatchString(out) || strings.Contains(out, "/c ") || strings.Contains(out+errOut, "/idle") {
		t.Errorf("adoption: exit %d\n%s%s", code, out, errOut)
	}
	if !strings.Contains(errOut, "virtualmachine "+w.namespace+"/c: ") || !strings.Contains(errOut, "virtualmachine "+w.namespace+"/a") {
		t.Errorf("the contradiction does not name both: %s", errOut)
	}
	// Restart-free: the running instance carries what a migration's target is made from.
	vmi, err := w.boss.virt.KubevirtV1().VirtualMachineInstances(w.namespace).Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil || vmi.Annotations[annotation] == "" || vmi.Annotations[annotation] != w.asks("b") {
		t.Errorf("the instance asks for %q, the template for %q, %v", vmi.Annotations[annotation], w.asks("b"), err)
	}
	if got := w.ok("", "list"); strings.Contains(got, "Restart-Pending") {
		t.Errorf("list: %s", got)
	}
	if out := w.ok("", "reserve", "a", "b", "--adopt"); strings.Count(out, " unchanged ") != 2 {
		t.Errorf("once more: %s", out)
	}
}

// The reclaimer, as a Deployment runs it: what is left behind moves on, and what is in use stays.
func TestReclaimerCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	net, _ := w.net()
	w.ok("", "pool", "add", "lab", "--cidr", net+".0/24", "--gateway", net+".1")
	w.vm("gone", "kept", "half")
	for _, name := range []string{"gone", "kept", "half"} {
		w.ok("", "reserve", name)
	}
	if err := w.edit("half", nil); err != nil {
		t.Fatal(err)
	}
	api := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace)
	if _, err := api.Patch(t.Context(), "half", "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"vmip.io/reservations":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var out string
	for try := 0; try < 100 && !strings.Contains(out, "gone"); try++ {
		out += w.ok("", "reclaimer", "--once", "--grace", "0s")
		time.Sleep(100 * time.Millisecond)
	}
	for _, want := range []string{"/gone released " + net + ".2 (" + w.namespace + ", interface default)", "/half completed " + net + ".4"} {
		if !strings.Contains(out, want) {
			t.Errorf("the reclaimer says %q, not %q", out, want)
		}
	}
	if strings.Contains(out, "/kept") {
		t.Errorf("the reclaimer touched what is in use: %s", out)
	}
	w.is("kept", net+".3", net+".3 reserved")
	w.is("half", net+".4", net+".4 reserved")
	for _, e := range w.rows() {
		if strings.HasSuffix(e.Row.VM, "/gone") && e.Row.State != ledger.Held {
			t.Errorf("the row of a machine that is gone is %s", e.Row.State)
		}
	}
	if _, errOut, code := w.command("", "reclaimer", "--interval", "1ms"); code != 2 || !strings.Contains(errOut, "--interval") {
		t.Errorf("a mad interval: %d %s", code, errOut)
	}
}
