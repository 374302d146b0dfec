// Package preflight holds the rules that decide whether an operation on a virtual machine may begin.
// They are pure: facts in, verdicts out. Each rule is written once; reserve, restart, migrate and
// audit are compositions of them.
package preflight

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Severity is what a verdict means for the operation.
type Severity string

// The severities, the gravest first.
const (
	// Refuse: the operation would fail or lose the address.
	Refuse Severity = "Refuse"
	// Unverified: something that matters could not be established. It needs the user's consent.
	Unverified Severity = "Unverified"
	// Warn: the operation may go on, and something needs care.
	Warn Severity = "Warn"
	// Info: worth knowing.
	Info Severity = "Info"
)

var severities = []Severity{Refuse, Unverified, Warn, Info}

// Verdict is what a rule says. Codes are a contract: they are never renamed.
type Verdict struct {
	Code     string
	Severity Severity
	// Object is "virtualmachine namespace/name".
	Object string
	// Interface is the interface that it is about, "" for the whole machine.
	Interface string
	// Message is one sentence of evidence with the values that were compared.
	Message string
	// Remedy is a command line or a sentence that says what to do, "" where nothing can be done.
	Remedy string
}

// Interface is one interface with what was found out about its network and its reservation.
type Interface struct {
	machine.Interface
	// Profile and Version name what serves the network.
	Profile, Version string
	Capabilities     profile.Capabilities
	// Keys are the annotations that the plugin reads for the interface.
	Keys []string
	// Want are the addresses that are asked for, for a reservation; where they are chosen
	// automatically, only the number of families is known.
	Want     []netip.Addr
	Families int
	// Rows are the ledger's rows of the interface.
	Rows []ledger.Entry
	// Annotations are what the reservation put on the template: Reservation.Annotations.
	Annotations map[string]string
	// Asked are the addresses that the running instance's annotations ask for, and AskedErr why
	// they can't be read. Next and NextErr are the same of the template.
	Asked, Next       []netip.Addr
	AskedErr, NextErr error
	// Records are the plugin's own, and RecordsErr why they could not be read. Nil for an operation
	// that does not need them.
	Records    []profile.Record
	RecordsErr error
	// Uses are others that have a wanted or reserved address.
	Uses []Use
	// RenderErr is why the plugin can't be asked for the reserved addresses.
	RenderErr error
}

// Use is an address in somebody else's hands.
type Use struct {
	Addr netip.Addr
	// By names the user: "pod kube-system/x", or what a profile's InUse says.
	By string
}

// Facts are everything that the rules look at. Fields that an operation did not read stay empty;
// a failed read has an error of its own and is never taken for an empty answer.
type Facts struct {
	View *machine.View
	// Interfaces are those that the operation is about: the one to reserve for, or all that have
	// reservations.
	Interfaces []Interface
	// Neighbours are the machine's other interfaces; of them only names, profiles and keys matter.
	Neighbours []Interface
	// Nodes are the nodes of the cluster, for a restart at least those of the machine's pods;
	// NodesErr says why they could not be read.
	Nodes    []corev1.Node
	NodesErr error
	// NodeFenced is the user's word that an unreachable node no longer runs anything.
	NodeFenced bool
	// ToNode is the node that a migration is meant for, "" for any.
	ToNode string
}

// NewInterface collects what a profile says about an interface and its reservation. It is pure;
// what has to be read (Rows, Records, Uses, Want) is for the caller to add.
func NewInterface(v *machine.View, i machine.Interface, p profile.Profile) Interface {
	f := Interface{Interface: i, Profile: p.Name(), Version: p.Version(), Capabilities: p.Capabilities(i), Keys: p.Keys(i)}
	if v.VM != nil && v.VM.Spec.Template != nil {
		f.Next, f.NextErr = p.Claims(v.VM.Spec.Template.ObjectMeta.Annotations, i)
	}
	if v.VMI != nil {
		f.Asked, f.AskedErr = p.Claims(v.VMI.Annotations, i)
	}
	return f
}

// Reserved returns the addresses that the ledger has for the interface.
func (i Interface) Reserved() []netip.Addr { return i.inState(ledger.Reserved) }

// Leaving returns the addresses that the interface is moving away from.
func (i Interface) Leaving() []netip.Addr { return i.inState(ledger.Leaving) }

func (i Interface) inState(s ledger.State) []netip.Addr {
	var addrs []netip.Addr
	for _, e := range i.Rows {
		if e.Err == nil && e.Row.State == s {
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// Rule looks at facts and says what it finds; nothing where all is well.
type Rule func(*Facts) []Verdict

// run applies rules and orders what they find: the gravest first, otherwise as the rules stand.
// Of an instance without a machine nothing else is worth saying.
func run(f *Facts, rules ...Rule) []Verdict {
	if list := NotPersistent(f); len(list) > 0 {
		return list
	}
	var list []Verdict
	for _, rule := range rules {
		list = append(list, rule(f)...)
	}
	slices.SortStableFunc(list, func(a, b Verdict) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
	return list
}

// Reserve says whether an address may be reserved for the interfaces.
func Reserve(f Facts) []Verdict {
	return run(&f, PoolOwned, CannotChoose, TooManyAddresses, DualStack, SharedKeys,
		StickyOverRestart, MigrationLater, GuestStatic, RecordWins, InUse,
		MACNotPinned, IPv6NotDelivered, BehindNAT, ManagedByGitOps)
}

// Restart says whether the machine may be restarted so that its interfaces have their reserved
// addresses afterwards.
func Restart(f Facts) []Verdict {
	return run(&f, NotStarted, RunStrategy, StateChange, MigrationInFlight, NodeUnreachable,
		TemplateMissing, AddressNotServed, StickyOverRestart, SharedKeys, RecordWins, InUse, PausedGuest, MACNotPinned)
}

// Migrate says whether the machine may be live-migrated with its addresses. It looks at the running
// instance: that is what the target pod is made from.
func Migrate(f Facts) []Verdict {
	return run(&f, NotRunning, StateChange, MigrationInFlight, Evacuation, StrayTarget,
		NodeUnreachable, LiveMigratable, BridgeOptIn, StickyOverMigration, PendingChange, NoTarget,
		PausedGuest, MACNotPinned)
}

// Refused says whether any verdict stands in the way.
func Refused(list []Verdict) bool {
	return slices.ContainsFunc(list, func(v Verdict) bool { return v.Severity == Refuse })
}
