// Package ledger records which interface of which virtual machine owns which IP address. It is
// kept in ConfigMaps of one namespace; docs/design/ledger.md describes format and protocol.
package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// Names and keys of the ledger's objects: a contract, see docs/design/ledger.md.
const (
	// Format is the version of the objects that this package writes. Objects of another version
	// are read as far as possible and never written.
	Format           = "v1alpha1"
	DefaultNamespace = "vmip-system"
	DefaultNetwork   = "default"
	DefaultInterface = "default"
	FieldManager     = "kubectl-vmip"

	AnnotationFormat = "vmip.io/format"
	AnnotationFence  = "vmip.io/fence"
	LabelKind        = "vmip.io/kind"
	LabelNetwork     = "vmip.io/network"
	LabelPool        = "vmip.io/pool"
	LabelOwner       = "owner.vmip.io/"

	KindNetwork = "network"
	KindPool    = "pool"
	KindBlock   = "block"
)

// State is the state of a row.
type State string

// The states; docs/design/ledger.md has the transitions.
const (
	Reserved  State = "reserved"  // the interface's address
	Leaving   State = "leaving"   // the owner is moving to another address and may still run on this one
	Releasing State = "releasing" // being taken away; only its owner may turn it back
	Held      State = "held"      // released and cooling down; its last owner may take it back at any time
	Foreign   State = "foreign"   // claimed by something that is no reservation
)

// States lists all states.
var States = []State{Reserved, Leaving, Releasing, Held, Foreign}

// Owner is one interface of one virtual machine. UID decides; the names are for people. UID is
// empty for a machine that does not exist yet.
type Owner struct {
	Namespace, Name string
	UID             types.UID
	Interface       string
}

// VM is the "namespace/name" of the owner's virtual machine.
func (o Owner) VM() string { return o.Namespace + "/" + o.Name }

func (o Owner) String() string { return o.VM() + " interface " + o.Interface }

// Label is the key under which a block lists the owner: an index, so that one LIST finds the
// owner's rows wherever they are.
func (o Owner) Label() string {
	sum := sha256.Sum256([]byte(o.Namespace + "/" + o.Name + "/" + o.Interface))
	return LabelOwner + hex.EncodeToString(sum[:])[:32]
}

// Row is the claim on one address. The zero Row means "free".
type Row struct {
	// VM is "namespace/name" of the owner; for foreign rows the object that claims the address.
	VM        string
	UID       types.UID
	Interface string
	MAC       string
	State     State
	// Op identifies the operation that wrote the row: a ULID, compared for equality only.
	Op    string
	Since time.Time
	// Until is when a held row becomes free.
	Until time.Time
	// Replaces is the address that the owner is moving away from.
	Replaces string
	// Reason says where a foreign claim was seen.
	Reason string
	extra  extra
}

// extra are the fields of newer versions: what is rewritten keeps them.
type extra map[string]json.RawMessage

// Owner returns the interface that the row names.
func (r Row) Owner() Owner {
	o := Owner{UID: r.UID, Interface: r.Interface}
	o.Namespace, o.Name = splitVM(r.VM)
	return o
}

// Names says whether the row names that machine and interface, whatever its UID.
func (r Row) Names(o Owner) bool { return r.VM == o.VM() && r.Interface == o.Interface }

// Entry is a row where it stands. A row that can't be parsed has Err and Raw, and counts as taken.
type Entry struct {
	Network string
	Addr    netip.Addr
	Key     string
	Row     Row
	Raw     string
	Err     error
	// Unindexed says that the block lacks the owner's label, by which the row is found. Only a
	// snapshot tells.
	Unindexed bool
}

func (e Entry) String() string {
	if e.Err != nil {
		return fmt.Sprintf("damaged row %q: %v", e.Key, e.Err)
	}
	return fmt.Sprintf("%s %s by %s", e.Addr, e.Row.State, e.Row.VM)
}

// Family is the family of the row's address.
func (e Entry) Family() address.Family { return address.FamilyOf(e.Addr) }

// Pool is what `pool add` writes: the addresses, who may have them and how they are handed out.
type Pool struct {
	Name string `json:"-"`
	// Network is the domain in which an address is unique.
	Network    string   `json:"network"`
	CIDRs      []string `json:"cidrs"`
	Ranges     []string `json:"ranges,omitempty"`
	Exclude    []string `json:"exclude,omitempty"`
	Gateways   []string `json:"gateways,omitempty"`
	Profile    string   `json:"profile,omitempty"`
	Attachment string   `json:"attachment,omitempty"`
	// Namespaces may reserve from the pool; empty means all.
	Namespaces []string `json:"namespaces,omitempty"`
	// HoldFor is the cool-down of a released address, a Go duration of at least a minute.
	HoldFor string `json:"holdFor,omitempty"`
	// OpenBlocks is how many blocks automatic choice uses so far.
	OpenBlocks int `json:"openBlocks,omitempty"`
}

// Network is the registry of a domain of uniqueness.
type Network struct {
	Name string
	// Cluster is the UID of the kube-system namespace of the cluster that wrote the registry.
	Cluster types.UID
	// Pools has the CIDRs of the domain's pools by name.
	Pools map[string][]string
	// Written is when the registry was last written, by the API server's clock; zero where that is
	// not known. Only a snapshot tells.
	Written time.Time
}

// Snapshot is the whole ledger at one moment of reading.
type Snapshot struct {
	Networks []Network
	Pools    []Pool
	Entries  []Entry
	// Changes are the announced changes of pools, by the pool's name.
	Changes map[string]Change
	// Strays are the blocks with owner labels that no row accounts for.
	Strays []Stray
	// Damaged are the objects that could not be read, Newer those of another format than this
	// version writes. One that is newer and can't be read is in both.
	Damaged, Newer []Damage
}

// Reservations is the value of the VM annotation vmip.io/reservations: what the VM itself says
// about its rows, by interface.
type Reservations struct {
	// Ledger is the namespace of the ledger.
	Ledger     string                 `json:"ledger"`
	UID        types.UID              `json:"uid"`
	Interfaces map[string]Reservation `json:"interfaces"`
	extra      extra
}

// Reservation is the part of Reservations that stands for one interface.
type Reservation struct {
	Pool      string   `json:"pool"`
	Network   string   `json:"network"`
	Addresses []string `json:"addresses"`
	Op        string   `json:"op"`
	// Annotations are the template annotations that the reservation put on the VM, so that a
	// release takes away exactly these.
	Annotations map[string]string `json:"annotations,omitempty"`
	extra       extra
}
