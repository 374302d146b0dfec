package audit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// sites sorts the addresses of an index, so that two runs say the same.
func sites(index ...map[site][]holder) []site {
	var all []site
	for _, x := range index {
		all = slices.AppendSeq(all, maps.Keys(x))
	}
	slices.SortFunc(all, func(a, b site) int {
		return cmp.Or(strings.Compare(a.domain, b.domain), a.addr.Compare(b.addr))
	})
	return slices.Compact(all)
}

// owners keeps one holder of each owner: both pods of a migration are one.
func owners(all []holder, except ...holder) []holder {
	var distinct []holder
	for _, h := range all {
		is := func(other holder) bool { return other.key == h.key }
		if !slices.ContainsFunc(distinct, is) && !slices.ContainsFunc(except, is) {
			distinct = append(distinct, h)
		}
	}
	return distinct
}

// usedTwice finds addresses that more than one owner has now, and reserved ones that another than
// their owner has. What a guest reports counts beside a pod or a reservation of another; two
// guests that report one address without either are taken to share a virtual one.
func usedTwice(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, at := range sites(e.live, e.reported) {
		have := owners(e.live[at])
		reports := owners(e.reported[at], have...)
		row := e.rows[at]
		if row != nil && (row.Err != nil || row.Row.State != ledger.Reserved) {
			row = nil
		}
		all := slices.Concat(have, reports)
		if !slices.ContainsFunc(all, func(h holder) bool { return h.guest != nil }) && row == nil {
			continue // two pods that are no machines are not for us to judge
		}
		if row == nil {
			if len(have) > 0 && len(all) > 1 {
				found = append(found, e.duplicate(at, all, nil))
			}
			continue
		}
		others := slices.DeleteFunc(slices.Clone(all), func(h holder) bool { return h.key == row.Row.VM })
		switch {
		case len(others) == 0:
		case len(others) < len(all):
			found = append(found, e.duplicate(at, all, row))
		default:
			found = append(found, e.intruder(others, row))
		}
	}
	return found, nil
}

// duplicate reports an address that several owners have or ask for, on the machine that has to
// give way: the first one that has no reservation for it.
func (e *estate) duplicate(at site, all []holder, row *ledger.Entry) Finding {
	slices.SortStableFunc(all, func(a, b holder) int { return strings.Compare(a.key, b.key) })
	var guests []holder
	for _, h := range all {
		if h.guest != nil {
			guests = append(guests, h)
		}
	}
	way := guests[0]
	if row != nil {
		if i := slices.IndexFunc(guests, func(h holder) bool { return h.key != row.Row.VM }); i >= 0 {
			way = guests[i]
		}
	}
	f := e.about(DuplicateAddress, way.guest)
	if way.nic != nil {
		e.on(&f, way.nic)
	}
	f.at(at.domain, at.addr)
	f.Evidence = texts(all)
	if row != nil {
		f.Evidence += ", reserved for virtualmachine " + row.Row.VM
	}
	if remedy := e.removal(all); remedy != "" && (row == nil || way.key == row.Row.VM) {
		f.Remedy = remedy // no other machine can give way
	}
	e.involve(&f, all, row)
	return f
}

// intruder reports a reserved address that its owner does not have and others do.
func (e *estate) intruder(others []holder, row *ledger.Entry) Finding {
	f := e.aboutRow(AddressInUseByOther, row)
	f.Evidence = "reserved for virtualmachine " + row.Row.VM + e.whereabouts(row) + ", in use by " + texts(others)
	switch other := others[0]; {
	case other.guest == nil:
		f.Remedy = e.removal(others)
	case other.guest.VM == nil:
		f.Remedy = e.command("kubectl get virtualmachineinstance {vm} -n {namespace} -o yaml", other.guest.ref)
	default:
		f.Remedy = e.command(CheckOf(AddressInUseByOther).Remedy, other.guest.ref)
	}
	e.involve(&f, others, row)
	return f
}

// whereabouts says what the owner of a row does instead of using its address.
func (e *estate) whereabouts(row *ledger.Entry) string {
	o := row.Row.Owner()
	g := e.byRef[machine.Ref{Namespace: o.Namespace, Name: o.Name}]
	switch {
	case g == nil || g.VM == nil || row.Row.UID != "" && g.VM.UID != row.Row.UID:
		return " (not there)"
	case !g.started():
		return " (stopped)"
	}
	return " (running)"
}

// removal is the command that takes an address off a pod that is no machine's: whatever made the
// pod makes another one, with another address. A launcher pod whose machine could not be read is
// its machine's, which has the name of its instance.
func (e *estate) removal(all []holder) string {
	for _, h := range all {
		if h.guest != nil || h.pod == nil {
			continue
		}
		if o := metav1.GetControllerOf(h.pod); o != nil && o.Kind == "VirtualMachineInstance" {
			return e.command(CheckOf(DuplicateAddress).Remedy, machine.Ref{Namespace: h.pod.Namespace, Name: o.Name})
		}
		return fmt.Sprintf("kubectl delete pod %s -n %s", h.pod.Name, h.pod.Namespace)
	}
	return ""
}

func texts(all []holder) string {
	words := make([]string, len(all))
	for n, h := range all {
		words[n] = h.text
	}
	return strings.Join(words, " and ")
}

// involve names everything that the finding depends on.
func (e *estate) involve(f *Finding, all []holder, row *ledger.Entry) {
	for _, h := range all {
		switch {
		case h.guest != nil:
			f.machines = append(f.machines, h.guest.ref)
			f.namespaces = append(f.namespaces, h.guest.ref.Namespace)
		case h.pod != nil:
			f.pods = append(f.pods, podRef(h.pod))
		}
	}
	if row != nil {
		o := row.Row.Owner()
		f.machines = append(f.machines, machine.Ref{Namespace: o.Namespace, Name: o.Name})
		f.namespaces = append(f.namespaces, o.Namespace)
	}
}

// askedTwice finds addresses without a reservation that a template asks for while another owner
// asks for it too, or has it.
func askedTwice(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, at := range sites(e.asked) {
		if row := e.rows[at]; row != nil {
			continue // a reservation decides: see askedOfOthers
		}
		have := owners(e.live[at])
		asking := owners(e.asked[at], have...)
		if len(have) < 2 && len(asking) > 0 && len(have)+len(asking) > 1 {
			found = append(found, e.duplicate(at, slices.Concat(have, asking), nil))
		}
	}
	return found, nil
}
