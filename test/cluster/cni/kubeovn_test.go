package cni

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	ovnAddress = "ovn.kubernetes.io/ip_address"
	ovnMACKey  = "ovn.kubernetes.io/mac_address"
)

func ovnPin(v string) map[string]string { return map[string]string{ovnAddress: v} }

func (w *world) ovn() *kubeOVN { return w.d.(*kubeOVN) }

func (w *world) ip(name string) *ovnIP {
	w.Helper()
	ip, err := w.ovn().ips.get(w.Context(), "", name)
	must(w.T, ignoreNotFound(err))
	return ip
}

func (w *world) ipGone(name string) {
	w.Helper()
	w.gone("IP "+name+" is gone", func() error { _, err := w.ovn().ips.get(w.Context(), "", name); return err })
}

// ovnFails wants what the CNI server says, and the controller's event.
func (w *world) ovnFails(p *corev1.Pod, provider, reason, message string) {
	w.Helper()
	e := w.addFails(p, `plugin type="kube-ovn" failed (add): RPC failed; request ip return 500 no address allocated to pod tenant-a/`+p.Name+" provider "+provider+", please see kube-ovn-controller logs to find errors")
	want := Event{Type: "Warning", Reason: reason, Message: message, Component: "kube-ovn-controller"}
	switch {
	case reason == "" && len(e.Events) == 0:
	case len(e.Events) == 1 && e.Events[0] == want:
	default:
		w.Errorf("events: got %+v, want %+v", e.Events, want)
	}
}

