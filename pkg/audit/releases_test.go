package audit_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

func TestInterruptedRelease(t *testing.T) {
	const at = "InterruptedRelease tenant-a/db-1 198.51.100.20"
	// out is a machine whose only row is on its way out, and whose template was cleaned.
	out := func(w *world, s ledger.State, edits ...func(*ledger.Entry)) *kubevirtv1.VirtualMachine {
		vm := w.vm("tenant-a/db-1")
		w.row("198.51.100.20", "tenant-a/db-1", vm.UID, append(edits, state(s))...)
		return vm
	}
	run(t, []scenario{
		{"releasing", func(w *world) { out(w, ledger.Releasing) }, []string{at}},
		{"leaving", func(w *world) { out(w, ledger.Leaving) }, []string{at}},
		{"the template is not cleaned yet", func(w *world) { names(out(w, ledger.Releasing), "198.51.100.20") }, []string{at}},
		{"for a machine that does not exist yet", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "", state(ledger.Releasing))
		}, []string{at}},
		{"the machine runs on another address", func(w *world) {
			w.start(out(w, ledger.Leaving), "n1", "203.0.113.5")
		}, []string{at}},
		{"a finished pod had it", func(w *world) {
			_, p := w.start(out(w, ledger.Releasing), "n1", "198.51.100.20")
			p.Status.Phase = corev1.PodSucceeded
			w.VMIs[0].Status.Phase = kubevirtv1.Succeeded
		}, []string{at}},

		{"within the grace time", func(w *world) { out(w, ledger.Releasing, since(ago(30*time.Second))) }, nil},
		{"held", func(w *world) {
			out(w, ledger.Held, func(e *ledger.Entry) { e.Row.Until = now.Add(time.Minute) })
		}, nil},
		{"released at shutdown, and the pod has it", func(w *world) { w.start(out(w, ledger.Releasing), "n1", "198.51.100.20") }, nil},
		{"the pod shows no address yet", func(w *world) { w.start(out(w, ledger.Releasing), "n1") }, nil},
		{"the pod is about to come", func(w *world) {
			w.start(out(w, ledger.Releasing), "n1")
			w.Pods = w.Pods[:0]
		}, nil},
		{"the guest reports it", func(w *world) {
			vmi, _ := w.start(out(w, ledger.Leaving), "n1", "203.0.113.5")
			vmi.Status.Interfaces[0].IPs = []string{"203.0.113.5", "198.51.100.20"}
			vmi.Status.Interfaces[0].InfoSource = "domain, guest-agent"
		}, nil},
		{"the machine goes back to it", func(w *world) { names(out(w, ledger.Leaving), "198.51.100.20") }, nil},
		{"a template that can't be parsed", func(w *world) {
			out(w, ledger.Releasing).Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "x"
		}, []string{"MalformedAnnotation tenant-a/db-1"}},
		{"the machine is gone", func(w *world) {
			out(w, ledger.Releasing)
			w.VMs = w.VMs[:0]
		}, []string{"OrphanReservation tenant-a/db-1 198.51.100.20"}},
	})
	w := newWorld()
	out(w, ledger.Releasing)
	w.remedy(t, audit.InterruptedRelease, "kubectl vmip release db-1 -n tenant-a --interface default", "vmip-block-default/198.51.100.20 is releasing since 2026-11-28T10:00:00Z")
	// A release would take the address that the interface keeps.
	w = newWorld()
	vm := out(w, ledger.Leaving)
	w.row("198.51.100.30", "tenant-a/db-1", vm.UID)
	w.row("198.51.100.31", "tenant-a/db-1", vm.UID)
	w.row("2001:db8::30", "tenant-a/db-1", vm.UID)
	names(vm, "198.51.100.31", "2001:db8::30")
	w.remedy(t, audit.InterruptedRelease, "kubectl vmip reserve db-1 -n tenant-a --interface default --replace --ip 198.51.100.31,2001:db8::30", "keeps 198.51.100.31,2001:db8::30")
	w = newWorld()
	w.row("198.51.100.20", "tenant-a/db-1", "", state(ledger.Leaving))
	w.row("198.51.100.30", "tenant-a/db-1", "")
	w.remedy(t, audit.InterruptedRelease, "kubectl edit configmap vmip-block-default -n vmip-system")
}

