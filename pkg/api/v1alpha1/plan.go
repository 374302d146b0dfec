package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ReservationPlan is the input of `reserve -f` and the output of `list -o plan`: who is to have
// which address. It is also the ledger's backup, and its move to another cluster.
type ReservationPlan struct {
	metav1.TypeMeta `json:",inline"`
	// Pools are added where they are missing; one that is there has to be as it is here.
	Pools []PlannedPool        `json:"pools,omitempty"`
	Items []PlannedReservation `json:"items"`
}

// PlannedPool is a pool as `pool add` makes it.
type PlannedPool struct {
	Name       string   `json:"name"`
	Network    string   `json:"network,omitempty"`
	CIDRs      []string `json:"cidrs"`
	Ranges     []string `json:"ranges,omitempty"`
	Exclude    []string `json:"exclude,omitempty"`
	Gateways   []string `json:"gateways,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
	Profile    string   `json:"profile,omitempty"`
	Attachment string   `json:"attachment,omitempty"`
	HoldFor    string   `json:"holdFor,omitempty"`
}

// PlannedReservation is what one interface of one virtual machine is to have. The machine need
// not exist yet.
type PlannedReservation struct {
	// Namespace is the one of the command line (-n) where it is empty.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Interface is a network's name; empty is the one on the pod network.
	Interface string `json:"interface,omitempty"`
	// Pool may be empty where the addresses, or the machine, tell it.
	Pool string `json:"pool,omitempty"`
	// Addresses are at most one a family; none lets the pool choose.
	Addresses []string `json:"addresses,omitempty"`
	// MAC is recorded; empty records what the machine's template pins.
	MAC string `json:"mac,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (p *ReservationPlan) DeepCopyObject() runtime.Object { return clone(p) }
