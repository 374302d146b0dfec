package audit_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// before starts a machine and reserves the address for it afterwards.
func (w *world) before(ref, running, reserved string) (*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
	vm := w.vm(ref)
	vmi, p := w.start(vm, "n1", running)
	names(vm, reserved)
	w.row(reserved, ref, vm.UID, since(ago(5*time.Minute)))
	return vm, vmi, p
}

func TestRestartPending(t *testing.T) {
	run(t, []scenario{
		{"the instance is older than the reservation", func(w *world) {
			w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
		}, []string{"RestartPending tenant-b/mail 198.51.100.30"}},
		{"the same, and nothing tells what the annotations mean", func(w *world) {
			w.Networks = audit.Networks{}
			vm, _, _ := w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
			vm.Annotations, vm.Spec.Template.ObjectMeta.Annotations = nil, nil
			vm.ManagedFields = []metav1.ManagedFieldsEntry{written("x", "", long)}
			w.Options.Grace = time.Hour
		}, []string{"RestartPending tenant-b/mail 198.51.100.30"}},
		{"the pod has the address and the instance does not ask for it", func(w *world) {
			w.before("tenant-b/mail", "198.51.100.30", "198.51.100.30")
		}, []string{"RestartPending tenant-b/mail 198.51.100.30"}},
		{"the machine moves to another address", func(w *world) {
			vm := w.reserved("tenant-b/mail", "198.51.100.30")
			w.start(vm, "n1", "198.51.100.30")
			w.Ledger.Entries[0].Row.State = ledger.Leaving
			names(vm, "198.51.100.31")
			w.row("198.51.100.31", "tenant-b/mail", vm.UID, func(e *ledger.Entry) { e.Row.Replaces = "198.51.100.30" })
		}, []string{"RestartPending tenant-b/mail 198.51.100.31"}},
		{"C16: a template edited by hand, without a reservation", func(w *world) {
			vm := w.vm("tenant-b/mail")
			w.start(vm, "n1", "203.0.113.77")
			vm.Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "203.0.113.30"
		}, []string{"RestartPending tenant-b/mail 203.0.113.30"}},
		{"the instance lacks the interface", func(w *world) {
			vm := w.vm("tenant-b/mail")
			vmi, _ := w.start(vm, "n1", "203.0.113.77")
			vmi.Spec.Networks[0].Name, vmi.Spec.Domain.Devices.Interfaces[0].Name = "old", "old"
			names(vm, "198.51.100.30")
			w.row("198.51.100.30", "tenant-b/mail", vm.UID)
		}, []string{"RestartPending tenant-b/mail 198.51.100.30"}},

		{"in effect", func(w *world) {
			w.start(w.reserved("tenant-b/mail", "198.51.100.30"), "n1", "198.51.100.30")
		}, nil},
		{"stopped", func(w *world) { w.reserved("tenant-b/mail", "198.51.100.30") }, nil},
		{"ended", func(w *world) {
			_, vmi, p := w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
			vmi.Status.Phase, p.Status.Phase = kubevirtv1.Succeeded, corev1.PodSucceeded
		}, nil},
		{"being stopped", func(w *world) {
			_, vmi, _ := w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
			vmi.DeletionTimestamp = &long
		}, nil},
		{"the pod has no address yet", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-b/mail", "198.51.100.30"), "n1")
			vmi.Status.Phase = kubevirtv1.Scheduling
		}, nil},
		{"the template lost the annotation, so a restart would not help", func(w *world) {
			vm, _, _ := w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
			delete(vm.Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
		}, []string{"TemplateMissing tenant-b/mail 198.51.100.30"}},
		{"other annotations of the template changed", func(w *world) {
			vm := w.reserved("tenant-b/mail", "198.51.100.30")
			w.start(vm, "n1", "198.51.100.30")
			vm.Spec.Template.ObjectMeta.Annotations["example.com/x"] = "y"
		}, nil},
	})
}

func TestRestartPendingEvidence(t *testing.T) {
	w := newWorld()
	w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
	f := w.the(t, audit.RestartPending)
	if f.Evidence != "running pod has 198.51.100.77" || f.Remedy != "kubectl vmip restart mail -n tenant-b" {
		t.Errorf("evidence %q, remedy %q", f.Evidence, f.Remedy)
	}
	w = newWorld()
	w.before("tenant-b/mail", "198.51.100.30", "198.51.100.30")
	f = w.the(t, audit.RestartPending)
	if f.Evidence != "running pod has it, but the running instance lacks ovn.kubernetes.io/ip_address: a live migration would lose it" || f.Remedy != "kubectl vmip reserve mail -n tenant-b" {
		t.Errorf("evidence %q, remedy %q", f.Evidence, f.Remedy)
	}
}