func (w *world) nad(name, config string) {
	w.Helper()
	n := &netAttachDef{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	n.Spec.Config = config
	must(w.T, newMultus(w.kube).nads.ensure(w.Context(), ns, n))
}

func statusOf(t *testing.T, r Result) []networkStatus {
	t.Helper()
	var s []networkStatus
	must(t, json.Unmarshal([]byte(r.Annotations[networkStatusAnnotation]), &s))
	return s
}

func TestKubeOVN(t *testing.T) {
	w := newWorld(t, "kube-ovn")
	ctx := t.Context()

	s, err := w.ovn().subnets.get(ctx, "", ovnDefault)
	must(t, err)
	if s.Spec.Gateway != "198.51.100.1" || len(s.Spec.ExcludeIPs) != 1 || s.Spec.ExcludeIPs[0] != "198.51.100.1" || s.Spec.Protocol != "IPv4" || s.available(32) != 253 {
		t.Errorf("ovn-default: %+v %v", s.Spec, s.Status)
	}

	g := w.start(w.vm("db-1"), "n1", ovnPin("198.51.100.20"))
	w.equal("pin", g.ips(), "198.51.100.20")
	w.sub("record", func(t *testing.T) {
		ip := w.ip("db-1.tenant-a")
		if ip == nil || ip.Spec.PodName != "db-1" || ip.Spec.V4IPAddress != "198.51.100.20" || ip.Spec.PodType != "VirtualMachine" || ip.Spec.NodeName != "n1" ||
			ip.Spec.MACAddress != g.res.MAC || ip.Labels[ovnReservedLabel] != "false" || ip.Labels[ovnSubnetLabel] != ovnDefault {
			t.Errorf("IP: %+v", ip)
		}
		for key, want := range map[string]string{
			"allocated": "true", "routed": "true", "ip_address": "198.51.100.20", "mac_address": g.res.MAC, "cidr": "198.51.100.0/24", "gateway": "198.51.100.1",
			"logical_switch": "ovn-default", "logical_router": "ovn-cluster", "virtualmachine": "db-1", "pod_nic_type": "veth-pair",
		} {
			w.equal(key, g.res.Annotations["ovn.kubernetes.io/"+key], want)
		}
		if st := statusOf(t, g.res); len(st) != 1 || st[0].Name != "kube-ovn" || !st[0].Default || st[0].IPs[0] != "198.51.100.20" || st[0].MAC != g.res.MAC {
			t.Errorf("network-status: %+v", st)
		}
	})

	w.sub("refusals", func(t *testing.T) {
		for i, c := range []struct{ value, reason, message string }{
			{"198.51.100.20", "AcquireAddressFailed", "AddressConflict"},
			{"203.0.113.7", "AcquireAddressFailed", "AddressOutOfRange"},
			{"198.51.100.255", "AcquireAddressFailed", "AddressOutOfRange"},
			{"2001:db8::1", "AcquireAddressFailed", "AddressOutOfRange"},
			{"198.51.100.30, 198.51.100.31", "ValidatePodNetworkFailed", " 198.51.100.31 is not a valid ovn.kubernetes.io/ip_address"},
			{`["198.51.100.30"]`, "ValidatePodNetworkFailed", `["198.51.100.30"] is not a valid ovn.kubernetes.io/ip_address`},
		} {
			w.ovnFails(w.plain("refused-"+string(rune('a'+i)), "n1", ovnPin(c.value)), "ovn", c.reason, c.message)
		}
		w.ovnFails(w.plain("refused-mac", "n1", map[string]string{ovnMACKey: g.res.MAC}), "ovn", "AcquireAddressFailed", "AddressConflict")
	})

	w.sub("migration", func(t *testing.T) {
		mac := g.res.MAC
		target, err := g.migrate("n2")
		must(t, err)
		w.equal("target", target.ips(), "198.51.100.20")
		w.equal("its MAC", target.res.MAC, mac)
		w.equal("node of the record", w.ip("db-1.tenant-a").Spec.NodeName, "n2")
		g.handOver(target)
		w.never("the source takes the address along", func() bool { return w.ip("db-1.tenant-a") == nil })
	})

	w.sub("stopped VM keeps its address and MAC", func(t *testing.T) {
		mac := g.res.MAC
		g.shutDown()
		w.never("the record goes", func() bool { return w.ip("db-1.tenant-a") == nil })
		w.ovnFails(w.plain("thief", "n2", ovnPin("198.51.100.20")), "ovn", "AcquireAddressFailed", "AddressConflict")
		g = w.start(g.vm, "n1", nil)
		w.equal("without the annotation", g.ips(), "198.51.100.20")
		w.equal("its MAC", g.res.MAC, mac)
	})

	w.sub("changed annotation wins", func(t *testing.T) {
		mac := g.res.MAC
		g.shutDown()
		g = w.start(g.vm, "n1", map[string]string{ovnAddress: "198.51.100.40"})
		w.equal("address", g.ips(), "198.51.100.40")
		if g.res.MAC == mac {
			t.Error("the MAC outlives its address")
		}
		w.equal("the old one", w.mustAdd(w.plain("takes-20", "n2", ovnPin("198.51.100.20"))).ips(), "198.51.100.20")
		g.shutDown()
		g = w.start(g.vm, "n1", map[string]string{ovnAddress: "198.51.100.40", ovnMACKey: "02:00:00:00:00:40"})
		w.equal("MAC that is asked for", g.res.MAC, "02:00:00:00:00:40")
	})

	w.sub("a failed change loses the old address", func(t *testing.T) {
		g.shutDown()
		failed, err := w.tryStart(g.vm, "n1", ovnPin("198.51.100.20"))
		if err == nil {
			t.Fatal("198.51.100.20 is in use")
		}
		w.equal("record", w.ip("db-1.tenant-a").Spec.V4IPAddress, "198.51.100.40")
		thief := w.mustAdd(w.plain("takes-40", "n2", ovnPin("198.51.100.40")))
		w.equal("and yet", thief.ips(), "198.51.100.40")
		thief.end()
		w.ipGone("takes-40.tenant-a")
		must(t, w.kube.core.CoreV1().Pods(ns).Delete(ctx, failed.req.Pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		w.delete("virtualmachineinstances", "db-1")
		g = w.start(g.vm, "n1", ovnPin("198.51.100.40"))
	})

	w.sub("reserved ahead", func(t *testing.T) {
		reserve := func(name, addr string) {
			ip := &ovnIP{ObjectMeta: metav1.ObjectMeta{Name: name + ".tenant-a"}}
			ip.Spec = ovnIPSpec{PodName: name, Namespace: ns, Subnet: ovnDefault, V4IPAddress: addr, PodType: "VirtualMachine", AttachIPs: []string{}, AttachMACs: []string{}, AttachSubnets: []string{}}
			_, err := w.ovn().ips.create(ctx, "", ip)
			must(t, err)
		}
		reserve("web-1", "198.51.100.70")
		eventually(t, "the reservation is taken in", func() bool { return w.ip("web-1.tenant-a").Labels[ovnReservedLabel] == "true" })
		w.ovnFails(w.plain("wants-70", "n1", ovnPin("198.51.100.70")), "ovn", "AcquireAddressFailed", "AddressConflict")
		v := w.start(w.vm("web-1"), "n2", nil)
		w.equal("the VM's first start", v.ips(), "198.51.100.70")
		v.shutDown()
		w.delete("virtualmachines", "web-1")
		w.ipGone("web-1.tenant-a") // although it was reserved by hand: the VM had a port
		reserve("never-1", "198.51.100.71")
		eventually(t, "the reservation is taken in", func() bool { return w.ip("never-1.tenant-a").Labels[ovnReservedLabel] == "true" })
		reserve("never-2", "198.51.100.71") // twice, and nobody objects
		eventually(t, "the reservation is taken in", func() bool { return w.ip("never-2.tenant-a").Labels[ovnReservedLabel] == "true" })
		w.ovnFails(w.plain("wants-71", "n1", ovnPin("198.51.100.71")), "ovn", "AcquireAddressFailed", "AddressConflict")
		for _, name := range []string{"never-1", "never-2"} {
			must(t, w.ovn().ips.delete(ctx, "", name+".tenant-a"))
			w.ipGone(name + ".tenant-a")
		}
	})

	w.sub("pods", func(t *testing.T) {
		a := w.mustAdd(w.plain("auto-1", "n1", nil))
		b := w.mustAdd(w.plain("auto-2", "n2", nil))
		a.end()
		w.ipGone("auto-1.tenant-a")
		c := w.mustAdd(w.plain("auto-3", "n2", nil))
		if !a.res.IPs[0].Less(b.res.IPs[0]) || !b.res.IPs[0].Less(c.res.IPs[0]) {
			t.Errorf("not ascending: %s %s %s", a.ips(), b.ips(), c.ips())
		}
		b.phase(corev1.PodSucceeded) // frees before the object goes
		w.ipGone("auto-2.tenant-a")
		w.equal("list", w.mustAdd(w.plain("listed", "n1", map[string]string{"ovn.kubernetes.io/ip_pool": "198.51.100.20,198.51.100.99"})).ips(), "198.51.100.99")
	})

	w.sub("excluded", func(t *testing.T) {
		must(t, w.ovn().subnets.patch(ctx, "", ovnDefault, map[string]any{"spec": map[string]any{"excludeIps": []string{"198.51.100.1", "198.51.100.100..198.51.100.110"}}}))
		w.equal("address out of excludeIps", w.mustAdd(w.plain("excluded", "n1", ovnPin("198.51.100.105"))).ips(), "198.51.100.105")
	})

	w.sub("secondary", func(t *testing.T) {
		w.nad("net-x", `{"cniVersion":"0.3.1","type":"kube-ovn","server_socket":"/run/openvswitch/kube-ovn-daemon.sock","provider":"net-x.tenant-a.ovn"}`)
		w.nad("plain", `{"cniVersion":"0.3.1","type":"bridge","bridge":"br0"}`)
		sub := &ovnSubnet{ObjectMeta: metav1.ObjectMeta{Name: "net-x"}}
		sub.Spec = ovnSubnetSpec{CIDRBlock: "203.0.113.0/24", Provider: "net-x.tenant-a.ovn"}
		_, err := w.ovn().subnets.create(ctx, "", sub)
		must(t, err)
		eventually(t, "the subnet is formatted", func() bool {
			s, err := w.ovn().subnets.get(ctx, "", "net-x")
			return err == nil && s.Spec.Gateway == "203.0.113.1" && s.available(32) == 253
		})
		networks := `[{"namespace":"tenant-a","name":"net-x","interface":"poda7662f44d65","mac":"02:00:00:00:00:07"},{"namespace":"tenant-a","name":"plain","interface":"pod27f4a77f94e"}]`
		v := w.start(w.vm("two-nics"), "n1", map[string]string{networksAnnotation: networks, "net-x.tenant-a.ovn.kubernetes.io/ip_address": "203.0.113.7", ovnAddress: "198.51.100.90"})
		w.equal("primary", v.ips(), "198.51.100.90")
		st := statusOf(t, v.res)
		if len(st) != 3 || st[1].Name != "tenant-a/net-x" || st[1].Interface != "poda7662f44d65" || strings.Join(st[1].IPs, "") != "203.0.113.7" || st[1].MAC != "02:00:00:00:00:07" ||
			st[2].Interface != "pod27f4a77f94e" || len(st[2].IPs) != 0 || st[2].MAC == "" {
			t.Errorf("network-status: %+v", st)
		}
		ip := w.ip("two-nics.tenant-a.net-x.tenant-a.ovn")
		if ip == nil || ip.Spec.Subnet != "net-x" || ip.Spec.V4IPAddress != "203.0.113.7" {
			t.Errorf("IP of the attachment: %+v", ip)
		}
		w.equal("annotation", v.res.Annotations["net-x.tenant-a.ovn.kubernetes.io/logical_switch"], "net-x")
		// The primary's check knows nothing of this key: a space ends in another sentence.
		w.ovnFails(w.plain("space", "n1", map[string]string{networksAnnotation: "net-x", "net-x.tenant-a.ovn.kubernetes.io/ip_address": "203.0.113.8, "}), "ovn", "AcquireAddressFailed", "failed to parse IP  ")
		target, err := v.migrate("n2")
		must(t, err)
		w.equal("the attachment of the target", statusOf(t, target.res)[1].IPs[0], "203.0.113.7")
		v.handOver(target)
		v.shutDown()
		w.delete("virtualmachines", "two-nics")
		w.ipGone("two-nics.tenant-a")
		w.ipGone("two-nics.tenant-a.net-x.tenant-a.ovn")
	})

	w.sub("keep-vm-ip=false", func(t *testing.T) {
		setKeep := func(v string) {
			patch := `[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["/kube-ovn/start-controller.sh","--keep-vm-ip=` + v + `"]}]`
			_, err := w.kube.core.AppsV1().Deployments(kubeSystem).Patch(ctx, ovnController, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
			must(t, err)
		}
		setKeep("false")
		v := w.start(w.vm("loose"), "n1", ovnPin("198.51.100.80"))
		_, err := v.migrate("n2")
		if err == nil {
			t.Error("two pods share an address without keep-vm-ip")
		}
		v.shutDown()
		w.ipGone(v.req.Pod.Name + ".tenant-a")
		setKeep("true")
	})

	w.sub("deletion while running", func(t *testing.T) {
		w.deleting("virtualmachines", "db-1")
		w.deleting("virtualmachineinstances", "db-1")
		g.end()
		w.ipGone("db-1.tenant-a")
	})

	w.sub("controller restart", func(t *testing.T) {
		v := w.start(w.vm("db-9"), "n1", ovnPin("198.51.100.95"))
		v.shutDown()
		w.restart()
		w.ovnFails(w.plain("wants-95", "n1", ovnPin("198.51.100.95")), "ovn", "AcquireAddressFailed", "AddressConflict")
		w.stop()
		w.delete("virtualmachines", "db-9") // while no controller looks
		w.restart()
		w.ipGone("db-9.tenant-a")
	})

	w.parallel(w.d) // one controller allocates
}

func TestKubeOVNFull(t *testing.T) {
	w := newWorld(t, "kube-ovn", "198.51.100.0/29")
	g := w.start(w.vm("db-1"), "n1", nil)
	for _, n := range []string{"a", "b", "c", "d"} {
		w.mustAdd(w.plain(n, "n1", nil))
	}
	w.ovnFails(w.plain("e", "n1", nil), "ovn", "", "")
	g.shutDown()
	// The VM's own address counts as used: a full subnet locks it out.
	if _, err := w.tryStart(g.vm, "n1", nil); err == nil {
		t.Error("a VM with an address starts in a full subnet")
	}
	if _, err := w.ovn().ips.get(context.Background(), "", "db-1.tenant-a"); apierrors.IsNotFound(err) {
		t.Error("the record is lost")
	}
}

func TestKubeOVNDualStack(t *testing.T) {
	w := newWorld(t, "kube-ovn", "198.51.100.0/24", "fd00:10:244::/64")
	w.equal("automatic", w.mustAdd(w.plain("auto", "n1", nil)).ips(), "198.51.100.2,fd00:10:244::2")
	g := w.start(w.vm("db-1"), "n1", ovnPin("198.51.100.20,fd00:10:244::20"))
	w.equal("pair", g.ips(), "198.51.100.20,fd00:10:244::20")
	ip := w.ip("db-1.tenant-a")
	if ip.Spec.IPAddress != "198.51.100.20,fd00:10:244::20" || ip.Spec.V6IPAddress != "fd00:10:244::20" {
		t.Errorf("IP: %+v", ip.Spec)
	}
	g.shutDown()
	g = w.start(g.vm, "n2", ovnPin("198.51.100.30"))
	w.equal("one family changed, the other kept", g.ips(), "198.51.100.30,fd00:10:244::20")
	w.equal("one family given, the other completed", w.mustAdd(w.plain("half", "n1", ovnPin("fd00:10:244::40"))).ips(), "198.51.100.3,fd00:10:244::40")
	w.ovnFails(w.plain("half-taken", "n1", ovnPin("198.51.100.50,fd00:10:244::40")), "ovn", "AcquireAddressFailed", "AddressConflict")
	w.equal("nothing of it is left", w.mustAdd(w.plain("later", "n1", ovnPin("198.51.100.50"))).res.IPs[0].String(), "198.51.100.50")
}
