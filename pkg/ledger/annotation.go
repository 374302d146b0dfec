package ledger

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// Annotations on a virtual machine: a contract, see docs/commands.md.
const (
	AnnotationReservations = "vmip.io/reservations"
	AnnotationLastOp       = "vmip.io/last-op"
	AnnotationRestart      = "vmip.io/restart"
)

// ReservationsOf reads what a VM says about its reservations; nil where it says nothing. A clone
// carries its source's annotation: compare UID before it is believed. What can't be understood is
// an error, which names the annotation.
func ReservationsOf(annotations map[string]string) (*Reservations, error) {
	raw, ok := annotations[AnnotationReservations]
	if !ok || raw == "" {
		return nil, nil
	}
	r := &Reservations{}
	if err := json.Unmarshal([]byte(raw), r); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", AnnotationReservations, err)
	}
	// Commands are told to use that ledger: it has to be a namespace's name, and nothing else.
	if errs := validation.IsDNS1123Label(r.Ledger); len(errs) > 0 {
		return nil, fmt.Errorf("annotation %s: ledger %q is not the name of a namespace", AnnotationReservations, r.Ledger)
	}
	for name, i := range r.Interfaces {
		for _, s := range i.Addresses {
			if _, err := address.Parse(s); err != nil {
				return nil, fmt.Errorf("annotation %s, interface %s: %w", AnnotationReservations, name, err)
			}
		}
	}
	return r, nil
}

// Encode writes the annotation's value.
func (r *Reservations) Encode() (string, error) {
	raw, err := json.Marshal(r)
	return string(raw), err
}

var (
	reservationsFields = []string{"ledger", "uid", "interfaces"}
	reservationFields  = []string{"pool", "network", "addresses", "op", "annotations"}
)

// UnmarshalJSON implements json.Unmarshaler.
func (r *Reservations) UnmarshalJSON(raw []byte) error {
	type plain Reservations // without this method
	if err := json.Unmarshal(raw, (*plain)(r)); err != nil {
		return err
	}
	var err error
	r.extra, err = extraOf(raw, reservationsFields)
	return err
}

// MarshalJSON implements json.Marshaler.
func (r Reservations) MarshalJSON() ([]byte, error) {
	type plain Reservations
	known, err := json.Marshal(plain(r))
	if err != nil {
		return nil, err
	}
	return r.extra.with(known)
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Reservation) UnmarshalJSON(raw []byte) error {
	type plain Reservation
	if err := json.Unmarshal(raw, (*plain)(r)); err != nil {
		return err
	}
	var err error
	r.extra, err = extraOf(raw, reservationFields)
	return err
}

// MarshalJSON implements json.Marshaler.
func (r Reservation) MarshalJSON() ([]byte, error) {
	type plain Reservation
	known, err := json.Marshal(plain(r))
	if err != nil {
		return nil, err
	}
	return r.extra.with(known)
}

// Renewed is another reservation of the same interface, with what a newer version has written besides.
func (r Reservation) Renewed(by Reservation) Reservation {
	by.extra = r.extra
	return by
}

// Addrs are the addresses that the reservation names.
func (r Reservation) Addrs() (out []netip.Addr) {
	for _, s := range r.Addresses {
		if a, err := address.Parse(s); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// Names says whether the VM names the address as the one of that interface.
func (r *Reservations) Names(iface string, a netip.Addr) bool {
	if r == nil {
		return false
	}
	for _, x := range r.Interfaces[iface].Addrs() {
		if x == a {
			return true
		}
	}
	return false
}
