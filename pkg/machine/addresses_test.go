package machine

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func TestPodAddresses(t *testing.T) {
	primary := Interface{Name: "default", Pod: true}
	lan := Interface{Name: "network1", Attachment: "tenant-a/lan", Ordinal: 1}
	const both = `[{"name":"cbr0","interface":"eth0","ips":["198.51.100.20"],"mac":"02:00:00:00:00:20","default":true},
	  {"name":"tenant-a/lan","interface":"poda7662f44d65","ips":["203.0.113.7"],"mac":"02:AA:00:00:00:07"}]`
	const ordinal = `[{"name":"cbr0","ips":["198.51.100.20"],"default":true},{"name":"tenant-a/lan","interface":"net1","ips":["203.0.113.8/24"]},{"name":"tenant-a/dmz","interface":"net2","ips":["203.0.113.9"]}]`
	const udn = `[{"name":"ovn-kubernetes","interface":"eth0","ips":["198.51.100.20"]},{"name":"tenant-a/udn","interface":"ovn-udn1","ips":["203.0.113.7"],"default":true}]`
	for name, c := range map[string]struct {
		i      Interface
		status string
		podIPs []string
		host   bool
		want   Addresses
		known  bool
	}{
		"pod network":                        {i: primary, podIPs: []string{"198.51.100.20", "2001:DB8::20"}, want: addrs("198.51.100.20", "2001:db8::20"), known: true},
		"pod network, no address yet":        {i: primary},
		"node network":                       {i: primary, podIPs: []string{"203.0.113.20"}, host: true},
		"secondary, hashed name":             {i: lan, status: both, podIPs: []string{"198.51.100.20"}, want: addrs("203.0.113.7"), known: true},
		"secondary, ordinal name and prefix": {i: lan, status: ordinal, podIPs: []string{"198.51.100.20"}, want: addrs("203.0.113.8"), known: true},
		"secondary, second in order":         {i: Interface{Name: "network2", Attachment: "tenant-a/dmz", Ordinal: 2}, status: ordinal, want: addrs("203.0.113.9"), known: true},
		"secondary, name of the status":      {i: Interface{Name: "x", Attachment: "tenant-a/dmz", PodInterface: "net2"}, status: ordinal, want: addrs("203.0.113.9"), known: true},
		"secondary, none reported":           {i: lan, podIPs: []string{"198.51.100.20"}},
		"secondary, not in the report":       {i: Interface{Name: "other", Attachment: "tenant-a/lan", Ordinal: 7}, status: both},
		"secondary, damaged report":          {i: lan, status: `[{"name":`},
		"secondary, damaged address":         {i: lan, status: `[{"interface":"net1","ips":["203.0.113"]}]`},
		"secondary without IPAM":             {i: lan, status: `[{"interface":"net1"}]`, want: Addresses{}, known: true},
		"multus default":                     {i: Interface{Name: "a", MultusDefault: true}, status: both, podIPs: []string{"198.51.100.20"}, want: addrs("198.51.100.20"), known: true},
		"multus default, none reported":      {i: Interface{Name: "a", MultusDefault: true}, podIPs: []string{"198.51.100.20"}, want: addrs("198.51.100.20"), known: true},
		"primary user-defined network":       {i: Interface{Name: "default", Pod: true, PodInterface: "ovn-udn1"}, status: udn, podIPs: []string{"198.51.100.20"}, want: addrs("203.0.113.7"), known: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := launcher("aaaaa", "n1", corev1.PodRunning, 0)
			p.Spec.HostNetwork = c.host
			if c.status != "" {
				p.Annotations = map[string]string{NetworkStatusAnnotation: c.status}
			}
			for _, ip := range c.podIPs {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			got, known := PodAddresses(&p, c.i)
			if known != c.known || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %t; want %v, %t", got, known, c.want, c.known)
			}
		})
	}
	p := launcher("aaaaa", "n1", corev1.PodRunning, 0)
	p.Annotations = map[string]string{NetworkStatusAnnotation: both}
	if got := PodMAC(&p, lan); got != "02:aa:00:00:00:07" {
		t.Errorf("MAC of the secondary interface %q", got)
	}
	if got := PodMAC(&p, primary); got != "02:00:00:00:00:20" {
		t.Errorf("MAC of the primary interface %q", got)
	}
}

