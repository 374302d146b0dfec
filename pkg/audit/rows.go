package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// orphans finds rows whose machine is proven gone by its UID. A row without a UID is for a machine
// that does not exist yet.
func orphans(e *estate) ([]Finding, []Skip) {
	if foreign := e.otherCluster(); foreign != "" {
		return nil, []Skip{{[]Code{OrphanReservation}, foreign}}
	}
	var found []Finding
	var unseen []string
	for n := range e.Ledger.Entries {
		row := &e.Ledger.Entries[n]
		o := row.Row.Owner()
		if row.Err != nil || row.Row.UID == "" || row.Row.State == ledger.Held || row.Row.State == ledger.Foreign {
			continue
		}
		if e.Unordered && !e.old(row.Row.Since) {
			continue // its machine may be younger than the list of machines
		}
		if e.index.VM(row.Row.UID) != nil || e.mayReturn(row) || (e.opts.Namespace != "" && e.opts.Namespace != o.Namespace) {
			continue
		}
		if !e.complete(o.Namespace) {
			if !slices.Contains(unseen, o.Namespace) {
				unseen = append(unseen, o.Namespace)
			}
			continue
		}
		f := e.aboutRow(OrphanReservation, row)
		f.Evidence = fmt.Sprintf("%s since %s, no virtualmachine has UID %s any more", row.Row.State, day(row.Row.Since), row.Row.UID)
		if g := e.byRef[machine.Ref{Namespace: o.Namespace, Name: o.Name}]; g != nil {
			f.Evidence += fmt.Sprintf(" (%s has UID %s and does not ask for the address)", g.ref, g.VM.UID)
			e.remedy(&f, "kubectl vmip reclaimer --once") // a release would take the present machine's address too
		}
		found = append(found, f)
	}
	if len(unseen) == 0 {
		return found, nil
	}
	slices.Sort(unseen)
	return found, []Skip{{[]Code{OrphanReservation}, "no virtual machine of namespace " + strings.Join(unseen, ", ") + " was seen: give -A where the dump is of the whole cluster"}}
}

// mayReturn says that the machine of a row is gone only for the moment, or that something of its
// name still has or asks for the address.
func (e *estate) mayReturn(row *ledger.Entry) bool {
	o := row.Row.Owner()
	ref := machine.Ref{Namespace: o.Namespace, Name: o.Name}
	if slices.Contains(e.Restoring, ref) {
		return true
	}
	if g := e.byRef[ref]; g != nil && e.goesOn(g, row) != "" {
		return true // see recreated
	}
	at := site{row.Network, row.Addr}
	for _, h := range slices.Concat(e.live[at], e.asked[at], e.reported[at]) {
		if h.guest != nil {
			return true // in use, or copied to another machine: that is reported as what it is
		}
	}
	return e.outlived[ref] // an instance that outlives its machine is still being stopped
}

// otherCluster says why the ledger's rows can't be looked up here: another cluster wrote them.
func (e *estate) otherCluster() string {
	for _, n := range e.Ledger.Networks {
		if n.Cluster != "" && e.Cluster != "" && n.Cluster != e.Cluster {
			return fmt.Sprintf("network %s of the ledger was written in the cluster with UID %s, this one has UID %s", n.Name, n.Cluster, e.Cluster)
		}
	}
	return ""
}

// expired finds rows whose cool-down is over and whose address nobody uses.
func expired(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for n := range e.Ledger.Entries {
		row := &e.Ledger.Entries[n]
		at := site{row.Network, row.Addr}
		if row.Err != nil || row.Row.State != ledger.Held || !e.Now.After(row.Row.Until) || len(e.live[at])+len(e.asked[at])+len(e.reported[at]) > 0 {
			continue
		}
		f := e.aboutRow(HeldExpired, row)
		f.Evidence = fmt.Sprintf("released by %s, cooled down until %s", row.Row.VM, moment(row.Row.Until))
		if p := e.Ledger.PoolOf(row.Network, row.Addr); p != nil {
			e.remedy(&f, CheckOf(HeldExpired).Remedy, "{pool}", p.Name)
		} else {
			e.remedy(&f, "kubectl vmip pool list")
		}
		found = append(found, f)
	}
	return found, nil
}

// outside finds reserved addresses that no pool of their network would give out any more.
func outside(e *estate) ([]Finding, []Skip) {
	var found []Finding
	var skipped []Skip
	unread := map[string]bool{}
	for n := range e.Ledger.Entries {
		row := &e.Ledger.Entries[n]
		if row.Err != nil || row.Row.State != ledger.Reserved {
			continue
		}
		why := fmt.Sprintf("no pool of network %s has the address", row.Network)
		for i := range e.pools {
			if p := &e.pools[i]; p.Network == row.Network && p.has(row.Addr) {
				why = ""
				if err := p.space.Check(row.Addr); err != nil {
					why = fmt.Sprintf("pool %s: %v", p.Name, err)
				}
				break
			}
		}
		if why == "" {
			continue
		}
		if !e.pooled(row) {
			if e.kept(row) {
				continue // its pool's object is gone: see poolChanges
			}
			if doubt := e.unreadPool(row); doubt != "" {
				unread[doubt] = true
				continue
			}
		}
		f := e.aboutRow(OutsidePool, row)
		f.Evidence = fmt.Sprintf("reserved since %s, %s", day(row.Row.Since), why)
		found = append(found, f)
	}
	for _, why := range slices.Sorted(maps.Keys(unread)) {
		skipped = append(skipped, Skip{[]Code{OutsidePool}, why})
	}
	return found, skipped
}

// secondLedgers finds ledgers beside the one that is audited, by their objects and by what
// machines say.
func secondLedgers(e *estate) ([]Finding, []Skip) {
	names := map[string][]string{}
	for _, ns := range e.OtherLedgers {
		names[ns] = nil
	}
	var machines = map[string][]machine.Ref{}
	for _, g := range e.machines {
		if g.said == nil || g.said.Ledger == "" || g.said.Ledger == e.LedgerNamespace {
			continue
		}
		names[g.said.Ledger] = append(names[g.said.Ledger], g.ref.String())
		machines[g.said.Ledger] = append(machines[g.said.Ledger], g.ref)
	}
	var found []Finding
	for ns, vms := range names {
		f := Finding{Code: SecondLedger, Subject: v1alpha1.Subject{Kind: "Namespace", Name: ns}, machines: machines[ns]}
		e.remedy(&f, CheckOf(SecondLedger).Remedy, "{ledger}", ns)
		switch {
		case len(vms) == 0:
			f.Evidence = fmt.Sprintf("namespace %s holds a ledger, this audit reads the one in %s", ns, e.LedgerNamespace)
		case len(vms) > 3:
			f.Evidence = fmt.Sprintf("%s and %d other virtual machines have their addresses in the ledger in namespace %s, this audit reads the one in %s", vms[0], len(vms)-1, ns, e.LedgerNamespace)
		default:
			f.Evidence = fmt.Sprintf("%s: addresses are in the ledger in namespace %s, this audit reads the one in %s", strings.Join(vms, ", "), ns, e.LedgerNamespace)
		}
		found = append(found, f)
	}
	return found, nil
}
