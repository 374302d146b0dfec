package rollout

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Expectation is what the ledger says about one interface: what an operation has to end with.
type Expectation struct {
	Interface machine.Interface
	// Addresses are the reserved ones, at most one a family.
	Addresses []netip.Addr
	// MAC is empty where the ledger has none.
	MAC string
}

// likeness is how addresses compare with the expected ones.
type likeness int

const (
	// unknown: nothing was reported, which is no proof of anything.
	unknown likeness = iota
	same
	other
)

// pod compares with what a pod has on the interface: for each expected family exactly the
// expected address. A pod shows its families together, so a missing one is another address.
func (e Expectation) pod(p *corev1.Pod) (machine.Addresses, likeness) {
	have, known := machine.PodAddresses(p, e.Interface)
	if !known {
		return nil, unknown
	}
	for _, want := range e.Addresses {
		if !slices.Equal(family(have, want), []netip.Addr{want}) {
			return have, other
		}
	}
	return have, same
}

// guest compares with what the instance shows for an interface of which the guest agent has
// reported. For a family that the pod has an address of, KubeVirt shows the pod's address as soon
// as the guest has any, and none where the guest has none (updateVMIIfaceStatusWithGuestAgentData
// in pkg/network/setup): "same" says that the guest has an address, not which.
func (e Expectation) guest(have machine.Addresses) (found likeness, missing []netip.Addr) {
	for _, want := range e.Addresses {
		got := family(have, want)
		switch {
		case len(got) == 0:
			missing = append(missing, want)
		case slices.Contains(got, want):
			found = same
		default:
			return other, nil
		}
	}
	return found, missing
}

// onto returns the expectations for the interfaces as an instance shows them: a new instance may
// name them otherwise in its pod.
func onto(expect []Expectation, vmi *kubevirtv1.VirtualMachineInstance) []Expectation {
	out := slices.Clone(expect)
	for _, i := range machine.InstanceInterfaces(vmi) {
		for n := range out {
			if out[n].Interface.Name == i.Name {
				out[n].Interface = i
			}
		}
	}
	return out
}

// family returns the addresses of the family of one, link-local ones aside.
func family(all machine.Addresses, of netip.Addr) []netip.Addr {
	var members []netip.Addr
	for _, a := range all {
		if address.FamilyOf(a) == address.FamilyOf(of) && !a.IsLinkLocalUnicast() {
			members = append(members, a)
		}
	}
	return members
}

// finding is one thing that verification has to say.
type finding struct {
	// code is empty where all is well.
	code    string
	message string
	// patience is how long it may still come right by itself; waiting says for what meanwhile.
	patience time.Duration
	waiting  string
}

// How long verification waits for what may come late: reports of pod addresses and MACs follow
// the pod's start within seconds, a guest renews its lease and starts its agent in its own time.
const (
	reportPatience = 15 * time.Second
	guestPatience  = 30 * time.Second
	agentPatience  = 60 * time.Second
)

// checkPod compares the pod's addresses with the expected ones.
func checkPod(expect []Expectation, pod *corev1.Pod) []finding {
	var out []finding
	for _, e := range expect {
		have, like := e.pod(pod)
		switch like {
		case unknown:
			out = append(out, finding{code: CodeAddressUnknown, patience: reportPatience, waiting: "pod " + pod.Name + " to report its address on interface " + e.Interface.Name,
				message: fmt.Sprintf("pod %s reports no address on interface %s, reserved is %s", pod.Name, e.Interface.Name, list(e.Addresses))})
		case other:
			out = append(out, finding{code: CodeWrongAddress,
				message: fmt.Sprintf("pod %s on %s has %s on interface %s, reserved is %s",
					pod.Name, pod.Spec.NodeName, list(have), e.Interface.Name, list(e.Addresses))})
		case same:
			out = append(out, finding{message: "pod " + list(e.Addresses) + " = reservation"})
		}
	}
	return out
}

// checkInstance compares MAC and guest addresses with the expected ones. agent is set where the
// guest is known to run an agent, so that its report is worth waiting for.
func checkInstance(expect []Expectation, vmi *kubevirtv1.VirtualMachineInstance, agent bool) []finding {
	var out []finding
	for _, e := range expect {
		out = append(out, checkMAC(e, vmi)...)
		if e.Interface.Binding != machine.Masquerade {
			// There the guest has KubeVirt's private address; the reservation is the pod's.
			out = append(out, checkGuest(e, vmi, agent))
		}
	}
	return out
}

func checkGuest(e Expectation, vmi *kubevirtv1.VirtualMachineInstance, agent bool) finding {
	if !agentReports(vmi, e.Interface.Name) {
		f := finding{message: "guest unknown"}
		if agent {
			f.patience, f.waiting = agentPatience, "the guest agent to report"
		}
		return f
	}
	have := machine.GuestAddresses(vmi, e.Interface)
	like, missing := e.guest(have)
	switch {
	case like == other:
		return finding{code: CodeGuestMismatch, patience: guestPatience, waiting: "the guest to renew its lease",
			message: fmt.Sprintf("the pod has the reserved %s but the guest reports %s on interface %s: it did not renew its lease; renew it in the guest, or reboot from inside",
				list(e.Addresses), list(have), e.Interface.Name)}
	case slices.ContainsFunc(missing, netip.Addr.Is4):
		// KubeVirt offers the pod's IPv4 address by DHCP; IPv6 it leaves to the guest.
		return finding{code: CodeGuestNoAddress, patience: guestPatience, waiting: "the guest to take its address",
			message: fmt.Sprintf("the pod has the reserved %s but the guest reports no IPv4 address on interface %s: look at its network configuration (does it match another MAC?)", list(e.Addresses), e.Interface.Name)}
	case like == same:
		return finding{message: "guest reports an address"}
	}
	return finding{message: "guest unknown"}
}

// agentReports says whether what the instance shows for an interface has been through the guest agent.
func agentReports(vmi *kubevirtv1.VirtualMachineInstance, name string) bool {
	return slices.ContainsFunc(vmi.Status.Interfaces, func(s kubevirtv1.VirtualMachineInstanceNetworkInterface) bool {
		return s.Name == name && strings.Contains(s.InfoSource, "guest-agent")
	})
}

func checkMAC(e Expectation, vmi *kubevirtv1.VirtualMachineInstance) []finding {
	if e.MAC == "" {
		return nil
	}
	switch mac := machine.StatusMAC(vmi, e.Interface); {
	case mac == "":
		return []finding{{code: CodeMACUnknown, patience: reportPatience, waiting: "the instance to report its MAC",
			message: fmt.Sprintf("the instance reports no MAC on interface %s, the ledger has %s", e.Interface.Name, e.MAC)}}
	case !strings.EqualFold(mac, e.MAC):
		return []finding{{code: CodeWrongMAC, message: fmt.Sprintf("interface %s has MAC %s, the ledger has %s: pin it in spec.template and restart", e.Interface.Name, mac, e.MAC)}}
	}
	return nil
}

// summary joins what all is well findings say.
func summary(findings []finding) string {
	var said []string
	for _, f := range findings {
		if f.code == "" && f.message != "" && !slices.Contains(said, f.message) {
			said = append(said, f.message)
		}
	}
	return strings.Join(said, ", ")
}
