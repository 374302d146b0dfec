package audit

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// object begins a finding on one of the ledger's ConfigMaps, with the code's remedy.
func (e *estate) object(code Code, kind, name, configmap, evidence string) Finding {
	f := Finding{Code: code, Subject: v1alpha1.Subject{Kind: kind, Namespace: e.LedgerNamespace, Name: name}, Evidence: evidence}
	e.remedy(&f, CheckOf(code).Remedy, "{configmap}", configmap, "{ledger}", e.LedgerNamespace)
	return f
}

// edit is the way out where no command repairs an object of the ledger.
func (e *estate) edit(f *Finding, configmap string) {
	e.remedy(f, "kubectl edit configmap {configmap} -n {ledger}", "{configmap}", configmap, "{ledger}", e.LedgerNamespace)
}

// corrupt finds rows and objects of the ledger that can't be read, except those of a newer format.
func corrupt(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for n := range e.Ledger.Entries {
		row := &e.Ledger.Entries[n]
		if row.Err == nil || e.newer(row.ConfigMap()) {
			continue
		}
		f := e.object(LedgerCorrupt, "Row", row.Key, row.ConfigMap(), fmt.Sprintf("row %s can't be read: %v", row.Key, row.Err))
		f.Network, f.Addr = row.Network, row.Addr
		found = append(found, f)
	}
	for _, d := range e.Ledger.Damaged {
		if !e.newer(d.ConfigMap) {
			found = append(found, e.object(LedgerCorrupt, "Ledger", d.ConfigMap, d.ConfigMap, fmt.Sprintf("configmap %s can't be read: %v", d.ConfigMap, d.Err)))
		}
	}
	return found, nil
}

// newer says that an object has another format than this version writes.
func (e *estate) newer(configmap string) bool { return listed(e.Ledger.Newer, configmap) }

// unclear says that an object is there, and what it says can't be relied on: no conclusion is
// drawn from it. It is reported as what it is.
func (e *estate) unclear(configmap string) bool {
	return listed(e.Ledger.Newer, configmap) || listed(e.Ledger.Damaged, configmap)
}

func listed(list []ledger.Damage, configmap string) bool {
	return slices.ContainsFunc(list, func(d ledger.Damage) bool { return d.ConfigMap == configmap })
}

// newerFormats finds objects that a newer version has written.
func newerFormats(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, d := range e.Ledger.Newer {
		found = append(found, e.object(NewerFormat, "Ledger", d.ConfigMap, d.ConfigMap, d.Err.Error()))
	}
	return found, nil
}

// ownerLabels finds rows that their owner's label does not lead to, and labels that lead nowhere.
func ownerLabels(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for n := range e.Ledger.Entries {
		row := &e.Ledger.Entries[n]
		if !row.Unindexed {
			continue
		}
		configmap, label := row.ConfigMap(), row.Row.Owner().Label()
		f := e.aboutRow(RowNotIndexed, row)
		f.Evidence = fmt.Sprintf("row %s is %s, and its configmap lacks the label %s that leads to it", row.Key, row.Row.State, label)
		e.remedy(&f, CheckOf(RowNotIndexed).Remedy, "{configmap}", configmap, "{ledger}", e.LedgerNamespace, "{label}", label)
		found = append(found, f)
	}
	for _, s := range e.Ledger.Strays {
		f := e.object(StrayOwnerLabel, "Ledger", s.ConfigMap, s.ConfigMap,
			fmt.Sprintf("configmap %s has the label %s, and no row of such an owner", s.ConfigMap, strings.Join(s.Labels, " and ")))
		e.remedy(&f, CheckOf(StrayOwnerLabel).Remedy, "{configmap}", s.ConfigMap, "{ledger}", e.LedgerNamespace, "{label}", strings.Join(s.Labels, "- "))
		if s.ResourceVersion != "" {
			f.Remedy += " --resource-version=" + s.ResourceVersion // a row may have come meanwhile
		}
		found = append(found, f)
	}
	return found, nil
}

// registry is that of a network; nil where there is none, or none that can be read.
func (e *estate) registry(name string) *ledger.Network {
	for n := range e.Ledger.Networks {
		if e.Ledger.Networks[n].Name == name {
			return &e.Ledger.Networks[n]
		}
	}
	return nil
}

