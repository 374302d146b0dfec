package preflight

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Codes of this file.
const (
	CodeGuestStaticAddress = "GuestStaticAddress"
	CodeGuestConfigHidden  = "GuestConfigHidden"
	CodeMACNotPinned       = "MACNotPinned"
	CodeIPv6NotDelivered   = "IPv6NotDelivered"
	CodeGuestBehindNAT     = "GuestBehindNAT"
)

// MACNotPinned warns that the machine gets another MAC at its next start, by which many guests
// lose their network though the address is right (KubeVirt issues 1251, 16696). Behind a masquerade
// the guest keeps a MAC of its own, and some network plugins keep the one that they gave.
func MACNotPinned(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		switch {
		case i.MAC != "" || i.Binding == machine.Masquerade:
			return nil
		case i.Capabilities.MAC.Answer == profile.Yes:
			if !f.moves(i) {
				return nil
			}
			return []Verdict{f.about(i, Warn, CodeMACNotPinned, "set macAddress on the interface in the template to the one that the guest has", "the template pins no macAddress, and with the new address the guest gets a new one")}
		case i.Implicit:
			return []Verdict{f.about(i, Warn, CodeMACNotPinned, "declare the interface and its macAddress in the template",
				"the template has no interface to pin a MAC on, so the guest gets a new one at each start")}
		}
		return []Verdict{f.about(i, Warn, CodeMACNotPinned, "set macAddress on the interface in the template to the one that the guest has", "the template pins no macAddress, so the guest gets a new one at each start")}
	})
}

// moves says whether the running machine is to get another address than it has.
func (f *Facts) moves(i Interface) bool {
	if f.View.VMI == nil {
		return false
	}
	want := i.Want
	if len(want) == 0 {
		want = i.Reserved()
	}
	have := machine.StatusAddresses(f.View.VMI, i.Interface)
	return len(have) > 0 && slices.ContainsFunc(want, func(a netip.Addr) bool { return !slices.Contains(have, a) })
}

// IPv6NotDelivered warns that KubeVirt has no DHCPv6 for bridge binding: the address is on the pod's
// dummy interface, and the guest has to configure it itself (KubeVirt issue 7979).
func IPv6NotDelivered(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		if i.Binding != machine.Bridge || !slices.Contains(i.families(), address.IPv6) {
			return nil
		}
		return []Verdict{f.about(i, Warn, CodeIPv6NotDelivered, "configure the IPv6 address in the guest, with cloud-init for example", "with bridge binding KubeVirt does not deliver an IPv6 address to the guest")}
	})
}

// BehindNAT tells that with masquerade the address is the pod's, and the guest has an inner one.
func BehindNAT(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		if i.Binding != machine.Masquerade {
			return nil
		}
		inner := machine.MasqueradeAddresses(&f.template().Spec, i.Name)[0]
		return []Verdict{f.about(i, Info, CodeGuestBehindNAT, "", "masquerade: the address outside is fixed, and the guest sees %s", inner)}
	})
}

// GuestStatic refuses an address that differs from the one that cloud-init configures in the guest:
// the two don't know of each other, and cloud-init acts at the first boot only (KubeVirt issue 10887).
func GuestStatic(f *Facts) []Verdict {
	spec := &f.template().Spec
	configs, hidden := machine.GuestConfigs(spec)
	single := len(f.View.Interfaces()) == 1
	list := f.each(func(i Interface) []Verdict {
		want := i.Want
		if len(want) == 0 {
			want = i.Reserved()
		}
		for _, c := range configs {
			ours := single || c.MAC != "" && c.MAC == i.MAC
			if !ours || i.Binding == machine.Masquerade || slices.Contains(want, c.Addr) || !concerns(c.Addr, want, i) {
				continue
			}
			asked := "the address is chosen automatically"
			if len(want) > 0 {
				asked = address.Join(want) + " is asked for"
			}
			return []Verdict{f.about(i, Refuse, CodeGuestStaticAddress, f.command("reserve", "--ip", c.Addr.String()),
				"cloud-init's networkData gives the guest %s (device %s), and %s", c.Addr, c.Device, asked)}
		}
		return nil
	})
	if len(hidden) > 0 {
		list = append(list, f.verdict(Info, CodeGuestConfigHidden, "", "cloud-init's networkData of volume %s can't be seen: whether the guest has a static address is unknown", strings.Join(hidden, ", ")))
	}
	return list
}

// concerns says whether a guest's address is of a family that is asked for. Where nothing in
// particular is asked for, IPv4 is meant.
func concerns(a netip.Addr, want []netip.Addr, i Interface) bool {
	if a.IsLinkLocalUnicast() || a.IsLoopback() {
		return false
	}
	families := i.families()
	for _, w := range want {
		families = append(families, address.FamilyOf(w))
	}
	return len(families) == 0 && a.Is4() || slices.Contains(families, address.FamilyOf(a))
}