func TestGuestAndStatusAddresses(t *testing.T) {
	const agent = "domain, guest-agent"
	for name, c := range map[string]struct {
		binding       kubevirtv1.Interface
		cidr          string
		source        string
		ip            string
		ips           []string
		status, guest Addresses
	}{
		"no agent":                      {binding: bridge("default"), source: "domain", ips: []string{"198.51.100.20"}, status: addrs("198.51.100.20")},
		"agent":                         {binding: bridge("default"), source: agent, ips: []string{"198.51.100.20", "2001:db8::20"}, status: addrs("198.51.100.20", "2001:db8::20"), guest: addrs("198.51.100.20", "2001:db8::20")},
		"C23 nothing yet":               {binding: bridge("default"), source: agent},
		"C23 link-local":                {binding: bridge("default"), source: agent, ip: "fe80::5054:ff:fe00:20", ips: []string{"fe80::5054:ff:fe00:20"}},
		"C23 link-local and another":    {binding: bridge("default"), source: agent, ips: []string{"fe80::1", "169.254.1.1", "198.51.100.20"}, status: addrs("198.51.100.20"), guest: addrs("198.51.100.20")},
		"only the first address":        {binding: bridge("default"), source: agent, ip: "198.51.100.20", status: addrs("198.51.100.20"), guest: addrs("198.51.100.20")},
		"C24 masquerade":                {binding: masquerade("default"), source: agent, ips: []string{"10.0.2.2", "fd10:0:2::2"}},
		"C24 masquerade, pod's address": {binding: masquerade("default"), source: agent, ips: []string{"198.51.100.20"}, status: addrs("198.51.100.20")},
		"C24 chosen inner network":      {binding: masquerade("default"), cidr: "192.0.2.0/24", source: agent, ips: []string{"192.0.2.2", "198.51.100.20"}, status: addrs("198.51.100.20")},
		"C24 another address of it":     {binding: masquerade("default"), cidr: "192.0.2.0/24", source: "domain", ips: []string{"192.0.2.17", "198.51.100.20"}, status: addrs("198.51.100.20")},
		"C24 10.0.2.2 where the inner network is another": {binding: masquerade("default"), cidr: "192.0.2.0/24", source: "domain", ips: []string{"10.0.2.2"}, status: addrs("10.0.2.2")},
		"C24 pod network overlaps the inner one":          {binding: masquerade("default"), source: "domain", ips: []string{"10.0.2.77"}, status: addrs("10.0.2.77")},
		"bridge may have 10.0.2.2":                        {binding: bridge("default"), source: agent, ips: []string{"10.0.2.2"}, status: addrs("10.0.2.2"), guest: addrs("10.0.2.2")},
	} {
		t.Run(name, func(t *testing.T) {
			network := podNetwork("default")
			network.Pod.VMNetworkCIDR = c.cidr
			v := running([]kubevirtv1.Interface{c.binding}, []kubevirtv1.Network{network})
			v.VMI.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "default", InfoSource: c.source, IP: c.ip, IPs: c.ips, MAC: "02:AA:00:00:00:20"}}
			i := v.RunningInterfaces()[0]
			if got := StatusAddresses(v.VMI, i); !slices.Equal(got, c.status) {
				t.Errorf("status %v, want %v", got, c.status)
			}
			if got := GuestAddresses(v.VMI, i); !slices.Equal(got, c.guest) {
				t.Errorf("guest %v, want %v", got, c.guest)
			}
			if got := StatusMAC(v.VMI, i); got != "02:aa:00:00:00:20" {
				t.Errorf("MAC %q", got)
			}
		})
	}
	v := running([]kubevirtv1.Interface{bridge("default")}, []kubevirtv1.Network{podNetwork("default")})
	if i := v.RunningInterfaces()[0]; StatusAddresses(v.VMI, i) != nil || GuestAddresses(v.VMI, i) != nil || StatusMAC(v.VMI, i) != "" {
		t.Error("an interface without status is unknown")
	}
}