// aboutPool begins a finding on a pool.
func (e *estate) aboutPool(code Code, p *ledger.Pool, evidence string) Finding {
	f := Finding{Code: code, Subject: v1alpha1.Subject{Kind: "Pool", Name: p.Name}, Network: p.Network, Evidence: evidence, namespaces: p.Namespaces}
	e.remedy(&f, CheckOf(code).Remedy, "{pool}", p.Name, "{configmap}", ledger.NetworkConfigMap(p.Network), "{ledger}", e.LedgerNamespace)
	return f
}

// unregistered finds pools whose CIDRs the registry of their network does not have. No command
// passes through such a state: a pool comes after its registry entry and goes before it.
func unregistered(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for n := range e.Ledger.Pools {
		p := &e.Ledger.Pools[n]
		registry := ledger.NetworkConfigMap(p.Network)
		if e.unclear(registry) || e.newer(ledger.PoolConfigMap(p.Name)) {
			continue
		}
		text := fmt.Sprintf("pool %s has %s in network %s, and ", p.Name, strings.Join(p.CIDRs, ","), p.Network)
		network := e.registry(p.Network)
		if network == nil {
			f := e.aboutPool(PoolUnregistered, p, text+"there is no configmap "+registry)
			e.again(&f, *p)
			found = append(found, f)
			continue
		}
		cidrs, there := network.Pools[p.Name]
		switch {
		case !there:
			f := e.aboutPool(PoolUnregistered, p, fmt.Sprintf("%sconfigmap %s does not have the pool", text, registry))
			e.again(&f, *p)
			found = append(found, f)
		case len(lacking(cidrs, p.CIDRs)) > 0:
			f := e.aboutPool(PoolUnregistered, p, fmt.Sprintf("%sconfigmap %s has it with %s: it should say %s", text, registry, cmp.Or(strings.Join(cidrs, ","), "no CIDR"), line(p)))
			e.edit(&f, registry)
			found = append(found, f)
		}
	}
	return found, nil
}

// line is a pool's line in a registry.
func line(p *ledger.Pool) string {
	quoted := make([]string, len(p.CIDRs))
	for n, c := range p.CIDRs {
		quoted[n] = `"` + c + `"` // an IPv6 prefix has colons
	}
	return p.Name + ": [" + strings.Join(quoted, ", ") + "]"
}

// again is the command that adds a pool that is there, or was: it writes what is missing of it.
func (e *estate) again(f *Finding, p ledger.Pool) {
	flags, ok := changes(ledger.Pool{Network: ledger.DefaultNetwork, Profile: ledger.ProfileAuto, HoldFor: ledger.DefaultHoldFor.String()}, p)
	if !ok {
		e.edit(f, ledger.NetworkConfigMap(p.Network))
		return
	}
	e.remedy(f, CheckOf(PoolUnregistered).Remedy+flags, "{pool}", p.Name)
}

// lacking are the wanted CIDRs that a list does not have.
func lacking(have, want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(c string) bool { return slices.Contains(have, c) })
}

// poolChanges finds changes of pools that died: announced and not in force, or begun or ended in
// the registry alone.
func poolChanges(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for n := range e.Ledger.Pools {
		p := &e.Ledger.Pools[n]
		if e.newer(ledger.PoolConfigMap(p.Name)) {
			continue
		}
		if c, ok := e.Ledger.Changes[p.Name]; ok && e.old(c.Announced) {
			found = append(found, e.announced(p, c.To))
		}
	}
	for n := range e.Ledger.Networks {
		network := &e.Ledger.Networks[n]
		if e.newer(ledger.NetworkConfigMap(network.Name)) || !e.old(network.Written) {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(network.Pools)) {
			if f := e.registered(network, name); f != nil {
				found = append(found, *f)
			}
		}
	}
	return found, nil
}

