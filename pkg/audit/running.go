package audit

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// running finds running instances that differ from what is reserved, or from what the template
// asks for without a reservation. KubeVirt raises no condition for it: it compares the spec of a
// template, and never its annotations.
func running(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, g := range e.machines {
		if g.VM == nil || !g.started() {
			continue
		}
		for _, n := range g.nics {
			if n.Absent {
				continue
			}
			for _, f := range address.Families {
				found = append(found, e.judgeRunning(n, f)...)
			}
		}
	}
	return found, nil
}

func (e *estate) judgeRunning(n *nic, f address.Family) []Finding {
	row := n.reserved(f)
	var want netip.Addr
	switch template := family(n.template, f); {
	case row != nil:
		want = row.Addr
	case len(template) == 1:
		want = template[0]
	default:
		return nil
	}
	inTemplate, known := n.templateAsks(want)
	lost := known && !inTemplate
	have := family(n.pod, f)
	asks, told := n.instanceAsks(want)
	if !told && row != nil {
		// Nothing tells what the annotations mean: an instance that is older than the row can't
		// have asked for its address.
		asks = n.guest.VMI.CreationTimestamp.After(row.Row.Since)
	}
	report := func(code Code, evidence string) []Finding {
		found := e.about(code, n.guest)
		e.on(&found, n)
		domain := ""
		if row != nil {
			domain = row.Network
		} else if d, ok := e.domainOf(n, "", want); ok {
			domain = d
		}
		found.at(domain, want)
		found.Evidence = evidence
		return []Finding{found}
	}
	switch {
	case !n.runs:
		return e.pending(lost, report, fmt.Sprintf("the running instance has no interface %s", n.Name))
	case n.podKnown && len(n.pod) > 0 && !slices.Contains(have, want):
		text := fmt.Sprintf("running pod has %s", address.Join(n.pod))
		if !asks {
			return e.pending(lost, report, text)
		}
		if row == nil {
			return nil // nobody is promised an address that is not reserved
		}
		return report(AddressDrift, fmt.Sprintf("pod %s has %s, reserved is %s and the running instance asks for it", n.guest.current.Name, address.Join(n.pod), want))
	case told && !asks && slices.Contains(have, want):
		pending := e.pending(lost, report, fmt.Sprintf("running pod has it, but the running instance %s: a live migration would lose it", n.lacks(n.guest.VMI.Annotations, want)))
		for i := range pending {
			// Reserving again annotates the running instance, which needs no restart.
			e.remedy(&pending[i], CheckOf(InterruptedReserve).Remedy)
		}
		return pending
	case told && !asks:
		return e.pending(lost, report, fmt.Sprintf("running instance %s", n.lacks(n.guest.VMI.Annotations, want)))
	}
	return nil
}

// pending reports a restart that is due, unless the template lost what the restart would bring.
func (e *estate) pending(lost bool, report func(Code, string) []Finding, evidence string) []Finding {
	if lost {
		return nil // see unasked
	}
	return report(RestartPending, evidence)
}

// guestReports finds guests that have another address than the reserved one. What counts is a
// global address of the family in a report of the guest agent that lacks the reserved one, while
// the pod has it.
func guestReports(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, g := range e.machines {
		if g.VM == nil || !g.started() || g.Migrating() {
			continue
		}
		for _, n := range g.nics {
			if !n.runs {
				continue
			}
			reports := machine.GuestAddresses(g.VMI, n.running)
			for _, f := range address.Families {
				row := n.reserved(f)
				if row == nil || f == address.IPv6 && n.running.Binding == machine.Bridge {
					continue // KubeVirt delivers no IPv6 under bridge: the guest may have what it likes
				}
				got := family(reports, f)
				if len(got) == 0 || slices.Contains(got, row.Addr) || !slices.Contains(n.pod, row.Addr) || otherMAC(row, n) {
					continue
				}
				finding := e.about(GuestMismatch, g)
				e.on(&finding, n)
				finding.at(row.Network, row.Addr)
				finding.Evidence = fmt.Sprintf("guest reports %s, reserved is %s, which the pod has", address.Join(got), row.Addr)
				found = append(found, finding)
			}
		}
	}
	return found, nil
}

// otherMAC says that the report is about another NIC than the reservation's.
func otherMAC(row *ledger.Entry, n *nic) bool {
	mac := machine.StatusMAC(n.guest.VMI, n.running)
	return row.Row.MAC != "" && mac != "" && machine.NormaliseMAC(row.Row.MAC) != mac
}