func TestAddressDrift(t *testing.T) {
	run(t, []scenario{
		{"the pod has another address", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "203.0.113.99")
		}, []string{"AddressDrift tenant-a/db-1 198.51.100.20"}},
		{"beside the row of a race that was lost", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			w.row("198.51.100.10", "tenant-a/db-1", vm.UID, since(ago(time.Second)))
			w.start(vm, "n1", "203.0.113.99")
		}, []string{"AddressDrift tenant-a/db-1 198.51.100.20"}},
		{"the pod lacks one family", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			names(vm, "198.51.100.20", "2001:db8::20")
			w.row("198.51.100.20", "tenant-a/db-1", vm.UID)
			w.row("2001:db8::20", "tenant-a/db-1", vm.UID)
			w.start(vm, "n1", "198.51.100.20")
		}, []string{"AddressDrift tenant-a/db-1 2001:db8::20"}},
		{"nothing tells what the annotations mean, and the instance is younger than the row", func(w *world) {
			w.Networks = audit.Networks{}
			vm := w.vm("tenant-a/db-1")
			w.row("198.51.100.20", "tenant-a/db-1", vm.UID)
			names(vm, "198.51.100.20")
			vm.Annotations = nil
			w.start(vm, "n1", "203.0.113.99")
		}, []string{"AddressDrift tenant-a/db-1 198.51.100.20", "InterruptedReserve tenant-a/db-1 198.51.100.20"}},

		{"the right address in another spelling", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "2001:db8::a0")
			w.start(vm, "n1", "2001:DB8:0:0::A0")
		}, nil},
		{"a finished pod has another address", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			p := w.launcher(vmi, "old", "n1", "203.0.113.99")
			p.Status.Phase = corev1.PodFailed
		}, nil},
		{"the target of a migration that has not handed over", func(w *world) {
			vmi, p := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.migrate(vmi, p, "n2")
		}, nil},
		{"a provisioning pod with another address", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.launcher(vmi, "wffc", "n1", "203.0.113.99").Annotations[kubevirtv1.EphemeralProvisioningObject] = "true"
		}, nil},
		{"a secondary interface has another address", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			secondary(vm, "lan", "tenant-a/lan")
			_, p := w.start(vm, "n1", "198.51.100.20")
			status(p, "lan", "192.0.2.77")
		}, nil},
	})
}

func TestAddressDriftOnASecondaryNetwork(t *testing.T) {
	w := newWorld()
	w.pool("lan", func(p *ledger.Pool) {
		p.Network, p.Attachment, p.CIDRs = "lan", "tenant-a/lan", []string{"192.0.2.0/24"}
		p.Ranges, p.Exclude, p.Gateways = nil, nil, nil
	})
	vm := w.vm("tenant-a/db-1")
	secondary(vm, "lan", "tenant-a/lan")
	key := "lan.tenant-a.ovn.kubernetes.io/ip_address"
	vm.Spec.Template.ObjectMeta.Annotations[key] = "192.0.2.20"
	said := ledger.Reservations{Ledger: ledger.DefaultNamespace, UID: vm.UID, Interfaces: map[string]ledger.Reservation{
		"lan": {Pool: "lan", Network: "lan", Addresses: []string{"192.0.2.20"}, Annotations: map[string]string{key: "192.0.2.20"}},
	}}
	vm.Annotations[ledger.AnnotationReservations], _ = said.Encode()
	w.row("192.0.2.20", "tenant-a/db-1", vm.UID, network("lan"), func(e *ledger.Entry) { e.Row.Interface = "lan" })
	_, p := w.start(vm, "n1", "203.0.113.5")
	status(p, "lan", "192.0.2.20")
	w.expect(t)
	status(p, "lan", "192.0.2.21")
	w.expect(t, "AddressDrift tenant-a/db-1 192.0.2.20")
}

// What the instance's status shows for an address flaps, is empty or link-local; the pod's counts.
func TestC23StatusAddresses(t *testing.T) {
	for name, addrs := range map[string][]string{"empty": nil, "link-local": {"fe80::5054:ff:fe00:20"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			agent(vmi, addrs...)
			w.expect(t)
		})
	}
}