// announced is the finding of a change that is not in force.
func (e *estate) announced(p *ledger.Pool, to ledger.Pool) Finding {
	configmap := ledger.PoolConfigMap(p.Name)
	if len(to.CIDRs) == 0 {
		f := e.aboutPool(InterruptedPoolChange, p, fmt.Sprintf("the removal of pool %s (%s) is announced in configmap %s and was not finished: it hands out nothing", p.Name, strings.Join(p.CIDRs, ","), configmap))
		e.remedy(&f, "kubectl vmip pool remove {pool}", "{pool}", p.Name)
		return f
	}
	flags, ok := changes(*p, to)
	ok = ok && to.Network == p.Network
	f := e.aboutPool(InterruptedPoolChange, p, fmt.Sprintf("a change of pool %s to%s is announced in configmap %s and is not in force: only what both specifications allow is handed out", p.Name, cmp.Or(flags, " the same specification"), configmap))
	if !ok || flags == "" {
		e.edit(&f, configmap)
		return f
	}
	e.remedy(&f, CheckOf(InterruptedPoolChange).Remedy+flags, "{pool}", p.Name)
	return f
}

// changes are the flags that make one specification of a pool another. ok is false where no
// command would take them.
func changes(from, to ledger.Pool) (flags string, ok bool) {
	to.CIDRs, to.Ranges, to.Exclude, to.Gateways = slices.Clone(to.CIDRs), slices.Clone(to.Ranges), slices.Clone(to.Exclude), slices.Clone(to.Gateways)
	to, err := to.Normalise()
	if err != nil {
		return " what can't be understood (" + err.Error() + ")", false
	}
	for _, d := range []struct {
		flag     string
		from, to []string
	}{
		{"cidr", from.CIDRs, to.CIDRs}, {"range", from.Ranges, to.Ranges}, {"exclude", from.Exclude, to.Exclude},
		{"gateway", from.Gateways, to.Gateways}, {"for-namespace", from.Namespaces, to.Namespaces},
		{"network", []string{from.Network}, []string{to.Network}}, {"profile", []string{from.Profile}, []string{to.Profile}},
		{"attachment", []string{from.Attachment}, []string{to.Attachment}}, {"hold-for", []string{from.HoldFor}, []string{to.HoldFor}},
	} {
		if !slices.Equal(d.from, d.to) {
			flags += " --" + d.flag + "=" + strings.Join(d.to, ",")
		}
	}
	return flags, plain.MatchString(flags)
}

// plain are flags that a shell takes as they are.
var plain = regexp.MustCompile(`^[-A-Za-z0-9 =,.:/]*$`)

// registered is the finding of a registry entry that no pool, or not all of a pool, stands for;
// nil where all is well.
func (e *estate) registered(network *ledger.Network, name string) *Finding {
	registry := ledger.NetworkConfigMap(network.Name)
	cidrs := network.Pools[name]
	if e.unclear(ledger.PoolConfigMap(name)) {
		return nil
	}
	at := slices.IndexFunc(e.Ledger.Pools, func(p ledger.Pool) bool { return p.Name == name })
	if at >= 0 && e.Ledger.Pools[at].Network == network.Name {
		p := &e.Ledger.Pools[at]
		known := p.CIDRs
		if c, ok := e.Ledger.Changes[name]; ok {
			known = slices.Concat(known, c.To.CIDRs)
		}
		more := lacking(known, cidrs)
		if len(more) == 0 || len(lacking(cidrs, p.CIDRs)) > 0 {
			return nil // in step, or see unregistered
		}
		f := e.aboutPool(InterruptedPoolChange, p, fmt.Sprintf("configmap %s keeps %s for pool %s, which has %s and announces no change: it should say %s", registry, strings.Join(more, ","), name, strings.Join(p.CIDRs, ","), line(p)))
		e.edit(&f, registry)
		return &f
	}
	gone := ledger.Pool{Name: name, Network: network.Name, CIDRs: cidrs}
	f := e.aboutPool(InterruptedPoolChange, &gone, fmt.Sprintf("configmap %s has pool %s with %s, and ", registry, name, cmp.Or(strings.Join(cidrs, ","), "no CIDR")))
	inUse := slices.IndexFunc(e.Ledger.Entries, func(r ledger.Entry) bool { return r.Network == network.Name && gone.Contains(r.Addr) })
	switch {
	case at >= 0:
		f.Evidence += "the pool is in network " + e.Ledger.Pools[at].Network
		e.edit(&f, registry)
	case len(validation.IsDNS1123Label(name)) > 0:
		f.Evidence += "that is no name of a pool"
		e.edit(&f, registry)
	case inUse >= 0:
		f.Evidence += fmt.Sprintf("there is no such pool, though the ledger has row %s: its configmap was deleted", e.Ledger.Entries[inUse].Key)
		e.again(&f, gone)
	default:
		f.Evidence += "there is no such pool and no row of it: a command that adds or removes it died, and the CIDR is kept from other pools"
		e.remedy(&f, "kubectl vmip pool remove {pool}", "{pool}", name)
	}
	return &f
}

