package audit

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Resource is something that a snapshot is made of.
type Resource string

// The resources of a snapshot, as they are named in reasons.
const (
	Ledger     Resource = "the ledger"
	Ledgers    Resource = "ledgers in other namespaces"
	VMs        Resource = "virtualmachines"
	VMIs       Resource = "virtualmachineinstances"
	Migrations Resource = "virtualmachineinstancemigrations"
	Restores   Resource = "virtualmachinerestores"
	Pods       Resource = "pods"
	Nodes      Resource = "nodes"
	Plugins    Resource = "the network plugin"
	// Services and Records are read only where claims of others are looked for.
	Services Resource = "services"
	Records  Resource = "records of the network plugin"
)

// Gap says why a resource is missing from a snapshot, or is there for one namespace only.
type Gap struct {
	// Partial is set where the objects of the audited namespace are there.
	Partial bool
	Reason  string
}

// Snapshot is the state of a cluster as the rules see it. The ledger is read first: a row that is
// written while the rest is read is then missing, and a missing row raises no alarm that reading
// again would not clear.
type Snapshot struct {
	// Now is the API server's time, or when the dump was made.
	Now time.Time
	// Cluster is the UID of the kube-system namespace, "" where unknown.
	Cluster types.UID

	Ledger          *ledger.Snapshot
	LedgerNamespace string
	// OtherLedgers are further namespaces that hold a ledger.
	OtherLedgers []string

	VMs        []kubevirtv1.VirtualMachine
	VMIs       []kubevirtv1.VirtualMachineInstance
	Migrations []kubevirtv1.VirtualMachineInstanceMigration
	Pods       []corev1.Pod
	Nodes      []corev1.Node
	// Services and Held are set where claims of others are looked for.
	Services []corev1.Service
	Held     []Held
	// Restoring are the virtual machines that a restore in progress is to bring back.
	Restoring []machine.Ref
	Networks  Networks

	// Complete says whether all virtual machines of a namespace are in VMs; nil means all are.
	// Only then is a missing one proof that it is gone.
	Complete func(namespace string) bool
	// Unordered says that the ledger may have been read after the rest, as in a dump: rows that are
	// younger than the grace time prove nothing then.
	Unordered bool
	// Gaps are the resources that could not be read.
	Gaps map[Resource]Gap
}

// Options of the rules.
type Options struct {
	// Namespace bounds the virtual machines that are judged; "" judges all.
	Namespace string
	// Grace is how long a state may last that commands and controllers pass through. Zero means
	// DefaultGrace.
	Grace time.Duration
}

// DefaultGrace is longer than a command takes from its first write to its last (an API server gives
// a request up within a minute), and than a launcher pod takes to end after a migration.
const DefaultGrace = time.Minute

func (o Options) grace() time.Duration {
	if o.Grace > 0 {
		return o.Grace
	}
	return DefaultGrace
}

func (s *Snapshot) complete(namespace string) bool {
	return s.Complete == nil || s.Complete(namespace)
}
