package audit_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// migrate puts a machine in the middle of a live migration, and returns its target pod.
func (w *world) migrate(vmi *kubevirtv1.VirtualMachineInstance, source *corev1.Pod, node string, addrs ...string) *corev1.Pod {
	m := kubevirtv1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: "m-" + vmi.Name, UID: uid("m-" + vmi.Name)},
		Spec:       kubevirtv1.VirtualMachineInstanceMigrationSpec{VMIName: vmi.Name},
		Status:     kubevirtv1.VirtualMachineInstanceMigrationStatus{Phase: kubevirtv1.MigrationRunning},
	}
	w.Migrations = append(w.Migrations, m)
	target := w.launcher(vmi, "bbbbb", node, addrs...)
	target.Labels[kubevirtv1.MigrationJobLabel] = string(m.UID)
	vmi.Status.MigrationState = &kubevirtv1.VirtualMachineInstanceMigrationState{
		MigrationUID: m.UID, SourcePod: source.Name, SourceNode: source.Spec.NodeName, TargetPod: target.Name, TargetNode: node,
	}
	return target
}

func agent(vmi *kubevirtv1.VirtualMachineInstance, addrs ...string) {
	s := &vmi.Status.Interfaces[0]
	s.InfoSource, s.IP, s.IPs = "domain, guest-agent", first(addrs), addrs
}

