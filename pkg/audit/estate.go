package audit

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// site is one address in one domain of uniqueness.
type site struct {
	domain string
	addr   netip.Addr
}

// estate is a snapshot with the indexes that the rules share. Each of its parts is built in one
// pass over the objects.
type estate struct {
	*Snapshot
	opts  Options
	index *machine.Index
	pools []pool
	// rows are all rows of the ledger by domain and address, foreign and damaged ones among them.
	rows map[site]*ledger.Entry
	// loose are the networks of rows that no pool has the address of: a pool that can't be read, for
	// example, whose rows count all the same.
	loose map[netip.Addr][]string
	// byVM are the rows that name a machine ("namespace/name"), foreign ones apart.
	byVM map[string][]*ledger.Entry
	// machines are the virtual machines and, after them, the instances that no machine owns.
	machines []*guest
	byRef    map[machine.Ref]*guest
	byUID    map[types.UID]*guest
	// outlived are instances that run without a machine of their own.
	outlived map[machine.Ref]bool
	// live is who has an address now; asked is which templates ask for it.
	live  map[site][]holder
	asked map[site][]holder
	// reported are guests' own reports of addresses.
	reported map[site][]holder
}

func newEstate(s *Snapshot, opts Options) *estate {
	if s.Ledger == nil {
		empty := *s
		empty.Ledger = &ledger.Snapshot{}
		s = &empty
	}
	e := &estate{
		Snapshot: s, opts: opts,
		index: machine.NewIndex(s.VMs, s.VMIs, s.Pods, s.Migrations),
		rows:  map[site]*ledger.Entry{}, loose: map[netip.Addr][]string{}, byVM: map[string][]*ledger.Entry{},
		byRef: map[machine.Ref]*guest{}, byUID: map[types.UID]*guest{}, outlived: map[machine.Ref]bool{},
		live: map[site][]holder{}, asked: map[site][]holder{}, reported: map[site][]holder{},
	}
	e.pools = newPools(s.Ledger.Pools)
	for n := range s.Ledger.Entries {
		row := &s.Ledger.Entries[n]
		if row.Addr.IsValid() {
			e.rows[site{row.Network, row.Addr}] = row
			if !e.pooled(row) {
				e.loose[row.Addr] = append(e.loose[row.Addr], row.Network)
			}
		}
		if row.Err == nil && row.Row.State != ledger.Foreign {
			e.byVM[row.Row.VM] = append(e.byVM[row.Row.VM], row)
		}
	}
	for _, ref := range e.index.Refs() {
		v, _ := e.index.View(ref)
		e.add(v)
	}
	for _, vmi := range e.index.Bare() {
		e.add(e.index.InstanceView(vmi))
		if !vmi.IsFinal() {
			e.outlived[machine.Ref{Namespace: vmi.Namespace, Name: vmi.Name}] = true
		}
	}
	e.findUsers()
	return e
}

func (e *estate) pooled(row *ledger.Entry) bool {
	return slices.ContainsFunc(e.pools, func(p pool) bool { return p.Network == row.Network && p.has(row.Addr) })
}

func (e *estate) add(v *machine.View) {
	g := &guest{View: v, ref: v.Ref(), current: v.CurrentPod()}
	e.machines = append(e.machines, g)
	if v.VM != nil {
		e.byRef[g.ref], e.byUID[v.VM.UID] = g, g
		said, err := ledger.ReservationsOf(v.VM.Annotations)
		if g.unreadable = err; said != nil {
			g.copied = said
			if said.UID == v.VM.UID {
				g.said, g.copied = said, nil
			}
		}
	}
	if v.VMI != nil {
		e.byUID[v.VMI.UID] = g
	}
	running := v.RunningInterfaces()
	for _, i := range v.Interfaces() {
		e.addNIC(g, i, running, true)
	}
	for _, r := range running {
		// An interface that is not in the template (any more), or whose machine has no template.
		if !slices.ContainsFunc(g.nics, func(n *nic) bool { return n.Name == r.Name }) {
			e.addNIC(g, r, running, false)
		}
	}
}

// addNIC adds an interface; planned says that the template has it.
func (e *estate) addNIC(g *guest, i machine.Interface, running []machine.Interface, planned bool) {
	n := &nic{guest: g, Interface: i}
	g.nics = append(g.nics, n)
	if at := slices.IndexFunc(running, func(r machine.Interface) bool { return r.Name == i.Name }); at >= 0 {
		n.running, n.runs = running[at], true
	}
	for _, row := range e.byVM[g.ref.String()] {
		if row.Row.Interface == i.Name && g.VM != nil && (row.Row.UID == g.VM.UID || row.Row.UID == "") {
			n.rows = append(n.rows, row)
		}
	}
	n.plugin = e.Networks.of(i)
	if p := e.forced(n); p != nil {
		n.plugin = p
	}
	if planned {
		annotations := g.VM.Spec.Template.ObjectMeta.Annotations
		if n.plugin != nil {
			n.template, n.malformed = n.plugin.Claims(annotations, i)
		} else if r, ok := g.stated().Interfaces[i.Name]; ok && carries(annotations, r.Annotations) {
			n.template = r.Addrs() // whosever the annotation is: a clone's template asks as its source's does
		}
	}
	if n.plugin != nil && g.VMI != nil && n.runs {
		n.instance, _ = n.plugin.Claims(g.VMI.Annotations, n.running)
	}
	if g.current != nil && n.runs {
		n.pod, n.podKnown = machine.PodAddresses(g.current, n.running)
	}
}

// forced is the plugin that the pool of an interface's reservation names, nil where it leaves it
// to what was detected.
func (e *estate) forced(n *nic) Plugin {
	for _, row := range n.rows {
		if row.Row.State != ledger.Reserved {
			continue
		}
		for _, p := range e.pools {
			if p.Network == row.Network && p.has(row.Addr) && p.Profile != "" && p.Profile != ledger.ProfileAuto {
				return e.Networks.Named[p.Profile]
			}
		}
	}
	return nil
}