func TestTemplateReleased(t *testing.T) {
	const at = "TemplateReleased tenant-a/db-1 198.51.100.20"
	asks := func(w *world, s ledger.State, edits ...func(*ledger.Entry)) *kubevirtv1.VirtualMachine {
		vm := w.vm("tenant-a/db-1")
		vm.Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		until := func(e *ledger.Entry) { e.Row.Until = now.Add(time.Minute) }
		w.row("198.51.100.20", "tenant-a/db-1", vm.UID, append(edits, state(s), until)...)
		return vm
	}
	run(t, []scenario{
		{"it cools down", func(w *world) { asks(w, ledger.Held) }, []string{at}},
		{"its cool-down is over", func(w *world) {
			asks(w, ledger.Held)
			w.Ledger.Entries[0].Row.Until = ago(time.Hour).Time
		}, []string{at}},
		{"a manifest put it back while it is being released", func(w *world) { asks(w, ledger.Releasing) }, []string{at}},
		{"by an earlier machine", func(w *world) { asks(w, ledger.Held, func(e *ledger.Entry) { e.Row.UID = "u-old" }) }, []string{at}},
		{"the annotation is a copy of an earlier machine's", func(w *world) {
			vm := asks(w, ledger.Held, func(e *ledger.Entry) { e.Row.UID = "u-db-1" })
			names(vm, "198.51.100.20")
			vm.UID = "u-new"
		}, []string{at}},

		{"within the grace time", func(w *world) { asks(w, ledger.Held, since(ago(30*time.Second))) }, nil},
		{"another machine's is TemplateForeign", func(w *world) {
			asks(w, ledger.Held, func(e *ledger.Entry) { e.Row.VM = "tenant-a/web" })
		}, []string{"TemplateForeign tenant-a/db-1 198.51.100.20"}},
		{"being released by an earlier machine is RecreatedVM", func(w *world) {
			asks(w, ledger.Releasing, func(e *ledger.Entry) { e.Row.UID = "u-old" })
		}, []string{"RecreatedVM tenant-a/db-1 198.51.100.20"}},
		{"the machine is being deleted", func(w *world) {
			asks(w, ledger.Held).DeletionTimestamp = &metav1.Time{Time: now}
		}, nil},
		{"the template is clean", func(w *world) { delete(asks(w, ledger.Held).Spec.Template.ObjectMeta.Annotations, kubeOVNKey) }, nil},
	})
	w := newWorld()
	asks(w, ledger.Held, func(e *ledger.Entry) { e.Row.UID = "u-old" })
	w.remedy(t, audit.TemplateReleased, "kubectl vmip reserve db-1 -n tenant-a", "vmip-block-default/198.51.100.20 is held", "UID u-old", "UID u-db-1")
}

// A machine whose own word can't be read is named once, with the way out of all that follows.
func TestReservationsThatCantBeRead(t *testing.T) {
	broken := func(raw string) func(*world) {
		return func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20").Annotations[ledger.AnnotationReservations] = raw
		}
	}
	want := []string{"MalformedAnnotation tenant-a/db-1"}
	run(t, []scenario{
		{"no JSON", broken("{"), want},
		{"no ledger", broken(`{"ledger":"","uid":"u-db-1"}`), want},
		{"an address that is none", broken(`{"ledger":"vmip-system","interfaces":{"default":{"addresses":["x"]}}}`), want},
		{"and the template lost its annotation", func(w *world) {
			broken("{")(w)
			delete(w.VMs[0].Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
		}, want},
		{"another machine's UID", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			vm.Annotations[ledger.AnnotationReservations] = strings.Replace(vm.Annotations[ledger.AnnotationReservations], "u-db-1", "u-2", 1)
		}, []string{"InterruptedReserve tenant-a/db-1 198.51.100.20"}},

		{"fields of a newer version", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			vm.Annotations[ledger.AnnotationReservations] = strings.Replace(vm.Annotations[ledger.AnnotationReservations], "{", `{"later":1,`, 1)
		}, nil},
		{"it is being deleted", func(w *world) {
			broken("{")(w)
			w.VMs[0].DeletionTimestamp = &metav1.Time{Time: now}
		}, nil},
	})
	w := newWorld()
	w.LedgerNamespace = "ipam"
	broken(`{"ledger":""}`)(w)
	w.remedy(t, audit.MalformedAnnotation, "kubectl annotate virtualmachine db-1 -n tenant-a vmip.io/reservations- && kubectl vmip reserve db-1 -n tenant-a --interface default --ledger-namespace ipam", `ledger ""`)
	w = newWorld()
	w.vm("tenant-a/db-1").Annotations[ledger.AnnotationReservations] = "{"
	w.remedy(t, audit.MalformedAnnotation, "kubectl annotate virtualmachine db-1 -n tenant-a vmip.io/reservations-")
	w = newWorld()
	vm := w.reserved("tenant-a/db-1", "198.51.100.20")
	vm.Annotations[ledger.AnnotationReservations] = strings.Replace(vm.Annotations[ledger.AnnotationReservations], "u-db-1", "u-2", 1)
	w.remedy(t, audit.InterruptedReserve, "kubectl vmip reserve db-1 -n tenant-a", `UID "u-2"`, "UID u-db-1")
}
