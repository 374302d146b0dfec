package e2e

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

const optIn = "kubevirt.io/allow-pod-bridge-network-live-migration"

// attachment makes a NetworkAttachmentDefinition.
func (w *world) attachment(name, config string) {
	w.t.Helper()
	w.kubectl(w.t, `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":"`+name+`","namespace":"`+w.namespace+`"},"spec":{"config":`+toJSON(w.t, config)+`}}`, "create", "-f", "-")
}

func secondary(network, attachment string) func(*kubevirtv1.VirtualMachine) {
	return func(vm *kubevirtv1.VirtualMachine) {
		halted(vm)
		spec := &vm.Spec.Template.Spec
		spec.Networks = append(spec.Networks, kubevirtv1.Network{Name: network, NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: attachment}}})
		spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, kubevirtv1.Interface{Name: network, InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}})
	}
}

// audited says whether audit of the namespace names a code for an object.
func (w *world) audited(code, object string) bool {
	w.t.Helper()
	r := w.run("audit", "--fail-on=none", "--no-headers")
	if r.code != 0 {
		w.t.Fatalf("audit: %s", r)
	}
	for _, line := range strings.Split(r.stdout, "\n") {
		f := strings.Fields(line)
		if len(f) > 2 && f[1] == code && strings.Contains(f[2], object) {
			return true
		}
	}
	return false
}

// C01: KubeVirt overwrites the Multus networks annotation; an address in it is ineffective, and
// reserve writes none. A VM with the pod network only is no case.
func TestC01MultusNetworks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.attachment("lan", `{"cniVersion":"1.0.0","type":"bridge","bridge":"br0"}`)
	w.ok("pool", "add", w.lab, "--cidr", w.prefix+".0/24", "--attachment", w.namespace+"/lan", "--for-namespace", w.namespace)
	w.vm("db-1", func(vm *kubevirtv1.VirtualMachine) {
		secondary("lan", "lan")(vm)
		vm.Spec.Template.ObjectMeta.Annotations["k8s.v1.cni.cncf.io/networks"] = `[{"name":"lan","namespace":"` + w.namespace + `","ips":["` + w.ip(20) + `/24"]}]`
	})
	w.vm("plain", halted)
	before := w.ledgerVersions()
	w.fails(1, []string{"interface lan"}, "reserve", "db-1", "--interface", "lan", "--ip", w.ip(20))
	if w.ledgerVersions() != before || strings.Contains(w.get("db-1").Annotations["vmip.io/reservations"], "lan") {
		t.Error("a refused reserve wrote")
	}
	if !w.audited("IneffectiveAnnotation", "db-1") {
		t.Error("audit does not tell of an annotation that KubeVirt overwrites")
	}
	if w.audited("IneffectiveAnnotation", "plain") {
		t.Error("a VM with the pod network only is flagged")
	}
}

// C01's remedy on Kube-OVN: its own attachments have a key each.
func TestKubeOVNSecondaryInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.attachment("lan", `{"cniVersion":"1.0.0","type":"kube-ovn","server_socket":"/run/openvswitch/kube-ovn-daemon.sock","provider":"lan.`+w.namespace+`.ovn"}`)
	w.ok("pool", "add", w.lab, "--cidr", w.prefix+".0/24", "--attachment", w.namespace+"/lan", "--for-namespace", w.namespace)
	w.vm("db-1", secondary("lan", "lan"))
	w.ok("reserve", "db-1", "--interface", "lan", "--ip", w.ip(20))
	a := w.get("db-1").Spec.Template.ObjectMeta.Annotations
	if got := a["lan."+w.namespace+".ovn.kubernetes.io/ip_address"]; got != w.ip(20) {
		t.Errorf("the attachment's own key is %q in %v", got, a)
	}
	if _, flat := a["ovn.kubernetes.io/ip_address"]; flat {
		t.Error("the pod network's key was written for an attachment")
	}
}