func TestDuplicateAddress(t *testing.T) {
	run(t, []scenario{
		{"two machines run on it, one has it reserved", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.start(w.vm("tenant-b/web"), "n2", "198.51.100.20")
		}, []string{"DuplicateAddress tenant-b/web 198.51.100.20"}},
		{"two machines run on it without a reservation", func(w *world) {
			w.start(w.vm("tenant-a/db-1"), "n1", "198.51.100.5")
			w.start(w.vm("tenant-b/web"), "n2", "198.51.100.5")
		}, []string{"DuplicateAddress tenant-a/db-1 198.51.100.5"}},
		{"outside every pool", func(w *world) {
			w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.5")
			w.start(w.vm("tenant-b/web"), "n2", "203.0.113.5")
		}, []string{"DuplicateAddress tenant-a/db-1 203.0.113.5"}},
		{"the second family", func(w *world) {
			w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.5", "2001:db8:f::5")
			w.start(w.vm("tenant-b/web"), "n2", "203.0.113.6", "2001:DB8:F:0::5")
		}, []string{"DuplicateAddress tenant-a/db-1 2001:db8:f::5"}},
		{"a machine and a pod", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.pod("kube-system/intruder", "n2", "198.51.100.20")
		}, []string{"DuplicateAddress tenant-a/db-1 198.51.100.20"}},
		{"a pod that is being deleted still has it", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			_, p := w.start(w.vm("tenant-b/web"), "n2", "198.51.100.20")
			p.DeletionTimestamp = &long
		}, []string{"DuplicateAddress tenant-b/web 198.51.100.20"}},
		{"the guest of one and the pod of another", func(w *world) {
			vmi, _ := w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.7")
			agent(vmi, "203.0.113.20")
			w.start(w.vm("tenant-b/web"), "n2", "203.0.113.20")
		}, []string{"DuplicateAddress tenant-a/db-1 203.0.113.20"}},
		{"two templates ask for it and nobody has it reserved", func(w *world) {
			w.vm("tenant-a/a").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
			w.vm("tenant-a/c").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"DuplicateAddress tenant-a/a 198.51.100.20"}},
		{"a stopped machine's template asks for what a pod has", func(w *world) {
			w.vm("tenant-a/a").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
			w.pod("tenant-b/web", "n2", "198.51.100.20")
		}, []string{"DuplicateAddress tenant-a/a 198.51.100.20"}},
		{"a standalone instance and a machine", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			vmi, _ := w.start(w.vm("tenant-b/bare"), "n2", "198.51.100.20")
			vmi.OwnerReferences = nil
			w.VMs = w.VMs[:1]
		}, []string{"DuplicateAddress vmi/tenant-b/bare 198.51.100.20"}},

		{"both pods of a migration", func(w *world) {
			vmi, p := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.migrate(vmi, p, "n2", "198.51.100.20")
		}, nil},
		{"finished pods of others", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.pod("tenant-b/job", "n1", "198.51.100.20").Status.Phase = corev1.PodSucceeded
			w.pod("tenant-b/crash", "n1", "198.51.100.20").Status.Phase = corev1.PodFailed
		}, nil},
		{"a provisioning pod of the machine", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.launcher(vmi, "wffc", "n2", "198.51.100.20").Annotations[kubevirtv1.EphemeralProvisioningObject] = "true"
		}, nil},
		{"a hot-plug pod of the machine", func(w *world) {
			_, p := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			hp := w.pod("tenant-a/hp-volume", "n1", "198.51.100.20")
			hp.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))}
		}, nil},
		{"a pod whose instance was not read yet", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			later := vmi.DeepCopy()
			later.UID = "vmi-later"
			w.launcher(later, "later", "n2", "198.51.100.20")
		}, nil},
		{"the node's address on host-network pods", func(w *world) {
			for _, name := range []string{"kube-system/a", "kube-system/b"} {
				w.pod(name, "n1", "198.51.100.20").Spec.HostNetwork = true
			}
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
		}, nil},
		{"two pods that are no machines", func(w *world) {
			w.pod("tenant-a/x", "n1", "203.0.113.9")
			w.pod("tenant-b/y", "n2", "203.0.113.9")
		}, nil},
		{"one virtual address reported by two guests", func(w *world) {
			for n, ref := range []string{"tenant-a/ha-1", "tenant-a/ha-2"} {
				addr := []string{"203.0.113.7", "203.0.113.8"}[n]
				vmi, _ := w.start(w.vm(ref), "n1", addr)
				agent(vmi, addr, "203.0.113.100")
			}
		}, nil},
		{"the same numbers in two networks, told apart by reservations", func(w *world) {
			w.pool("p2", func(p *ledger.Pool) { p.Network = "vpc-2" })
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			other := w.vm("tenant-b/db-2")
			names(other, "198.51.100.20")
			w.row("198.51.100.20", "tenant-b/db-2", other.UID, network("vpc-2"))
			w.start(other, "n2", "198.51.100.20")
		}, nil},
		{"a reservation decides before the namespaces of pools", func(w *world) {
			w.Ledger.Pools[0].Namespaces = []string{"tenant-a"}
			w.pool("p2", func(p *ledger.Pool) { p.Network, p.Namespaces = "vpc-2", []string{"tenant-b"} })
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			other := w.vm("tenant-a/db-2")
			names(other, "198.51.100.20")
			w.row("198.51.100.20", "tenant-a/db-2", other.UID, network("vpc-2"))
			w.start(other, "n2", "198.51.100.20")
		}, nil},
		{"the same numbers in two networks, told apart by namespaces", func(w *world) {
			w.Ledger.Pools[0].Namespaces = []string{"tenant-a"}
			w.pool("p2", func(p *ledger.Pool) { p.Network, p.Namespaces = "vpc-2", []string{"tenant-b"} })
			w.start(w.vm("tenant-a/db-1"), "n1", "198.51.100.5")
			w.start(w.vm("tenant-b/db-2"), "n2", "198.51.100.5")
		}, nil},
		{"the same numbers in two virtual private clouds without pools", func(w *world) {
			w.Ledger.Pools, w.Ledger.Networks = nil, nil
			_, p := w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.5")
			p.Annotations["ovn.kubernetes.io/logical_router"] = "vpc-1"
			_, q := w.start(w.vm("tenant-b/db-2"), "n2", "203.0.113.5")
			q.Annotations["ovn.kubernetes.io/logical_router"] = "vpc-2"
		}, nil},
		{"the same numbers on two attachments", func(w *world) {
			for n, ref := range []string{"tenant-a/x", "tenant-b/y"} {
				vm := w.vm(ref)
				secondary(vm, "lan", vm.Namespace+"/lan")
				_, p := w.start(vm, "n1", []string{"203.0.113.5", "203.0.113.6"}[n])
				status(p, "lan", "192.0.2.77")
			}
		}, nil},
	})
}

// secondary adds an interface on an attachment.
func secondary(vm *kubevirtv1.VirtualMachine, name, attachment string) {
	spec := &vm.Spec.Template.Spec
	spec.Networks = append(spec.Networks, kubevirtv1.Network{Name: name, NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: attachment}}})
	i := *kubevirtv1.DefaultBridgeNetworkInterface()
	i.Name = name
	spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, i)
}

