package rollout

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
)

// Verb is what an operation does.
type Verb string

// The verbs.
const (
	VerbRestart Verb = "restart"
	VerbMigrate Verb = "migrate"
)

// Past is the participle that a command prints when it is done.
func (v Verb) Past() string { return strings.TrimSuffix(string(v), "e") + "ed" }

// Doing is the participle that a command prints while it works.
func (v Verb) Doing() string { return strings.TrimSuffix(string(v), "e") + "ing" }

// Plan is what an operation is going to do to one machine, and from which state.
type Plan struct {
	Verb Verb
	Ref  machine.Ref
	// VM and Instance are the UIDs that the plan is about: an operation that finds others
	// changes nothing.
	VM, Instance types.UID
	// Node and Pod carry the machine now.
	Node, Pod string
	// Before are the addresses that the pod has now on interfaces with reservations.
	Before []netip.Addr
	// Expect is what the operation has to end with.
	Expect []Expectation
	// Agent is set where the guest is known to run an agent.
	Agent bool
	// ToNode is the only node allowed as a target; empty: any.
	ToNode string
	// Resume is the migration object of an earlier run that this one goes on with. Joins says
	// that a restart is under way, an earlier run's or somebody else's, which is watched and
	// verified instead of requesting another.
	Resume string
	Joins  bool
	// Verdicts of preflight: refusals and warnings.
	Verdicts []preflight.Verdict
	// Made is when the facts were read.
	Made time.Time
}

// Refused says whether preflight stands in the way.
func (p Plan) Refused() bool { return preflight.Refused(p.Verdicts) }

// Unverified says whether something that matters could not be established, so that the user has
// to consent.
func (p Plan) Unverified() bool {
	return slices.ContainsFunc(p.Verdicts, func(v preflight.Verdict) bool { return v.Severity == preflight.Unverified })
}

// Step is one line of a plan.
type Step struct{ Action, Object, Value string }

// Steps lists what is going to happen, for --dry-run.
func (p Plan) Steps() []Step {
	vmi := fmt.Sprintf("virtualmachineinstance/%s", p.Ref.Name)
	want := p.reserved()
	if p.Verb == VerbMigrate {
		value := "to any other node that fits"
		if p.ToNode != "" {
			value = "kubernetes.io/hostname=" + p.ToNode
		}
		create := Step{"create", "virtualmachineinstancemigration", value}
		if p.Resume != "" {
			create = Step{"go on with", "virtualmachineinstancemigration/" + p.Resume, "created by an earlier run"}
		}
		return []Step{
			create,
			{"watch", "target pod", "abort before the hand-over unless it gets " + want + " on a node other than " + p.Node},
			{"watch", vmi, "leaves " + p.Node + " (pod " + p.Pod + ")"},
			{"verify", "target pod", want + ", one owner, source pod finished"},
		}
	}
	request := Step{"restart", "virtualmachine/" + p.Ref.Name, "with the guest's own grace period"}
	if p.Joins {
		request = Step{"join", "virtualmachine/" + p.Ref.Name, "its restart is under way already"}
	}
	return []Step{
		request,
		{"watch", vmi, "UID " + string(p.Instance) + " goes with pod " + p.Pod + " on " + p.Node + ", a new one starts"},
		{"verify", "new pod", want + " (now " + list(p.Before) + ")"},
		{"settle", "ledger", "rows that the machine has left turn held"},
	}
}

// reserved lists the addresses that the plan expects.
func (p Plan) reserved() string {
	var said []string
	for _, e := range p.Expect {
		text := list(e.Addresses) + " on " + e.Interface.Name
		if e.MAC != "" {
			text += " with MAC " + e.MAC
		}
		said = append(said, text)
	}
	if len(said) == 0 {
		return "any address (nothing is reserved)"
	}
	return strings.Join(said, ", ")
}

// After lists the addresses that the machine has once the plan is verified.
func (p Plan) After() []string {
	var out []string
	for _, e := range p.Expect {
		out = append(out, texts(e.Addresses)...)
	}
	return out
}

func list(addrs []netip.Addr) string {
	if len(addrs) == 0 {
		return "none"
	}
	return strings.Join(texts(addrs), ",")
}

func texts(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}