// C16: only the template's metadata reaches the pod.
func TestC16WrongPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.vm("db-1", func(vm *kubevirtv1.VirtualMachine) {
		halted(vm)
		vm.Annotations = map[string]string{"ovn.kubernetes.io/ip_address": w.ip(20)}
	})
	w.running("db-2")
	if !w.audited("MisplacedAnnotation", "db-1") {
		t.Error("audit does not tell of an address on the VM's own metadata")
	}
	out := w.ok("reserve", "db-2", "--ip", w.ip(30))
	if !strings.Contains(out, "restart pending") {
		t.Errorf("reserve on a running VM: %q", out)
	}
	for _, c := range w.get("db-2").Status.Conditions {
		if c.Type == kubevirtv1.VirtualMachineRestartRequired {
			t.Errorf("KubeVirt says RestartRequired, which the design says it does not: %v", c)
		}
	}
	w.state("db-2", "Restart-Pending", w.ip(30))
	if !w.audited("RestartPending", "db-2") {
		t.Error("audit does not tell of the pending restart")
	}
	w.ok("restart", "--pending", "--yes") // exactly the one that needs it
	w.state("db-2", "In-Use", w.ip(30))
	if r := w.run("restart", "--pending", "--yes"); r.code != 0 || r.stdout != "" {
		t.Errorf("nothing is pending any more: %s", r)
	}
}

// C24: behind a masquerade the pod's address counts; every guest has 10.0.2.2.
func TestC24Masquerade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	for _, name := range []string{"db-1", "db-2", "db-3"} {
		w.vm(name, func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{*kubevirtv1.DefaultMasqueradeNetworkInterface()}
			vm.Spec.Template.ObjectMeta.Annotations["sim.vmip.io/guest-agent"] = "true"
		})
	}
	w.ok("reserve", "--all")
	for _, name := range []string{"db-1", "db-2", "db-3"} {
		w.await(name, kubevirtv1.VirtualMachineStatusRunning)
	}
	w.ok("restart", "--all", "--yes", "--max-parallel", "3")
	if r := w.run("audit"); r.code != 0 {
		t.Errorf("audit: %s", r)
	}
	r := w.run("list")
	if strings.Contains(r.stdout, "10.0.2.2") || strings.Count(r.stdout, "In-Use") != 3 {
		t.Errorf("list: %s", r)
	}
}

// migrations counts the migration objects of the namespace.
func (w *world) migrations() int {
	w.t.Helper()
	list, err := w.virt.KubevirtV1().VirtualMachineInstanceMigrations(w.namespace).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return len(list.Items)
}

// C32 and C33: the opt-in of a bridge on the pod network counts on the running instance, by its
// presence. Preflight fails before a migration object exists.
func TestC32C33OptIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	without := func(vm *kubevirtv1.VirtualMachine) { delete(vm.Spec.Template.ObjectMeta.Annotations, optIn) }
	w.vm("none", without)
	w.vm("misplaced", func(vm *kubevirtv1.VirtualMachine) {
		without(vm)
		vm.Annotations = map[string]string{optIn: ""}
	})
	w.vm("late", without)
	w.vm("false", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.Template.ObjectMeta.Annotations[optIn] = "false" })
	for _, name := range []string{"none", "misplaced", "late", "false"} {
		w.await(name, kubevirtv1.VirtualMachineStatusRunning)
		w.ok("reserve", name)
	}
	w.ok("restart", "--all", "--yes", "--max-parallel", "4")
	w.kubectl(t, "", "patch", "vm", "late", "-n", w.namespace, "--type=merge", "-p", `{"spec":{"template":{"metadata":{"annotations":{"`+optIn+`":""}}}}}`)
	before := w.ledgerVersions()
	w.fails(1, []string{"can't be migrated with its address", optIn, "nothing was changed"}, "migrate", "none", "--yes")
	w.fails(1, []string{"spec.template.metadata", "nothing was changed"}, "migrate", "misplaced", "--yes")
	w.fails(1, []string{"restart", "nothing was changed"}, "migrate", "late", "--yes")
	if w.migrations() != 0 || w.ledgerVersions() != before {
		t.Error("a refused migration has left something behind")
	}
	if !w.audited("MigrationBlocked", "false") {
		t.Error(`audit does not tell that KubeVirt takes "false" for a yes`)
	}
	w.ok("migrate", "false", "--yes")
}

