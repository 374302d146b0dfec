package audit

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
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

// guest is one virtual machine, or an instance without one, as the rules see it.
type guest struct {
	*machine.View
	ref machine.Ref
	// said is what the machine's annotation says about its rows; copied is such an annotation that
	// names another machine's UID: a clone or a restore has brought it.
	said, copied *ledger.Reservations
	current      *corev1.Pod
	nics         []*nic
}

// nic is one interface of a guest.
type nic struct {
	guest *guest
	// Interface is the template's; running is the instance's, valid where runs is set.
	machine.Interface
	running machine.Interface
	runs    bool
	plugin  Plugin
	// template and instance are what their annotations ask for, malformed where they can't be read.
	template, instance []netip.Addr
	malformed          error
	// pod is what the current pod has, podKnown whether it tells.
	pod      []netip.Addr
	podKnown bool
	// rows are the machine's own rows of the interface, of its UID or of none.
	rows []*ledger.Entry
}

// holder is one owner that has an address, or asks for one.
type holder struct {
	// key tells owners apart.
	key string
	// text is how evidence names what holds the address: "pod a/b of virtualmachine a/c".
	text  string
	guest *guest
	nic   *nic
	pod   *corev1.Pod
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
		if said, err := ledger.ReservationsOf(v.VM.Annotations); err == nil && said != nil {
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

// findUsers notes which addresses pods have, guests report and templates ask for.
func (e *estate) findUsers() {
	for n := range e.Pods {
		e.addPod(&e.Pods[n])
	}
	for _, g := range e.machines {
		for _, n := range g.nics {
			if g.VM != nil && !n.Absent {
				for _, a := range n.template {
					e.note(e.asked, n, a, holder{key: g.key(), text: "the template of virtualmachine " + g.ref.String(), guest: g, nic: n})
				}
			}
			if g.VMI == nil || !n.runs || g.VMI.IsFinal() || g.Migrating() {
				continue
			}
			for _, a := range machine.GuestAddresses(g.VMI, n.running) {
				e.note(e.reported, n, a, holder{key: g.key(), text: "the guest of " + g.String(), guest: g, nic: n})
			}
		}
	}
}

// addPod notes the addresses of one pod under its owner: the machine for all of KubeVirt's pods,
// the pod itself for others.
func (e *estate) addPod(p *corev1.Pod) {
	if machine.Finished(p) || p.Spec.HostNetwork {
		return
	}
	name := "pod " + p.Namespace + "/" + p.Name
	if p.Spec.NodeName != "" {
		name += " on " + p.Spec.NodeName
	}
	g := e.guestOf(p)
	if g == nil {
		e.addPrimary(p, holder{key: "pod " + p.Namespace + "/" + p.Name, text: name, pod: p})
		return
	}
	if e.index.Role(p) == machine.Attachment {
		// It has an address of its own, which the guest never sees.
		e.addPrimary(p, holder{key: g.key(), text: name + " of " + g.String(), guest: g, pod: p})
		return
	}
	for _, n := range g.nics {
		if !n.runs {
			continue
		}
		addrs, known := machine.PodAddresses(p, n.running)
		if !known {
			continue
		}
		for _, a := range addrs {
			e.notePod(n, p, a, holder{key: g.key(), text: name + " of " + g.String(), guest: g, nic: n, pod: p})
		}
	}
}

// addPrimary notes the addresses that a pod has on the pod network.
func (e *estate) addPrimary(p *corev1.Pod, h holder) {
	addrs, known := machine.PodAddresses(p, machine.Interface{Pod: true})
	if !known {
		return
	}
	for _, a := range addrs {
		if domain, ok := e.domain(p.Namespace, "", podHint(p), a); ok {
			at := site{domain, a}
			e.live[at] = append(e.live[at], h)
		}
	}
}

// guestOf resolves a pod to its guest, by UIDs. A launcher pod whose instance is not in the
// snapshot was started, or is ending, while the snapshot was taken: it counts as the machine's of
// its instance's name, since taking it for a stranger would be a false alarm.
func (e *estate) guestOf(p *corev1.Pod) *guest {
	vmi, _, ok := e.index.Owner(p)
	if ok {
		return e.byUID[vmi.UID]
	}
	if o := metav1.GetControllerOf(p); o != nil && o.Kind == "VirtualMachineInstance" {
		return e.byRef[machine.Ref{Namespace: p.Namespace, Name: o.Name}]
	}
	return nil
}

func (e *estate) note(index map[site][]holder, n *nic, a netip.Addr, h holder) {
	if domain, ok := e.domainOf(n, "", a); ok {
		at := site{domain, a}
		index[at] = append(index[at], h)
	}
}

func (e *estate) notePod(n *nic, p *corev1.Pod, a netip.Addr, h holder) {
	if domain, ok := e.domainOf(n, podHint(p), a); ok {
		at := site{domain, a}
		e.live[at] = append(e.live[at], h)
	}
}

// key tells the owners of addresses apart. Pods were resolved to guests by UIDs; an instance that
// outlives its machine, and the machine that was made again under its name, are one owner here.
func (g *guest) key() string { return g.ref.String() }

func (g *guest) String() string {
	if g.VM == nil {
		return "virtualmachineinstance " + g.ref.String()
	}
	return "virtualmachine " + g.ref.String()
}

// reserved is the row that an interface has to have in effect in a family: the one that the
// machine names, else the only one. nil where there is none, or where it can't be told.
func (n *nic) reserved(f address.Family) *ledger.Entry {
	var only *ledger.Entry
	count := 0
	for _, row := range n.rows {
		if row.Row.State != ledger.Reserved || row.Family() != f {
			continue
		}
		if n.guest.said.Names(n.Name, row.Addr) {
			return row
		}
		only = row
		count++
	}
	if count == 1 {
		return only
	}
	return nil
}

// stated is the machine's annotation, its own or a copied one.
func (g *guest) stated() ledger.Reservations {
	switch {
	case g.said != nil:
		return *g.said
	case g.copied != nil:
		return *g.copied
	}
	return ledger.Reservations{}
}

// carries says whether annotations have all of the wanted ones, of which there is one at least.
func carries(annotations, wanted map[string]string) bool {
	for k, v := range wanted {
		if annotations[k] != v {
			return false
		}
	}
	return len(wanted) > 0
}

// recorded are the template annotations that the machine says its reservation has put there.
func (n *nic) recorded(a netip.Addr) map[string]string {
	if !n.guest.said.Names(n.Name, a) {
		return nil
	}
	return n.guest.said.Interfaces[n.Name].Annotations
}

// asks says whether annotations make the network give the interface an address. known is false
// where nothing tells: no plugin was established and the machine has not recorded its annotations.
func (n *nic) asks(annotations map[string]string, claims []netip.Addr, a netip.Addr) (yes, known bool) {
	if slices.Contains(claims, a) {
		return true, true
	}
	if recorded := n.recorded(a); len(recorded) > 0 {
		return carries(annotations, recorded), true
	}
	return false, n.plugin != nil && n.malformed == nil && len(n.plugin.Keys(n.Interface)) > 0
}

func (n *nic) templateAsks(a netip.Addr) (yes, known bool) {
	if n.guest.VM == nil || n.guest.VM.Spec.Template == nil {
		return false, false
	}
	return n.asks(n.guest.VM.Spec.Template.ObjectMeta.Annotations, n.template, a)
}

func (n *nic) instanceAsks(a netip.Addr) (yes, known bool) {
	if n.guest.VMI == nil {
		return false, false
	}
	return n.asks(n.guest.VMI.Annotations, n.instance, a)
}

// lacks names what annotations don't have that would make them ask for the address.
func (n *nic) lacks(annotations map[string]string, a netip.Addr) string {
	var words []string
	for k, v := range n.recorded(a) {
		if annotations[k] != v {
			words = append(words, difference(annotations, k, v))
		}
	}
	if len(words) == 0 && n.plugin != nil {
		keys := n.plugin.Keys(n.Interface)
		at := slices.IndexFunc(keys, func(k string) bool { return hasKey(annotations, k) })
		if _, any := n.plugin.(anyPlugin); any && at < 0 {
			return "has no annotation that asks for an address"
		}
		if len(keys) > 0 {
			words = append(words, difference(annotations, keys[max(at, 0)], ""))
		}
	}
	if len(words) == 0 {
		return "does not ask for it"
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

func difference(annotations map[string]string, key, want string) string {
	value, there := annotations[key]
	switch {
	case !there:
		return "lacks " + key
	case want == "":
		return fmt.Sprintf("has %s=%s", key, value)
	}
	return fmt.Sprintf("has %s=%s, not %s", key, value, want)
}

// started says that the guest runs, or is on its way to: not one that has ended or is being
// deleted.
func (g *guest) started() bool {
	return g.VMI != nil && !g.VMI.IsFinal() && g.VMI.DeletionTimestamp == nil
}

// family returns the addresses of one family.
func family(all []netip.Addr, f address.Family) []netip.Addr {
	var some []netip.Addr
	for _, a := range all {
		if address.FamilyOf(a) == f && !a.IsLinkLocalUnicast() {
			some = append(some, a)
		}
	}
	return some
}

// born is when the guest's object was made: of two that have the same, the younger is the copy.
func (g *guest) born() time.Time {
	if g.VM != nil {
		return g.VM.CreationTimestamp.Time
	}
	return g.VMI.CreationTimestamp.Time
}
