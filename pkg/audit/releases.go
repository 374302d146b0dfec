package audit

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// interruptedReleases finds rows on their way out that nothing uses any more: the command that was
// to move them on died, or the machine that had the address has stopped since.
func interruptedReleases(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for n := range e.Ledger.Entries {
		row := &e.Ledger.Entries[n]
		if row.Err != nil || row.Row.State != ledger.Releasing && row.Row.State != ledger.Leaving || !e.old(row.Row.Since) {
			continue
		}
		if uid := row.Row.UID; uid != "" && e.index.VM(uid) == nil || e.used(row) {
			continue // see orphans
		}
		f := e.aboutRow(InterruptedRelease, row)
		f.Evidence = fmt.Sprintf("row %s is %s since %s, and nothing uses the address any more", row.Key, row.Row.State, moment(row.Row.Since))
		stays := e.staying(row)
		switch g := e.guestOfRow(row); {
		case len(stays) == 0:
			e.remedy(&f, CheckOf(InterruptedRelease).Remedy, "{interface}", row.Row.Interface)
		case g == nil || g.VM == nil:
			e.edit(&f, row.ConfigMap())
		default:
			// A release would take the other address too; a replacement by what is there moves on the rest.
			e.remedy(&f, "kubectl vmip reserve {vm} -n {namespace} --interface {interface} --replace --ip {stays}", "{interface}", row.Row.Interface, "{stays}", address.Join(stays))
			f.Evidence += fmt.Sprintf("; the interface keeps %s", address.Join(stays))
		}
		found = append(found, f)
	}
	return found, nil
}

func (e *estate) guestOfRow(row *ledger.Entry) *guest {
	o := row.Row.Owner()
	return e.byRef[machine.Ref{Namespace: o.Namespace, Name: o.Name}]
}

// staying are the reserved addresses of the interface that a row is of, one a family: see twins.
func (e *estate) staying(row *ledger.Entry) (addrs []netip.Addr) {
	g := e.guestOfRow(row)
	for _, f := range address.Families {
		var stays netip.Addr
		for _, r := range e.byVM[row.Row.VM] {
			if r.Row.State != ledger.Reserved || r.Row.Interface != row.Row.Interface || r.Family() != f {
				continue
			}
			if !stays.IsValid() || g != nil && g.said.Names(r.Row.Interface, r.Addr) {
				stays = r.Addr
			}
		}
		if stays.IsValid() {
			addrs = append(addrs, stays)
		}
	}
	return addrs
}

// used says whether something has the address of a row, or may have it, or asks for it. A template
// whose machine names the address is one that the release has yet to clean.
func (e *estate) used(row *ledger.Entry) bool {
	at := site{row.Network, row.Addr}
	if len(e.live[at])+len(e.reported[at]) > 0 {
		return true
	}
	g := e.guestOfRow(row)
	for _, h := range e.asked[at] {
		if h.guest != g || row.Row.State == ledger.Leaving || !g.said.Names(row.Row.Interface, row.Addr) {
			return true
		}
	}
	if g == nil {
		return false
	}
	if g.VMI != nil && !g.VMI.IsFinal() && len(g.LivePods()) == 0 {
		return true // its pod is about to come
	}
	for _, n := range g.nics {
		if n.Name != row.Row.Interface {
			continue
		}
		if n.malformed != nil {
			return true // what can't be parsed may ask for it
		}
		if slices.ContainsFunc(g.LivePods(), func(p *corev1.Pod) bool {
			addrs, known := machine.PodAddresses(p, n.running)
			return !known || len(addrs) == 0
		}) {
			return true
		}
	}
	return false
}

// releasedAsked finds templates that ask for an address which their own machine has given up.
func releasedAsked(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, at := range sites(e.asked) {
		row := e.rows[at]
		if row == nil || row.Err != nil || row.Row.State != ledger.Held && row.Row.State != ledger.Releasing || !e.old(row.Row.Since) {
			continue
		}
		for _, h := range owners(e.asked[at]) {
			if row.Row.VM != h.guest.ref.String() || h.guest.VM.DeletionTimestamp != nil {
				continue // see askedOfOthers
			}
			if row.Row.State == ledger.Releasing && (!e.owns(h.guest, row) || h.guest.said.Names(row.Row.Interface, row.Addr)) {
				continue // see recreated and interruptedReleases
			}
			f := e.about(TemplateReleased, h.guest)
			e.on(&f, h.nic)
			f.at(at.domain, at.addr)
			f.Evidence = fmt.Sprintf("its template asks for the address, whose row %s is %s since %s", row.Key, row.Row.State, moment(row.Row.Since))
			if row.Row.UID != "" && row.Row.UID != h.guest.VM.UID {
				f.Evidence += fmt.Sprintf(" by an earlier virtual machine with UID %s, this one has UID %s", row.Row.UID, h.guest.VM.UID)
			}
			found = append(found, f)
		}
	}
	return found, nil
}