func TestGuestMismatch(t *testing.T) {
	report := func(addrs ...string) func(*world) {
		return func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			agent(vmi, addrs...)
		}
	}
	run(t, []scenario{
		{"another global address", report("203.0.113.20"), []string{"GuestMismatch tenant-a/db-1 198.51.100.20"}},

		{"the reserved address", report("198.51.100.20"), nil},
		{"further addresses beside it", report("198.51.100.20", "203.0.113.100", "203.0.113.101"), nil},
		{"IPv6 only", report("2001:db8:f::1"), nil},
		{"no guest agent", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			vmi.Status.Interfaces[0].IP, vmi.Status.Interfaces[0].IPs = "203.0.113.20", []string{"203.0.113.20"}
		}, nil},
		{"during a migration", func(w *world) {
			vmi, p := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			agent(vmi, "203.0.113.20")
			w.migrate(vmi, p, "n2")
		}, nil},
		{"another interface of the guest", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			vmi.Status.Interfaces = append(vmi.Status.Interfaces, kubevirtv1.VirtualMachineInstanceNetworkInterface{InterfaceName: "docker0", InfoSource: "guest-agent", IP: "172.17.0.1"})
		}, nil},
		{"another MAC than the reservation's", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.Ledger.Entries[0].Row.MAC = "02:00:00:00:00:20"
			agent(vmi, "203.0.113.20")
			vmi.Status.Interfaces[0].MAC = "02:00:00:00:00:99"
		}, nil},
		{"C17: IPv6 under bridge", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "2001:db8::20"), "n1", "2001:db8::20")
			agent(vmi, "2001:db8:f::1")
		}, nil},
		{"the pod has another address too", func(w *world) {
			_, vmi, _ := w.before("tenant-a/db-1", "203.0.113.77", "198.51.100.20")
			agent(vmi, "203.0.113.77")
		}, []string{"RestartPending tenant-a/db-1 198.51.100.20"}},
	})
}

// A source pod that does not end is the machine's own.
func TestC56SourcePodLingers(t *testing.T) {
	migrated := func(w *world, end metav1.Time) (*kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
		vmi, source := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
		target := w.migrate(vmi, source, "n2", "198.51.100.20")
		w.Migrations[0].Status.Phase = kubevirtv1.MigrationSucceeded
		s := vmi.Status.MigrationState
		s.Completed, s.EndTimestamp = true, &end
		vmi.Status.NodeName = "n2"
		_ = target
		return vmi, source
	}
	run(t, []scenario{
		{"a sidecar still runs", func(w *world) {
			_, source := migrated(w, ago(10*time.Minute))
			source.Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "compute", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
				{Name: "hook-sidecar-0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}
		}, []string{"SourcePodLingers pod/tenant-a/virt-launcher-db-1-aaaaa 198.51.100.20"}},

		{"within the grace time", func(w *world) { migrated(w, ago(30*time.Second)) }, nil},
		{"it has ended", func(w *world) {
			_, source := migrated(w, ago(10*time.Minute))
			source.Status.Phase = corev1.PodSucceeded
		}, nil},
		{"the migration goes on", func(w *world) {
			vmi, source := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.migrate(vmi, source, "n2", "198.51.100.20")
		}, nil},
	})

	w := newWorld()
	_, source := migrated(w, ago(10*time.Minute))
	source.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "compute", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
		{Name: "hook-sidecar-0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
	}
	f := w.the(t, audit.SourcePodLingers)
	if want := "virt-launcher-db-1-aaaaa of virtualmachine tenant-a/db-1 still runs on n1, migration ended at 2026-12-01T09:50:00Z, containers hook-sidecar-0 run, holds 198.51.100.20"; f.Evidence != want {
		t.Errorf("evidence %q, want %q", f.Evidence, want)
	}
	if want := "kubectl delete pod virt-launcher-db-1-aaaaa -n tenant-a"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}
}

func TestStrayMigrationTarget(t *testing.T) {
	failed := func(w *world, end metav1.Time) *corev1.Pod {
		vmi, source := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
		target := w.migrate(vmi, source, "n2", "198.51.100.20")
		w.Migrations[0].Status.Phase = kubevirtv1.MigrationFailed
		s := vmi.Status.MigrationState
		s.Completed, s.Failed, s.EndTimestamp = true, true, &end
		return target
	}
	run(t, []scenario{
		{"its migration failed", func(w *world) { failed(w, ago(10*time.Minute)) },
			[]string{"StrayMigrationTarget pod/tenant-a/virt-launcher-db-1-bbbbb 198.51.100.20"}},
		{"its migration is gone", func(w *world) {
			failed(w, ago(10*time.Minute))
			w.Migrations = nil
		}, []string{"StrayMigrationTarget pod/tenant-a/virt-launcher-db-1-bbbbb 198.51.100.20"}},

		{"within the grace time", func(w *world) { failed(w, ago(30*time.Second)) }, nil},
		{"it has ended", func(w *world) { failed(w, ago(10*time.Minute)).Status.Phase = corev1.PodFailed }, nil},
		{"the current pod came by an earlier migration", func(w *world) {
			_, p := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			p.Labels[kubevirtv1.MigrationJobLabel] = "forgotten"
		}, nil},
	})
}