// unreadPool says that a pool which may have the address can't be read; "" where there is none.
func (e *estate) unreadPool(row *ledger.Entry) string {
	for _, d := range e.Ledger.Damaged {
		if d.Kind == ledger.KindPool && (d.Network == row.Network || d.Network == "") {
			return fmt.Sprintf("configmap %s can't be read, and may be the pool of addresses that no other pool has", d.ConfigMap)
		}
	}
	return ""
}

// kept says that the registry keeps the address for a pool that is not there: see poolChanges.
func (e *estate) kept(row *ledger.Entry) bool {
	network := e.registry(row.Network)
	if network == nil {
		return false
	}
	for name, cidrs := range network.Pools {
		there := slices.ContainsFunc(e.Ledger.Pools, func(p ledger.Pool) bool { return p.Name == name })
		if p := (ledger.Pool{CIDRs: cidrs}); !there && p.Contains(row.Addr) {
			return true
		}
	}
	return false
}

// twins finds interfaces with two reserved rows of a family, of which one at most is in effect.
func twins(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, vm := range slices.Sorted(maps.Keys(e.byVM)) {
		done := map[*ledger.Entry]bool{}
		for _, row := range e.byVM[vm] {
			if done[row] {
				continue
			}
			all := e.siblings(row)
			for _, r := range all {
				done[r] = true
			}
			if len(all) < 2 || slices.ContainsFunc(all, func(r *ledger.Entry) bool { return !e.old(r.Row.Since) }) {
				continue
			}
			if uid := e.uidOf(row); uid != "" && e.index.VM(uid) == nil {
				continue // both are orphans
			}
			found = append(found, e.twin(all))
		}
	}
	return found, nil
}

// uidOf is whose row it is: one that was written before its machine is the present machine's.
func (e *estate) uidOf(row *ledger.Entry) types.UID {
	if g := e.guestOfRow(row); row.Row.UID == "" && g != nil && g.VM != nil {
		return g.VM.UID
	}
	return row.Row.UID
}

// siblings are the reserved rows of a row's owner interface and family, if it is one of them.
func (e *estate) siblings(row *ledger.Entry) (all []*ledger.Entry) {
	if row.Row.State != ledger.Reserved {
		return nil
	}
	for _, r := range e.byVM[row.Row.VM] {
		if r.Row.State == ledger.Reserved && r.Row.Interface == row.Row.Interface && r.Family() == row.Family() && e.uidOf(r) == e.uidOf(row) {
			all = append(all, r)
		}
	}
	return all
}

// twin is the finding of rows that are one too many. It is about the one that the machine does not
// name, or about the last one.
func (e *estate) twin(all []*ledger.Entry) Finding {
	o, g := all[0].Row.Owner(), e.guestOfRow(all[0])
	var texts []string
	extra := all[len(all)-1]
	for _, r := range all {
		text := fmt.Sprintf("%s since %s", r.Key, day(r.Row.Since))
		if g != nil && g.said.Names(o.Interface, r.Addr) {
			text += " (which the virtual machine names)"
		} else {
			extra = r
		}
		texts = append(texts, text)
	}
	f := e.aboutRow(DuplicateReservation, extra)
	f.Evidence = fmt.Sprintf("interface %s has %d reserved %s rows: %s", o.Interface, len(all), extra.Family(), strings.Join(texts, "; "))
	if g == nil || g.VM == nil {
		e.edit(&f, extra.ConfigMap()) // commands choose between them by what a machine names
		return f
	}
	e.remedy(&f, CheckOf(DuplicateReservation).Remedy, "{interface}", o.Interface)
	return f
}