// C54: one MAC, whatever its spelling, belongs to one VM of the cluster; a stopped one counts.
func TestC54DuplicateMAC(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	mac := func(s string) func(*kubevirtv1.VirtualMachine) {
		return func(vm *kubevirtv1.VirtualMachine) {
			halted(vm)
			vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress = s
		}
	}
	w.vm("db-1", mac("02:AA:00:00:00:54"))
	w.vm("db-2", mac("02:aa:00:00:00:54"))
	w.vm("db-3", mac("02:aa:00:00:00:55"))
	if !w.audited("DuplicateMAC", "db-") || w.audited("DuplicateMAC", "db-3") {
		t.Error("audit does not tell of the duplicate, or of more")
	}
}

// A target that gets another address is noticed before the hand-over: the migration is given up,
// and the VM runs on where it was, with its address.
func TestMigrateAbortsOnWrongAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.running("db-1")
	w.ok("reserve", "db-1", "--ip", w.ip(20))
	w.restart("db-1", w.ip(20))
	w.kubectl(t, "", "annotate", "vm", "db-1", "-n", w.namespace, "sim.vmip.io/wrong-target-address="+w.ip(99))
	node := w.vmi("db-1").Status.NodeName
	r := w.fails(1, []string{w.ip(99), w.ip(20), node}, "migrate", "db-1", "--yes")
	if r.stdout != "" {
		t.Errorf("a migration that was given up is reported as done: %s", r)
	}
	if got := w.vmi("db-1").Status.NodeName; got != node {
		t.Errorf("the VM has moved from %s to %s", node, got)
	}
	w.eventually("one live pod", func(context.Context) (string, bool, error) {
		return "", len(w.livePods("db-1")) == 1, nil
	})
	if got := w.address("db-1"); got != w.ip(20) {
		t.Errorf("the VM has %s", got)
	}
	w.kubectl(t, "", "annotate", "vm", "db-1", "-n", w.namespace, "sim.vmip.io/wrong-target-address-")
	w.migrate("db-1", w.ip(20))
}

// A new pod that can't get its sandbox is told from its events, long before the timeout.
func TestRestartTellsOfSandboxFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.running("db-1")
	w.ok("reserve", "db-1", "--ip", w.ip(20))
	w.kubectl(t, "", "annotate", "vm", "db-1", "-n", w.namespace, "sim.vmip.io/sandbox-failure=no route to the moon")
	w.fails(1, []string{"FailedCreatePodSandBox", "no route to the moon"}, "restart", "db-1", "--yes")
	w.kubectl(t, "", "annotate", "vm", "db-1", "-n", w.namespace, "sim.vmip.io/sandbox-failure-")
	w.await("db-1", kubevirtv1.VirtualMachineStatusRunning)
	w.state("db-1", "In-Use", w.ip(20))
}

// A pod that got another address than the one it was started with is drift, not a pending restart.
func TestAuditDrift(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kube-ovn")
	w.pool()
	w.running("db-1")
	w.ok("reserve", "db-1", "--ip", w.ip(20))
	w.kubectl(t, "", "annotate", "vm", "db-1", "-n", w.namespace, "sim.vmip.io/wrong-address="+w.ip(98))
	r := w.fails(1, []string{w.ip(98), w.ip(20)}, "restart", "db-1", "--yes")
	if r.stdout != "" {
		t.Errorf("a restart into the wrong address is reported as done: %s", r)
	}
	w.state("db-1", "Drift", w.ip(20))
	if !w.audited("AddressDrift", "db-1") || w.audited("RestartPending", "db-1") {
		t.Error("audit does not tell of the drift, or calls it a pending restart")
	}
}
