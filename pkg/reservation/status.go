package reservation

import (
	"net/netip"
	"slices"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// States of a reservation as `list` shows them: what the row means together with the cluster.
const (
	StateInUse          = "In-Use"
	StateStopped        = "Stopped"
	StateStarting       = "Starting"
	StateRestartPending = "Restart-Pending"
	StateDrift          = "Drift"
	StateIncomplete     = "Incomplete"
	StateNotCreated     = "VM-Not-Created"
	StateMissing        = "VM-Missing"
	StateRecreated      = "VM-Recreated"
	StateLeaving        = "Leaving"
	StateReleasing      = "Releasing"
	StateHeld           = "Held"
	StateHeldExpired    = "Held-Expired"
	StateDamaged        = "Damaged"
)

// Status is a row beside what the cluster shows for it.
type Status struct {
	State string
	// Pod and Guest are the addresses of the row's family in the pod that carries the machine
	// and as the guest agent reports them; invalid where unknown.
	Pod, Guest netip.Addr
	Node, MAC  string
}

// StatusOf compares a row with its machine; view is nil where there is no machine of that name.
func StatusOf(e ledger.Entry, view *machine.View, now time.Time) Status {
	s := Status{MAC: e.Row.MAC}
	if view != nil {
		s.read(e, view)
	}
	s.State = s.state(e, view, now)
	return s
}

// read takes what the machine's pod and guest have.
func (s *Status) read(e ledger.Entry, view *machine.View) {
	pod := view.CurrentPod()
	for _, i := range view.RunningInterfaces() {
		if i.Name != e.Row.Interface {
			continue
		}
		if pod != nil {
			have, _ := machine.PodAddresses(pod, i)
			s.Pod, s.Node = ofFamily(have, e.Family()), pod.Spec.NodeName
		}
		s.Guest = ofFamily(machine.GuestAddresses(view.VMI, i), e.Family())
		if s.MAC == "" {
			s.MAC = machine.StatusMAC(view.VMI, i)
		}
	}
}

func ofFamily(addrs []netip.Addr, f address.Family) netip.Addr {
	for _, a := range addrs {
		if address.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

func (s *Status) state(e ledger.Entry, view *machine.View, now time.Time) string {
	switch {
	case e.Err != nil:
		return StateDamaged
	case e.Row.State == ledger.Held && e.Row.Until.Before(now):
		return StateHeldExpired
	case e.Row.State == ledger.Held:
		return StateHeld
	case e.Row.State == ledger.Leaving:
		return StateLeaving
	case e.Row.State == ledger.Releasing:
		return StateReleasing
	case view == nil && e.Row.UID == "":
		return StateNotCreated
	case view == nil:
		return StateMissing
	case e.Row.UID != "" && e.Row.UID != view.VM.UID:
		return StateRecreated
	}
	said, err := ledger.ReservationsOf(view.VM.Annotations)
	switch {
	case err != nil || said == nil || said.UID != view.VM.UID || !said.Names(e.Row.Interface, e.Addr):
		return StateIncomplete
	case !view.Started():
		return StateStopped
	case s.Pod == e.Addr:
		return StateInUse
	case !applied(view.VMI, said.Interfaces[e.Row.Interface]):
		return StateRestartPending
	case !s.Pod.IsValid():
		return StateStarting
	}
	return StateDrift
}

// applied says whether the running instance carries what the reservation put into the template.
func applied(vmi *kubevirtv1.VirtualMachineInstance, r ledger.Reservation) bool {
	return vmi != nil && carriesAll(vmi.Annotations, r.Annotations)
}

// Sort orders rows as people look for them: by machine, interface and address.
func Sort(entries []ledger.Entry) {
	slices.SortStableFunc(entries, func(a, b ledger.Entry) int {
		x, y := a.Row.VM+"\x00"+a.Row.Interface, b.Row.VM+"\x00"+b.Row.Interface
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return a.Addr.Compare(b.Addr)
	})
}
