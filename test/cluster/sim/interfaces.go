package sim

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"

	networkv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	netcache "kubevirt.io/kubevirt/pkg/network/cache"
	"kubevirt.io/kubevirt/pkg/network/namescheme"
	netsetup "kubevirt.io/kubevirt/pkg/network/setup"
	"kubevirt.io/kubevirt/pkg/network/vmispec"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
)

// Where the masquerade binding puts the guest, whatever the pod's address is.
const (
	masqueradeIPv4 = "10.0.2.2"
	masqueradeIPv6 = "fd10:0:2::2"
)

// nic is what a pod's network is to one interface of a VM.
type nic struct {
	mac string
	ips []string
}

// reportInterfaces fills in the status of a VM's interfaces with KubeVirt's own code, which is fed
// what virt-handler finds on a node: the pod's addresses as they were before the binding, the
// domain's interfaces, and what the guest agent says. first is the pod that the guest was booted in.
func reportInterfaces(vmi *kubevirtv1.VirtualMachineInstance, pod, first *corev1.Pod, agent bool, faults faults) error {
	stat := netsetup.NewNetStat()
	here, origin := podNICs(vmi, pod), podNICs(vmi, first)
	told := faults.guestAddresses(primaryName(vmi))

	domain := &api.Domain{}
	for i, iface := range vmi.Spec.Domain.Devices.Interfaces {
		n := here[iface.Name]
		cached := &netcache.PodIfaceCacheData{PodIPs: n.ips}
		if len(n.ips) > 0 {
			cached.PodIP = n.ips[0]
		}
		stat.CachePodInterfaceVolatileData(vmi, iface.Name, cached)
		if iface.SRIOV != nil || iface.State == kubevirtv1.InterfaceStateAbsent {
			continue
		}
		mac := guestMAC(vmi, iface, n.mac)
		domain.Spec.Devices.Interfaces = append(domain.Spec.Devices.Interfaces, api.Interface{
			Alias: api.NewUserDefinedAlias(iface.Name), MAC: &api.MAC{MAC: mac}, Driver: driver(vmi), LinkState: linkState(iface),
		})
		if agent {
			addresses, ok := told[iface.Name]
			if !ok {
				addresses = guestAddresses(iface, origin[iface.Name].ips)
			}
			if !ok || len(addresses) > 0 {
				addresses = append(addresses, linkLocal(mac))
			}
			domain.Status.Interfaces = append(domain.Status.Interfaces, api.InterfaceStatus{
				Mac: mac, IPs: addresses, InterfaceName: fmt.Sprintf("eth%d", i),
			})
		}
	}
	return stat.UpdateStatus(vmi, domain)
}

// guestMAC is the one in the spec, or the one that the guest has had since it was booted, or the pod's.
func guestMAC(vmi *kubevirtv1.VirtualMachineInstance, iface kubevirtv1.Interface, pod string) string {
	if iface.MacAddress != "" {
		return iface.MacAddress
	}
	if s := vmispec.LookupInterfaceStatusByName(vmi.Status.Interfaces, iface.Name); s != nil && s.MAC != "" {
		return s.MAC
	}
	return pod
}

// guestAddresses are what a guest with DHCP has: under bridge the IPv4 address of the pod that it
// was booted in (KubeVirt serves no DHCPv6 there), under masquerade always the same.
func guestAddresses(iface kubevirtv1.Interface, ips []string) []string {
	var addresses []string
	for _, ip := range ips {
		addr, err := netip.ParseAddr(ip)
		switch {
		case err != nil:
		case iface.Masquerade != nil && addr.Is4():
			addresses = append(addresses, masqueradeIPv4)
		case iface.Masquerade != nil:
			addresses = append(addresses, masqueradeIPv6)
		case addr.Is4():
			addresses = append(addresses, ip)
		}
	}
	return addresses
}

// podNICs are the NICs of a pod by the names of the VM's networks.
func podNICs(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) map[string]nic {
	nics := map[string]nic{}
	if pod == nil {
		return nics
	}
	var statuses []networkv1.NetworkStatus
	// Without Multus there is none, and none of its networks either.
	_ = json.Unmarshal([]byte(pod.Annotations[networkv1.NetworkStatusAnnot]), &statuses)
	interfaces := namescheme.CreateFromNetworkStatuses(vmi.Spec.Networks, statuses)
	for _, network := range vmi.Spec.Networks {
		if vmispec.IsSecondaryMultusNetwork(network) {
			for _, s := range statuses {
				if s.Interface == interfaces[network.Name] {
					nics[network.Name] = nic{mac: s.Mac, ips: s.IPs}
				}
			}
			continue
		}
		n := nic{ips: podIPs(pod)}
		if sb := recordedSandbox(pod); sb != nil {
			n.mac = sb.MAC
		}
		nics[network.Name] = n
	}
	return nics
}

func primaryName(vmi *kubevirtv1.VirtualMachineInstance) string {
	if n := vmispec.LookUpDefaultNetwork(vmi.Spec.Networks); n != nil {
		return n.Name
	}
	return ""
}

// driver has a queue for each CPU where the VM wants that.
func driver(vmi *kubevirtv1.VirtualMachineInstance) *api.InterfaceDriver {
	if m := vmi.Spec.Domain.Devices.NetworkInterfaceMultiQueue; m == nil || !*m {
		return nil
	}
	cpus := uint(1)
	if c := vmi.Spec.Domain.CPU; c != nil {
		cpus = uint(max(c.Sockets, 1) * max(c.Cores, 1) * max(c.Threads, 1))
	}
	return &api.InterfaceDriver{Name: "vhost", Queues: &cpus}
}

func linkState(iface kubevirtv1.Interface) *api.LinkState {
	if iface.State == kubevirtv1.InterfaceStateLinkDown {
		return &api.LinkState{State: "down"}
	}
	return nil
}

// linkLocal is the address that a guest's kernel makes of a MAC address.
func linkLocal(mac string) string {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return "fe80::1"
	}
	b := [16]byte{0: 0xfe, 1: 0x80, 11: 0xff, 12: 0xfe}
	copy(b[8:], hw[:3])
	b[8] ^= 2
	copy(b[13:], hw[3:])
	return strings.ToLower(netip.AddrFrom16(b).String())
}
