package audit

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// guest is one virtual machine, or an instance without one, as the rules see it.
type guest struct {
	*machine.View
	ref machine.Ref
	// said is what the machine's annotation says about its rows; copied is such an annotation that
	// names another machine's UID: a clone or a restore has brought it.
	said, copied *ledger.Reservations
	// unreadable is why that annotation can't be read.
	unreadable error
	current    *corev1.Pod
	nics       []*nic
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

// families are those in which an interface has an address reserved.
func (n *nic) families() []address.Family {
	return slices.DeleteFunc(slices.Clone(address.Families), func(f address.Family) bool { return n.reserved(f) == nil })
}
