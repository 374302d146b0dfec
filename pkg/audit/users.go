package audit

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// holder is one owner that has an address, or asks for one.
type holder struct {
	// key tells owners apart.
	key string
	// text is how evidence names what holds the address: "pod a/b of virtualmachine a/c".
	text  string
	guest *guest
	nic   *nic
	pod   *corev1.Pod
}

// findUsers notes which addresses pods have, guests report and templates ask for.
func (e *estate) findUsers() {
	for n := range e.Pods {
		e.addPod(&e.Pods[n])
	}
	for _, g := range e.machines {
		for _, n := range g.nics {
			if g.VM != nil && !n.Absent {
				for _, a := range n.template {
					e.note(e.asked, n, a, holder{key: g.key(), text: "the template of virtualmachine " + g.ref.String(), guest: g, nic: n})
				}
			}
			if g.VMI == nil || !n.runs || g.VMI.IsFinal() {
				continue
			}
			for _, a := range machine.GuestAddresses(g.VMI, n.running) {
				e.note(e.reported, n, a, holder{key: g.key(), text: "the guest of " + g.String(), guest: g, nic: n})
			}
		}
	}
}

// addPod notes the addresses of one pod under its owner: the machine for all of KubeVirt's pods,
// the pod itself for others.
func (e *estate) addPod(p *corev1.Pod) {
	if machine.Finished(p) || p.Spec.HostNetwork {
		return
	}
	name := "pod " + p.Namespace + "/" + p.Name
	if p.Spec.NodeName != "" {
		name += " on " + p.Spec.NodeName
	}
	g := e.guestOf(p)
	if g == nil {
		e.addPrimary(p, holder{key: "pod " + p.Namespace + "/" + p.Name, text: name, pod: p})
		return
	}
	if e.index.Role(p) == machine.Attachment {
		// It has an address of its own, which the guest never sees.
		e.addPrimary(p, holder{key: g.key(), text: name + " of " + g.String(), guest: g, pod: p})
		return
	}
	text := name + " of " + g.String()
	primary := false
	for _, n := range g.nics {
		if !n.runs {
			continue
		}
		primary = primary || n.running.Primary()
		addrs, known := machine.PodAddresses(p, n.running)
		if !known {
			continue
		}
		for _, a := range addrs {
			e.notePod(n, p, a, holder{key: g.key(), text: text, guest: g, nic: n, pod: p})
		}
	}
	if !primary {
		// A machine on secondary networks alone: its pod has an address on the pod network all the same.
		e.addPrimary(p, holder{key: g.key(), text: text, guest: g, pod: p})
	}
}

// addPrimary notes the addresses that a pod has on the pod network.
func (e *estate) addPrimary(p *corev1.Pod, h holder) {
	addrs, known := machine.PodAddresses(p, machine.Interface{Pod: true})
	if !known {
		return
	}
	for _, a := range addrs {
		if domain, ok := e.domain(p.Namespace, "", podHint(p), a); ok {
			at := site{domain, a}
			e.live[at] = append(e.live[at], h)
		}
	}
}

// guestOf resolves a pod to its guest, by UIDs. A launcher pod whose instance is not in the
// snapshot was started, or is ending, while the snapshot was taken: it counts as the machine's of
// its instance's name, since taking it for a stranger would be a false alarm.
func (e *estate) guestOf(p *corev1.Pod) *guest {
	vmi, _, ok := e.index.Owner(p)
	if ok {
		return e.byUID[vmi.UID]
	}
	if o := metav1.GetControllerOf(p); o != nil && o.Kind == "VirtualMachineInstance" {
		return e.byRef[machine.Ref{Namespace: p.Namespace, Name: o.Name}]
	}
	return nil
}

func (e *estate) note(index map[site][]holder, n *nic, a netip.Addr, h holder) {
	if domain, ok := e.domainOf(n, "", a); ok {
		at := site{domain, a}
		index[at] = append(index[at], h)
	}
}

func (e *estate) notePod(n *nic, p *corev1.Pod, a netip.Addr, h holder) {
	if domain, ok := e.domainOf(n, podHint(p), a); ok {
		at := site{domain, a}
		e.live[at] = append(e.live[at], h)
	}
}

// key tells the owners of addresses apart. Pods were resolved to guests by UIDs; an instance that
// outlives its machine, and the machine that was made again under its name, are one owner here.
func (g *guest) key() string { return g.ref.String() }
