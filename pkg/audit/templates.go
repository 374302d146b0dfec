package audit

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// unasked finds rows whose machine exists and does not ask for the address: its template lost it,
// or a command died before it wrote it.
func unasked(e *estate) ([]Finding, []Skip) {
	var found []Finding
	var skipped []Skip
	for _, g := range e.machines {
		if g.VM == nil || g.VM.DeletionTimestamp != nil {
			continue
		}
		for _, n := range g.nics {
			for _, row := range n.rows {
				if row.Row.State != ledger.Reserved {
					continue
				}
				if _, known := n.templateAsks(row.Addr); !known && n.malformed == nil && skipped == nil {
					skipped = []Skip{{[]Code{TemplateMissing}, fmt.Sprintf("which network plugin reads the template of %s (and of others, perhaps) is not established, and it has recorded no annotations", g)}}
				}
				if g.unreadable == nil { // else see malformed: until then nothing else helps
					found = append(found, e.judgeRow(n, row)...)
				}
			}
		}
		found = append(found, e.withoutInterface(g)...)
	}
	return found, skipped
}

func (e *estate) judgeRow(n *nic, row *ledger.Entry) []Finding {
	asks, known := n.templateAsks(row.Addr)
	named := n.guest.said.Names(n.Name, row.Addr)
	switch {
	case named && (asks || !known || n.malformed != nil):
		return nil // complete, or as far as can be told; what is malformed is reported as that
	case named:
		return e.missing(n, row)
	case len(e.siblings(row)) > 1:
		return nil // see twins
	case asks && n.guest.copied != nil:
		return e.interrupted(n, row, fmt.Sprintf("the template asks for it, and %s is of the virtual machine with UID %q, this one has UID %s", ledger.AnnotationReservations, n.guest.copied.UID, n.guest.VM.UID))
	case asks:
		return e.interrupted(n, row, "the template asks for it, and the virtual machine does not name it in "+ledger.AnnotationReservations)
	case row.Row.UID == "":
		return e.interrupted(n, row, "reserved before the virtual machine existed, which does not name it yet")
	case n.guest.VM.Spec.Template == nil || n.malformed != nil:
		return e.interrupted(n, row, "the virtual machine does not name it")
	case known && e.wasComplete(n, row):
		return e.missing(n, row)
	}
	return e.interrupted(n, row, "neither the virtual machine nor its template names it")
}

// wasComplete tells a manifest that was re-applied from a reserve that died: both leave a row that
// its machine does not name. The running instance still asks for the address where the machine
// once did, and a manifest leaves its mark in managedFields. Where those are missing, as in a dump
// made without them, the worse of the two is assumed.
func (e *estate) wasComplete(n *nic, row *ledger.Entry) bool {
	if asks, _ := n.instanceAsks(row.Addr); asks {
		return true
	}
	if len(n.guest.VM.ManagedFields) == 0 {
		return n.guest.said == nil
	}
	return writtenSince(n.guest.VM, row.Row.Since)
}

// writtenSince says whether somebody who is neither KubeVirt nor this program wrote the machine
// after its creation and not before that time.
func writtenSince(vm *kubevirtv1.VirtualMachine, since time.Time) bool {
	return slices.ContainsFunc(vm.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		switch m.Manager {
		case ledger.FieldManager, "virt-controller", "virt-api", "virt-operator", "virt-handler":
			return false
		}
		return m.Subresource == "" && m.Time != nil && m.Time.After(vm.CreationTimestamp.Time) && !m.Time.Time.Before(since.Truncate(time.Second))
	})
}

func (e *estate) missing(n *nic, row *ledger.Entry) []Finding {
	for _, a := range family(n.template, row.Family()) {
		if other := e.rows[site{row.Network, a}]; other != nil && other.Err == nil && !e.owns(n.guest, other) {
			return nil // it asks for another machine's address: see askedOfOthers
		}
	}
	f := e.about(TemplateMissing, n.guest)
	e.on(&f, n)
	f.at(row.Network, row.Addr)
	f.Evidence = fmt.Sprintf("reserved since %s, template %s", day(row.Row.Since), n.lacks(n.guest.VM.Spec.Template.ObjectMeta.Annotations, row.Addr))
	return []Finding{f}
}

func (e *estate) interrupted(n *nic, row *ledger.Entry, evidence string) []Finding {
	if !e.old(row.Row.Since) {
		return nil
	}
	f := e.about(InterruptedReserve, n.guest)
	e.on(&f, n)
	f.at(row.Network, row.Addr)
	f.Evidence = fmt.Sprintf("reserved since %s, %s", day(row.Row.Since), evidence)
	return []Finding{f}
}

