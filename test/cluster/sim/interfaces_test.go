package sim

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func launcher(ips ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{sandboxAnnotation: `{"mac":"02:00:00:00:00:01"}`}}}
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return pod
}

func TestReportInterfaces(t *testing.T) {
	const ll = "fe80::ff:fe00:1"
	withMAC := func(vmi *kubevirtv1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces[0].MacAddress = "02:00:00:00:00:02"
	}
	for name, c := range map[string]struct {
		vmi        *kubevirtv1.VirtualMachineInstance
		pod, first *corev1.Pod
		agent      bool
		guest      string
		ips        []string
		mac        string
		source     string
	}{
		"no agent":               {vmi: testVMI(bridged), pod: launcher("10.16.0.1", "fd00::1"), ips: []string{"10.16.0.1", "fd00::1"}, source: "domain"},
		"MAC of the spec":        {vmi: testVMI(bridged, withMAC), pod: launcher("10.16.0.1"), ips: []string{"10.16.0.1"}, mac: "02:00:00:00:00:02", source: "domain"},
		"agent":                  {vmi: testVMI(bridged), pod: launcher("10.16.0.1"), agent: true, ips: []string{"10.16.0.1", ll}, source: "domain, guest-agent"},
		"agent under masquerade": {vmi: testVMI(masquerade), pod: launcher("10.16.0.1", "fd00::1"), agent: true, ips: []string{"10.16.0.1", "fd00::1"}, source: "domain, guest-agent"},
		"the pod's address hides a guest that kept another": {vmi: testVMI(bridged), pod: launcher("10.16.0.9"), first: launcher("10.16.0.1"), agent: true, ips: []string{"10.16.0.9", ll}, source: "domain, guest-agent"},
		"the agent fills a family that the pod lacks":       {vmi: testVMI(bridged), pod: launcher("10.16.0.1"), agent: true, guest: "10.16.0.7,fd00::7", ips: []string{"10.16.0.1", "fd00::7", ll}, source: "domain, guest-agent"},
		"the agent clears a family that the guest lacks":    {vmi: testVMI(bridged), pod: launcher("10.16.0.1"), agent: true, guest: "fd00::7", ips: []string{"fd00::7", ll}, source: "domain, guest-agent"},
		"a guest without addresses":                         {vmi: testVMI(bridged), pod: launcher("10.16.0.1"), agent: true, guest: "none", source: "domain, guest-agent"},
		"told without an agent to tell":                     {vmi: testVMI(bridged), pod: launcher("10.16.0.1"), guest: "10.16.0.7", ips: []string{"10.16.0.1"}, source: "domain"},
		"MAC kept over a migration": {vmi: testVMI(bridged, func(v *kubevirtv1.VirtualMachineInstance) {
			v.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "default", MAC: "02:00:00:00:00:03", PodInterfaceName: "eth0"}}
		}), pod: launcher("10.16.0.1"), ips: []string{"10.16.0.1"}, mac: "02:00:00:00:00:03", source: "domain"},
	} {
		t.Run(name, func(t *testing.T) {
			f := faults{{}}
			if c.guest != "" {
				f[0][GuestAddress] = c.guest
			}
			if c.first == nil {
				c.first = c.pod
			}
			if err := reportInterfaces(c.vmi, c.pod, c.first, c.agent, f); err != nil {
				t.Fatal(err)
			}
			if c.mac == "" {
				c.mac = "02:00:00:00:00:01"
			}
			got := c.vmi.Status.Interfaces[0]
			if !slices.Equal(got.IPs, c.ips) || got.MAC != c.mac || got.InfoSource != c.source || got.Name != "default" || got.QueueCount != 1 || got.LinkState != "up" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestReportSecondaryInterface(t *testing.T) {
	vmi := testVMI(masquerade, func(v *kubevirtv1.VirtualMachineInstance) {
		v.Spec.Networks = append(v.Spec.Networks, kubevirtv1.Network{Name: "network1", NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "lan"}}})
		v.Spec.Domain.Devices.Interfaces = append([]kubevirtv1.Interface{{Name: "network1", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}}}, v.Spec.Domain.Devices.Interfaces...)
		v.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "network1", InfoSource: "multus-status", PodInterfaceName: "poda7662f44d65"}}
	})
	pod := launcher("10.16.0.1")
	pod.Annotations["k8s.v1.cni.cncf.io/network-status"] = `[{"name":"p","interface":"eth0","ips":["10.16.0.1"],"default":true},
		{"name":"a/lan","interface":"poda7662f44d65","ips":["198.51.100.4"],"mac":"02:00:00:00:00:09"}]`
	if err := reportInterfaces(vmi, pod, pod, false, nil); err != nil {
		t.Fatal(err)
	}
	got := vmi.Status.Interfaces
	if len(got) != 2 || got[0].Name != "default" || got[1].IP != "198.51.100.4" || got[1].MAC != "02:00:00:00:00:09" || got[1].InfoSource != "domain, multus-status" || got[1].PodInterfaceName != "poda7662f44d65" {
		t.Errorf("got %+v", got)
	}
}

func TestReaddress(t *testing.T) {
	for _, c := range []struct{ value, ip, annotation string }{
		{"true", "10.16.0.43", "10.16.0.43/32,10.16.0.11,110.16.0.1"},
		{"10.9.9.9", "10.9.9.9", "10.9.9.9/32,10.16.0.11,110.16.0.1"},
		{"fd00::9", "10.16.0.43", "10.16.0.43/32,10.16.0.11,110.16.0.1"},
	} {
		sb := &sandbox{IPs: []string{"10.16.0.1"}, annotations: map[string]string{"x": "10.16.0.1/32,10.16.0.11,110.16.0.1"}}
		sb.readdress(c.value)
		if sb.IPs[0] != c.ip || sb.annotations["x"] != c.annotation {
			t.Errorf("%s: %+v, %v", c.value, sb, sb.annotations)
		}
	}
}
