package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Reservation is one row of the ledger beside what the cluster shows for it.
type Reservation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Interface string `json:"interface"`
	Network   string `json:"network"`
	Pool      string `json:"pool,omitempty"`
	Address   string `json:"address"`
	// PodAddress and GuestAddress are what the pod that carries the VM has and what the guest
	// agent reports; empty where unknown or not running.
	PodAddress   string `json:"podAddress,omitempty"`
	GuestAddress string `json:"guestAddress,omitempty"`
	Node         string `json:"node,omitempty"`
	MAC          string `json:"mac,omitempty"`
	// Row is the state of the ledger's row; State is what it means together with the cluster.
	Row   string      `json:"row"`
	State string      `json:"state"`
	Since metav1.Time `json:"since"`
}

// ReservationList is the output of `list`.
type ReservationList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []Reservation `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *ReservationList) DeepCopyObject() runtime.Object { return clone(l) }