// withoutInterface finds rows of an interface that the machine does not have any more.
func (e *estate) withoutInterface(g *guest) []Finding {
	var found []Finding
	for _, row := range e.byVM[g.ref.String()] {
		has := slices.ContainsFunc(g.nics, func(n *nic) bool { return n.Name == row.Row.Interface })
		if has || row.Row.State != ledger.Reserved || row.Row.UID != g.VM.UID || g.VM.Spec.Template == nil || !e.old(row.Row.Since) {
			continue
		}
		f := e.aboutRow(TemplateMissing, row)
		f.Evidence = fmt.Sprintf("reserved since %s for interface %s, which the template does not have", day(row.Row.Since), row.Row.Interface)
		e.remedy(&f, "kubectl vmip release {vm} -n {namespace} --interface "+row.Row.Interface)
		found = append(found, f)
	}
	return found
}

// owns says whether a row is the machine's: by UID, or by name for a machine that did not exist
// when the row was written.
func (e *estate) owns(g *guest, row *ledger.Entry) bool {
	return g.VM != nil && row.Row.VM == g.ref.String() && (row.Row.UID == "" || row.Row.UID == g.VM.UID)
}

// askedOfOthers finds templates that ask for an address whose row is another machine's.
func askedOfOthers(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, at := range sites(e.asked) {
		row := e.rows[at]
		if row == nil || row.Err != nil || row.Row.State == ledger.Held && e.Now.After(row.Row.Until) {
			continue
		}
		for _, h := range owners(e.asked[at]) {
			if row.Row.VM == h.guest.ref.String() {
				continue // its own, or an earlier machine's of that name: see recreated
			}
			f := e.about(TemplateForeign, h.guest)
			e.on(&f, h.nic)
			f.at(at.domain, at.addr)
			f.Evidence = "its template asks for the address, which is " + e.describe(row)
			if h.guest.copied != nil {
				f.Evidence += fmt.Sprintf("; its annotation %s was copied from the virtual machine with UID %s", ledger.AnnotationReservations, h.guest.copied.UID)
			}
			e.involve(&f, nil, row)
			f.namespaces = f.namespaces[:1] // the owner of the row has nothing to do
			found = append(found, f)
		}
	}
	return found, nil
}

// describe says whose a row is.
func (e *estate) describe(row *ledger.Entry) string {
	o := row.Row.Owner()
	switch row.Row.State {
	case ledger.Foreign:
		return fmt.Sprintf("claimed by %s (%s)", row.Row.VM, row.Row.Reason)
	case ledger.Held:
		return fmt.Sprintf("cooling down until %s after virtualmachine %s", moment(row.Row.Until), row.Row.VM)
	}
	text := "reserved for virtualmachine " + row.Row.VM
	if g := e.byRef[machine.Ref{Namespace: o.Namespace, Name: o.Name}]; row.Row.UID != "" && e.complete(o.Namespace) && (g == nil || g.VM.UID != row.Row.UID) {
		text += ", which no longer exists"
	}
	return text
}

// recreated finds rows of an earlier machine of the same name that the present one goes on with.
func recreated(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, g := range e.machines {
		if g.VM == nil {
			continue
		}
		for _, row := range e.byVM[g.ref.String()] {
			if row.Row.UID == "" || row.Row.UID == g.VM.UID || row.Row.State == ledger.Held {
				continue
			}
			why := e.goesOn(g, row)
			if why == "" {
				continue
			}
			f := e.aboutRow(RecreatedVM, row)
			f.Subject.UID = string(g.VM.UID)
			f.Evidence = fmt.Sprintf("reserved for an earlier virtualmachine %s with UID %s, this one has UID %s and %s", g.ref, row.Row.UID, g.VM.UID, why)
			found = append(found, f)
		}
	}
	return found, nil
}

// goesOn says how a machine names or uses the address of a row; "" where it does neither.
func (e *estate) goesOn(g *guest, row *ledger.Entry) string {
	if g.copied.Names(row.Row.Interface, row.Addr) {
		return "names it in " + ledger.AnnotationReservations
	}
	for _, n := range g.nics {
		if n.Name != row.Row.Interface {
			continue
		}
		if slices.Contains(n.template, row.Addr) {
			return "asks for it in its template"
		}
		if slices.Contains(n.pod, row.Addr) {
			return "has it"
		}
	}
	return ""
}