// status writes what Multus reports for the first secondary interface.
func status(p *corev1.Pod, network, addr string) {
	p.Annotations["k8s.v1.cni.cncf.io/network-status"] = `[{"name":"x","interface":"net1","ips":["` + addr + `"]}]`
}

func TestDuplicateOnOneAttachment(t *testing.T) {
	w := newWorld()
	for n, ref := range []string{"tenant-a/x", "tenant-a/y"} {
		vm := w.vm(ref)
		secondary(vm, "lan", "tenant-a/lan")
		_, p := w.start(vm, "n1", []string{"203.0.113.5", "203.0.113.6"}[n])
		status(p, "lan", "192.0.2.77")
	}
	w.expect(t, "DuplicateAddress tenant-a/x 192.0.2.77")
	if f := w.the(t, audit.DuplicateAddress); f.Interface != "lan" || !strings.HasSuffix(f.Remedy, "--interface lan") {
		t.Errorf("interface %q, remedy %q", f.Interface, f.Remedy)
	}
}

func TestDuplicateAddressEvidence(t *testing.T) {
	w := newWorld()
	w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
	w.start(w.vm("tenant-b/web"), "n2", "198.51.100.20")
	f := w.the(t, audit.DuplicateAddress)
	for _, part := range []string{
		"pod tenant-a/virt-launcher-db-1-aaaaa on n1 of virtualmachine tenant-a/db-1",
		"pod tenant-b/virt-launcher-web-aaaaa on n2 of virtualmachine tenant-b/web",
		"reserved for virtualmachine tenant-a/db-1",
	} {
		if !strings.Contains(f.Evidence, part) {
			t.Errorf("evidence %q lacks %q", f.Evidence, part)
		}
	}
	if want := "kubectl vmip reserve web -n tenant-b"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}
}

// Three masquerade guests all see 10.0.2.2; the pods' addresses count.
func TestC24Masquerade(t *testing.T) {
	w := newWorld()
	for n, ref := range []string{"tenant-a/m1", "tenant-a/m2", "tenant-a/m3"} {
		addr := []string{"198.51.100.20", "198.51.100.21", "198.51.100.22"}[n]
		vm := w.reserved(ref, addr)
		vm.Spec.Template.Spec.Domain.Devices.Interfaces[0] = *kubevirtv1.DefaultMasqueradeNetworkInterface()
		vmi, _ := w.start(vm, "n1", addr)
		agent(vmi, "10.0.2.2")
	}
	w.expect(t)
}

// Finished launchers still show the address, and the newest pod is not the one that runs.
func TestC46FinishedLaunchers(t *testing.T) {
	w := newWorld()
	vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
	newer := w.launcher(vmi, "bbbbb", "n2", "198.51.100.20")
	newer.CreationTimestamp, newer.Status.Phase = ago(time.Minute), corev1.PodSucceeded
	w.launcher(vmi, "ccccc", "n3", "198.51.100.20").Status.Phase = corev1.PodFailed
	other := w.launcher(vmi, "ddddd", "n1", "198.51.100.99")
	other.CreationTimestamp, other.Status.Phase = ago(time.Second), corev1.PodSucceeded
	w.expect(t)

	w.Pods[0].DeletionTimestamp = &long
	w.pod("tenant-b/x", "n2", "198.51.100.20")
	w.expect(t, "DuplicateAddress tenant-a/db-1 198.51.100.20")
}

// A pod is its machine's by UIDs: a label or a name that says otherwise changes nothing.
func TestC48PodsByUID(t *testing.T) {
	w := newWorld()
	w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
	p := w.pod("tenant-a/virt-launcher-db-1-zzzzz", "n2", "198.51.100.20")
	p.Labels = map[string]string{kubevirtv1.AppLabel: "virt-launcher", "vm.kubevirt.io/name": "db-1", kubevirtv1.CreatedByLabel: "vmi-u-db-1"}
	w.expect(t, "DuplicateAddress tenant-a/db-1 198.51.100.20")
}

