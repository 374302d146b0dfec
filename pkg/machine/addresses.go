package machine

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Addresses are what one interface has in one place (pod or guest).
type Addresses []netip.Addr

// NetworkStatusAnnotation is what Multus writes on a pod about its interfaces.
const NetworkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

// networkStatus is one element of that annotation
// (NetworkAttachmentDefinition specification v1.3, section 5.4).
type networkStatus struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	MAC       string   `json:"mac"`
	Default   bool     `json:"default"`
}

// PodAddresses returns the addresses that an interface has in a pod. known is false where the pod
// does not tell (yet): nothing may be concluded then. An interface without addresses is known and
// empty. For secondary networks the pod's network-status annotation is read, since status.podIPs
// has the primary network only.
func PodAddresses(p *corev1.Pod, i Interface) (addrs Addresses, known bool) {
	if p.Spec.HostNetwork {
		return nil, false // the node's addresses
	}
	s, found := statusIn(p, i)
	switch {
	case found && (!i.Primary() || i.MultusDefault || len(p.Status.PodIPs) == 0 || named(i)):
		return parseAll(s.IPs)
	case !i.Primary() || len(p.Status.PodIPs) == 0:
		return nil, false
	}
	ips := make([]string, len(p.Status.PodIPs))
	for n, ip := range p.Status.PodIPs {
		ips[n] = ip.IP
	}
	return parseAll(ips)
}

// named says that the primary interface is not eth0, as under a primary user-defined network of
// OVN-Kubernetes: status.podIPs is then another interface's.
func named(i Interface) bool { return i.PodInterface != "" && i.PodInterface != primaryInterface }

// PodMAC returns the MAC of an interface in a pod as Multus reported it, "" where unknown.
func PodMAC(p *corev1.Pod, i Interface) string {
	s, _ := statusIn(p, i)
	return NormaliseMAC(s.MAC)
}

// statusIn finds the interface in the network-status annotation, by the names that KubeVirt gives
// it in the pod. Source and target of a migration may use different schemes.
func statusIn(p *corev1.Pod, i Interface) (networkStatus, bool) {
	var list []networkStatus
	if json.Unmarshal([]byte(p.Annotations[NetworkStatusAnnotation]), &list) != nil {
		return networkStatus{}, false
	}
	if i.Primary() {
		for _, s := range list {
			if s.Interface == i.PodInterface && named(i) || s.Default && !named(i) {
				return s, true
			}
		}
		return networkStatus{}, false
	}
	names := []string{i.PodInterface, HashedInterface(i.Name)}
	if i.Ordinal > 0 {
		names = append(names, "net"+strconv.Itoa(i.Ordinal))
	}
	for _, name := range names {
		for _, s := range list {
			if name != "" && s.Interface == name {
				return s, true
			}
		}
	}
	return networkStatus{}, false
}

func parseAll(list []string) (Addresses, bool) {
	addrs := make(Addresses, 0, len(list))
	for _, s := range list {
		a, ok := parse(s)
		if !ok {
			return nil, false
		}
		addrs = append(addrs, a)
	}
	return addrs, true
}

// parse reads an address with or without a prefix length, whatever its spelling.
func parse(s string) (netip.Addr, bool) {
	s, _, _ = strings.Cut(s, "/")
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err == nil
}

// StatusAddresses returns what the VMI's status shows for an interface, without link-local
// addresses and without the address behind a masquerade, which every such guest has. With bridge
// binding this is what the CNI gave the pod, not what the guest has configured.
func StatusAddresses(vmi *kubevirtv1.VirtualMachineInstance, i Interface) Addresses {
	s := statusOf(vmi, i.Name)
	if s == nil {
		return nil
	}
	list := s.IPs
	if len(list) == 0 && s.IP != "" {
		list = []string{s.IP}
	}
	var addrs Addresses
	for _, text := range list {
		a, ok := parse(text)
		switch {
		case !ok, a.IsLinkLocalUnicast(), a.IsUnspecified(), a.IsLoopback(), a.IsMulticast():
		case i.Binding == Masquerade && behindMasquerade(&vmi.Spec, i.Name, a):
		case !slices.Contains(addrs, a):
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// GuestAddresses returns what the guest agent reports for an interface; none where no agent has
// reported, which means unknown and not "no address". Under masquerade the guest has an inner
// address only, and what the status shows besides is the pod's: none either.
func GuestAddresses(vmi *kubevirtv1.VirtualMachineInstance, i Interface) Addresses {
	s := statusOf(vmi, i.Name)
	if s == nil || i.Binding == Masquerade || !strings.Contains(s.InfoSource, "guest-agent") {
		return nil
	}
	return StatusAddresses(vmi, i)
}

// StatusMAC returns the MAC that the VMI's status shows for an interface, "" where unknown.
func StatusMAC(vmi *kubevirtv1.VirtualMachineInstance, i Interface) string {
	s := statusOf(vmi, i.Name)
	if s == nil {
		return ""
	}
	return NormaliseMAC(s.MAC)
}

func statusOf(vmi *kubevirtv1.VirtualMachineInstance, network string) *kubevirtv1.VirtualMachineInstanceNetworkInterface {
	for n := range vmi.Status.Interfaces {
		if s := &vmi.Status.Interfaces[n]; s.Name == network {
			return s
		}
	}
	return nil
}

// Where masquerade puts the guest unless the network says otherwise: the second host of the network,
// after the gateway (GenerateMasqueradeGatewayAndVmIPAddrs in pkg/network/link).
var masqueradeNetworks = [2]netip.Prefix{netip.MustParsePrefix("10.0.2.0/24"), netip.MustParsePrefix("fd10:0:2::/120")}

// MasqueradeAddresses returns the guest's own addresses behind a masquerade, IPv4 and IPv6: the
// same in every machine.
func MasqueradeAddresses(spec *kubevirtv1.VirtualMachineInstanceSpec, network string) Addresses {
	var addrs Addresses
	for n, p := range chosenNetworks(spec, network) {
		if !p.IsValid() {
			p = masqueradeNetworks[n]
		}
		addrs = append(addrs, p.Masked().Addr().Next().Next())
	}
	return addrs
}

// chosenNetworks are vmNetworkCIDR and vmIPv6NetworkCIDR of a network, zero where not given.
func chosenNetworks(spec *kubevirtv1.VirtualMachineInstanceSpec, network string) (p [2]netip.Prefix) {
	for _, n := range spec.Networks {
		if n.Name == network && n.Pod != nil {
			p[0], _ = netip.ParsePrefix(n.Pod.VMNetworkCIDR)
			p[1], _ = netip.ParsePrefix(n.Pod.VMIPv6NetworkCIDR)
		}
	}
	return p
}

// behindMasquerade says that the address is on the guest's side of a masquerade. Of the default
// network only the guest's own address counts, since a cluster's pod network may overlap it; a
// network that somebody chose is taken whole.
func behindMasquerade(spec *kubevirtv1.VirtualMachineInstanceSpec, network string, a netip.Addr) bool {
	for _, p := range chosenNetworks(spec, network) {
		if p.IsValid() && p.Contains(a) {
			return true
		}
	}
	return slices.Contains(MasqueradeAddresses(spec, network), a)
}