func TestC50AddressInUseByOther(t *testing.T) {
	run(t, []scenario{
		{"a pod has a stopped machine's address", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.pod("kube-system/virt-handler-x", "n1", "198.51.100.20")
		}, []string{"AddressInUseByOther tenant-a/db-1 198.51.100.20"}},
		{"another machine has a stopped machine's address", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.start(w.vm("tenant-b/web"), "n1", "198.51.100.20")
		}, []string{"AddressInUseByOther tenant-a/db-1 198.51.100.20"}},
		{"a guest reports it", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			vmi, _ := w.start(w.vm("tenant-b/web"), "n1", "203.0.113.5")
			agent(vmi, "203.0.113.5", "198.51.100.20")
		}, []string{"AddressInUseByOther tenant-a/db-1 198.51.100.20"}},
		{"a hot-plug pod of another machine has it", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			_, p := w.start(w.vm("tenant-b/web"), "n1", "203.0.113.5")
			hp := w.pod("tenant-b/hp-volume", "n1", "198.51.100.20")
			hp.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))}
		}, []string{"AddressInUseByOther tenant-a/db-1 198.51.100.20"}},
		{"a hot-plug pod of a machine whose own primary network is an attachment has it", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			vm := w.vm("tenant-b/web")
			vm.Spec.Template.Spec.Networks[0].NetworkSource = kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "tenant-b/lan", Default: true}}
			_, p := w.start(vm, "n1", "203.0.113.5")
			hp := w.pod("tenant-b/hp-volume", "n1", "198.51.100.20")
			hp.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))}
		}, []string{"AddressInUseByOther tenant-a/db-1 198.51.100.20"}},
		{"the pod of a machine that is on secondary networks alone has it", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			vm := w.vm("tenant-b/web")
			vm.Spec.Template.Spec.Networks, vm.Spec.Template.Spec.Domain.Devices.Interfaces = nil, nil
			secondary(vm, "lan", "tenant-b/lan")
			w.start(vm, "n1", "198.51.100.20")
		}, []string{"AddressInUseByOther tenant-a/db-1 198.51.100.20"}},
		{"a node has it", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.node("n9", "198.51.100.20")
		}, []string{"AddressInUseByOther tenant-a/db-1 198.51.100.20"}},

		{"a host-network pod shows the node's address", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.node("n9", "198.51.100.11")
			w.pod("kube-system/kube-proxy", "n9", "198.51.100.11").Spec.HostNetwork = true
		}, []string{"PoolOverlapsNode pool/p1 198.51.100.11"}},
		{"the owner has it", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
		}, nil},
		{"nobody has it", func(w *world) { w.reserved("tenant-a/db-1", "198.51.100.20") }, nil},
		{"the same number on an isolated network", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			vm := w.vm("tenant-b/web")
			secondary(vm, "lan", "tenant-b/lan")
			_, p := w.start(vm, "n1", "203.0.113.5")
			status(p, "lan", "198.51.100.20")
		}, nil},
		{"it was released and cools down", func(w *world) {
			w.row("198.51.100.20", "tenant-a/gone", "u-gone", state(ledger.Held), func(e *ledger.Entry) { e.Row.Until = now.Add(time.Minute) })
			w.pod("kube-system/x", "n1", "198.51.100.20")
		}, nil},
		{"the pod of an earlier instance of the same machine", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			old := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: vm.Name, UID: types.UID("vmi-old")}}
			w.launcher(old, "old", "n1", "198.51.100.20")
		}, nil},
	})
}

func TestAddressInUseByOtherRemedy(t *testing.T) {
	w := newWorld()
	w.reserved("tenant-a/db-1", "198.51.100.20")
	w.pod("kube-system/virt-handler-x", "n1", "198.51.100.20")
	f := w.the(t, audit.AddressInUseByOther)
	if want := "reserved for virtualmachine tenant-a/db-1 (stopped), in use by pod kube-system/virt-handler-x on n1"; f.Evidence != want {
		t.Errorf("evidence %q, want %q", f.Evidence, want)
	}
	if want := "kubectl delete pod virt-handler-x -n kube-system"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}

	w = newWorld()
	w.LedgerNamespace = "ipam"
	w.reserved("tenant-a/db-1", "198.51.100.20")
	w.start(w.vm("tenant-b/web"), "n1", "198.51.100.20")
	if f, want := w.the(t, audit.AddressInUseByOther), "kubectl vmip reserve web -n tenant-b --ledger-namespace ipam"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}

	w = newWorld()
	w.reserved("tenant-a/db-1", "198.51.100.20")
	w.start(w.vm("tenant-b/web"), "n1", "198.51.100.20")
	w.VMs, w.VMIs = w.VMs[:1], nil // machines of other namespaces can't be listed
	if f, want := w.the(t, audit.AddressInUseByOther), "kubectl vmip reserve web -n tenant-b"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}
}
