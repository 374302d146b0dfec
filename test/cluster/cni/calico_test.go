package cni

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func calicoPin(v string) map[string]string { return map[string]string{calicoIPAddrs: v} }

const calicoFailed = `plugin type="calico" failed (add): `

// record is the attribute of an address, nil for a free one.
func (d *calico) record(ctx context.Context, a string) *calicoAttribute {
	blocks, _ := d.blocks.list(ctx, "")
	for i := range blocks {
		if addr := netip.MustParseAddr(a); blocks[i].prefix().Contains(addr) {
			return blocks[i].attribute(addr)
		}
	}
	return nil
}

func (w *world) calico() *calico { return w.d.(*calico) }

func (w *world) free(a string) {
	w.Helper()
	eventually(w.T, a+" is free", func() bool { return w.calico().record(w.Context(), a) == nil })
}

func (w *world) handle(id string) *calicoHandle {
	w.Helper()
	h, err := w.calico().handles.get(w.Context(), "", id)
	must(w.T, ignoreNotFound(err))
	return h
}

func TestCalico331(t *testing.T) {
	w := newWorld(t, "calico-3.31")
	d := w.calico()
	ctx := t.Context()

	w.sub("client's view", func(t *testing.T) {
		ci, err := newTable[settings](w.kube, schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: "clusterinformations"}, "ClusterInformation").get(ctx, "", "default")
		must(t, err)
		if ci.Spec["calicoVersion"] != "v3.31.5" {
			t.Error(ci.Spec)
		}
		ds, err := w.kube.core.AppsV1().DaemonSets(kubeSystem).Get(ctx, "calico-node", getOptions)
		must(t, err)
		if img := ds.Spec.Template.Spec.Containers[0].Image; img != "quay.io/calico/node:v3.31.5" {
			t.Error(img)
		}
		// 3.31 does not know the switch: its server prunes it.
		c := &calicoIPAMConfig{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		c.Spec.KubeVirtVMAddressPersistence = "Disabled"
		c, err = d.configs.create(ctx, "", c)
		must(t, err)
		if c.Spec.KubeVirtVMAddressPersistence != "" {
			t.Error("the 3.31 definition keeps kubeVirtVMAddressPersistence")
		}
	})

	g := w.start(w.vm("db-1"), "n1", map[string]string{calicoIPAddrs: `["198.51.100.20"]`, calicoHWAddr: "1C:0C:0A:C0:FF:EE"})
	w.sub("pin", func(t *testing.T) {
		w.equal("address", g.ips(), "198.51.100.20")
		w.equal("MAC", g.res.MAC, "1c:0c:0a:c0:ff:ee")
		w.equal("podIPs", g.res.Annotations[calicoPodIPs], "198.51.100.20/32")
		a := d.record(ctx, "198.51.100.20")
		if a == nil || a.Handle != "k8s-pod-network."+g.req.ContainerID || a.Active["pod"] != g.req.Pod.Name || a.Active["node"] != "n1" {
			t.Errorf("record: %+v", a)
		}
		if h := w.handle("k8s-pod-network." + g.req.ContainerID); h == nil || h.Spec.Block["198.51.100.0/26"] != 1 {
			t.Errorf("handle: %+v", h)
		}
	})

	w.sub("refusals", func(t *testing.T) {
		for i, c := range []struct {
			annotations map[string]string
			message     string
		}{
			{calicoPin(`["198.51.100.20"]`), calicoFailed + "error getting IP from IPAM: resource already exists: 198.51.100.20"},
			{calicoPin(`["203.0.113.7"]`), calicoFailed + "error getting IP from IPAM: The provided IP address is not in a configured pool\n"},
			{calicoPin(`["198.51.100.30","198.51.100.31"]`), calicoFailed + `cannot have more than one IPv4 address for "cni.projectcalico.org/ipAddrs" annotation`},
			{map[string]string{calicoIPAddrs: `["198.51.100.30"]`, calicoIPAddrsNoIPAM: `["198.51.100.30"]`}, calicoFailed + "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time"},
			{map[string]string{calicoIPAddrsNoIPAM: `["198.51.100.30"]`}, calicoFailed + "requested feature is not enabled: ip_addrs_no_ipam"},
			{map[string]string{calicoIPAddrs: `["198.51.100.30"]`, calicoHWAddr: "nonsense"}, calicoFailed + "failed to parse MAC address nonsense provided via cni.projectcalico.org/hwAddr: address nonsense: invalid MAC address"},
			{map[string]string{networksAnnotation: `[{"name":"dmz"}]`}, ""},
		} {
			p := w.plain("refused-"+string(rune('a'+i)), "n1", c.annotations)
			if c.message == "" {
				c.message = `plugin type="multus" failed (add): Multus: [tenant-a/` + p.Name + "/" + string(p.UID) + "]: error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: " +
					`GetNetworkDelegates: failed getting the delegate: getKubernetesDelegate: cannot find a network-attachment-definition (dmz) in namespace (tenant-a): network-attachment-definitions.k8s.cni.cncf.io "dmz" not found`
			}
			w.addFails(p, c.message)
		}
		w.free("198.51.100.30") // nothing of what failed is left
	})

	w.sub("migration fails", func(t *testing.T) {
		_, err := g.migrate("n2")
		if err == nil || err.Error() != calicoFailed+"error getting IP from IPAM: resource already exists: 198.51.100.20" {
			t.Errorf("second launcher: %v", err)
		}
		if a := d.record(ctx, "198.51.100.20"); a == nil || a.Active["pod"] != g.req.Pod.Name {
			t.Errorf("the source lost its record: %+v", a)
		}
	})

	w.sub("stopped VM can be robbed", func(t *testing.T) {
		g.shutDown()
		w.free("198.51.100.20")
		thief := w.mustAdd(w.plain("thief", "n2", calicoPin(`["198.51.100.20"]`)))
		again, err := w.tryStart(g.vm, "n1", g.annotations)
		if err == nil || err.Error() != calicoFailed+"error getting IP from IPAM: resource already exists: 198.51.100.20" {
			t.Errorf("start after the theft: %v", err)
		}
		thief.end()
		s := w.mustAdd(again.req.Pod)
		w.equal("after the thief has gone", s.ips(), "198.51.100.20")
		s.end()
		w.delete("virtualmachineinstances", "db-1")
	})

	w.sub("changed annotation wins at a restart", func(t *testing.T) {
		g := w.start(g.vm, "n1", calicoPin(`["198.51.100.40"]`))
		w.equal("address", g.ips(), "198.51.100.40")
		w.free("198.51.100.20")
		g.shutDown()
	})

	w.sub("automatic", func(t *testing.T) {
		reservation := &calicoReservation{ObjectMeta: metav1.ObjectMeta{Name: "vmip"}}
		block := d.blockFor(ctx, t, "n2")
		reservation.Spec.ReservedCIDRs = []string{block.addr(0).String() + "/31"}
		_, err := d.reservations.create(ctx, "", reservation)
		must(t, err)
		s := w.mustAdd(w.plain("auto", "n2", nil))
		w.equal("first free address that is not reserved", s.ips(), block.addr(2).String())
		w.equal("a reserved one that is asked for", w.mustAdd(w.plain("asks", "n2", calicoPin(`["`+block.addr(0).String()+`"]`))).ips(), block.addr(0).String())
		s.end()
		// What was freed last comes last.
		w.equal("the next one", w.mustAdd(w.plain("auto-2", "n2", nil)).ips(), block.addr(3).String())
	})

	w.sub("named pool", func(t *testing.T) {
		p := &calicoPool{ObjectMeta: metav1.ObjectMeta{Name: "vms"}, Spec: calicoPoolSpec{CIDR: "192.0.2.0/26", NodeSelector: "!all()"}}
		_, err := d.pools.create(ctx, "", p)
		must(t, err)
		w.equal("by pool", w.mustAdd(w.plain("pooled", "n1", map[string]string{calicoIPv4Pools: `["vms"]`})).ips(), "192.0.2.0")
		w.equal("pinned", w.mustAdd(w.plain("pinned", "n1", calicoPin(`["192.0.2.33"]`))).ips(), "192.0.2.33")
	})

	w.sub("second Calico network", func(t *testing.T) {
		w.nad("calico-dmz", `{"cniVersion":"0.3.1","name":"dmz","type":"calico","ipam":{"type":"calico-ipam"}}`)
		auto := w.mustAdd(w.plain("both", "n1", map[string]string{networksAnnotation: "calico-dmz"}))
		second := statusOf(t, auto.res)[1].IPs[0]
		if a := d.record(ctx, second); a == nil || a.Handle != "dmz."+auto.req.ContainerID {
			t.Errorf("record: %+v", a)
		}
		auto.end()
		w.free(second)
		// The pin is read by each of the two interfaces.
		w.addFails(w.plain("both-pinned", "n1", map[string]string{networksAnnotation: "calico-dmz", calicoIPAddrs: `["192.0.2.35"]`}),
			calicoFailed+"error getting IP from IPAM: resource already exists: 192.0.2.35")
		w.free("192.0.2.35")
	})

	w.sub("leak", func(t *testing.T) {
		w.mustAdd(w.plain("leaks", "n1", calicoPin(`["192.0.2.40"]`)))
		must(t, w.kube.core.CoreV1().Pods(ns).Delete(ctx, "leaks", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})) // and no DEL
		if w.calico().record(ctx, "192.0.2.40") == nil {
			t.Error("freed without DEL")
		}
		w.free("192.0.2.40")
	})

	w.restart()
	w.addFails(w.plain("after-restart", "n1", calicoPin(`["192.0.2.33"]`)), calicoFailed+"error getting IP from IPAM: resource already exists: 192.0.2.33")
	w.parallel(w.d, w.twin())
}

// blockFor is the block that the node allocates from.
func (d *calico) blockFor(ctx context.Context, t *testing.T, node string) *calicoBlock {
	t.Helper()
	w := &world{T: t, d: d, kube: d.kube}
	s := w.mustAdd(w.plain("probe-"+node, node, nil))
	s.end()
	blocks, err := d.blocks.list(ctx, "")
	must(t, err)
	i := slices.IndexFunc(blocks, func(b calicoBlock) bool { return b.affine(node) && b.prefix().Contains(s.res.IPs[0]) })
	if i < 0 {
		t.Fatal("no block for", node)
	}
	return &blocks[i]
}

func TestCalico332(t *testing.T) {
	w := newWorld(t, "calico-3.32")
	d := w.calico()
	ctx := t.Context()
	const handle = "k8s-pod-network.vmi.tenant-a.db-1"

	pool, err := d.pools.get(ctx, "", "default-ipv4-ippool")
	must(t, err)
	if pool.Spec.IPIPMode != "Never" || pool.Spec.VXLANMode != "Never" || pool.Spec.NATOutgoing || pool.Spec.BlockSize != 26 {
		t.Errorf("default pool: %+v", pool.Spec)
	}

	g := w.start(w.vm("db-1"), "n1", calicoPin(`["198.51.100.20"]`))
	w.equal("pin", g.ips(), "198.51.100.20")
	a := d.record(ctx, "198.51.100.20")
	if a == nil || a.Handle != handle || a.Active["vmi-name"] != "db-1" || a.Active["vm-uid"] != string(g.vm.GetUID()) || a.Active["vmi-uid"] != string(g.instance.GetUID()) {
		t.Errorf("record: %+v", a)
	}
	if h := w.handle(handle); h == nil || h.Spec.Block["198.51.100.0/26"] != 1 {
		t.Errorf("handle: %+v", h)
	}
	cfg, err := d.configs.get(ctx, "", "default")
	must(t, err)
	w.equal("IPAMConfiguration of the first allocation", cfg.Spec.KubeVirtVMAddressPersistence, "Enabled")

	conflict := calicoFailed + "error getting IP from IPAM: resource already exists: 198.51.100.20 with error: Address already assigned in block"
	w.addFails(w.plain("foreign", "n2", calicoPin(`["198.51.100.20"]`)), conflict)

	w.sub("migration", func(t *testing.T) {
		target, err := g.migrate("n2")
		must(t, err)
		w.equal("target", target.ips(), "198.51.100.20")
		a := d.record(ctx, "198.51.100.20")
		if a.Active["pod"] != g.req.Pod.Name || a.Alternate["pod"] != target.req.Pod.Name || a.Alternate["vmim-uid"] != "job-uid" || a.Alternate["node"] != "n2" {
			t.Errorf("before the hand-over: %+v", a)
		}
		source := g.req.Pod.Name
		g.handOver(target)
		eventually(t, "Felix makes the target the active owner", func() bool {
			a := d.record(ctx, "198.51.100.20")
			return a.Active["pod"] == target.req.Pod.Name && a.Alternate["pod"] != source
		})
		must(t, w.d.Del(ctx, Request{Pod: g.req.Pod, Node: "n1", ContainerID: "gone"}))
	})

	w.sub("failed migration", func(t *testing.T) {
		g.shutDown()
		g = w.start(g.vm, "n1", g.annotations)
		target, err := g.migrate("n2")
		must(t, err)
		target.end()
		if a := d.record(ctx, "198.51.100.20"); a.Active["pod"] != g.req.Pod.Name || len(a.Alternate) != 0 {
			t.Errorf("after the target has gone: %+v", a)
		}
	})

	w.sub("stopped VM keeps its address", func(t *testing.T) {
		g.shutDown()
		a := d.record(ctx, "198.51.100.20")
		if a == nil || a.Handle != handle || len(a.Active) != 0 || len(a.Alternate) != 0 {
			t.Errorf("record of a stopped VM: %+v", a)
		}
		w.addFails(w.plain("thief", "n2", calicoPin(`["198.51.100.20"]`)), conflict)
	})

	w.sub("changed annotation is ignored", func(t *testing.T) {
		g = w.start(g.vm, "n2", calicoPin(`["198.51.100.40"]`))
		w.equal("address", g.ips(), "198.51.100.20")
		if d.record(ctx, "198.51.100.40") != nil {
			t.Error("198.51.100.40 was taken")
		}
	})

	w.sub("persistence disabled", func(t *testing.T) {
		must(t, d.configs.patch(ctx, "", "default", map[string]any{"spec": map[string]any{"kubeVirtVMAddressPersistence": "Disabled"}}))
		_, err := g.migrate("n1")
		if want := calicoFailed + "error getting IP from IPAM: live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled"; err == nil || err.Error() != want {
			t.Errorf("target: %v", err)
		}
		other := w.start(w.vm("web-1"), "n1", calicoPin(`["198.51.100.50"]`))
		w.equal("handle", d.record(ctx, "198.51.100.50").Handle, "k8s-pod-network."+other.req.ContainerID)
		other.shutDown()
		w.free("198.51.100.50")
		must(t, d.configs.patch(ctx, "", "default", map[string]any{"spec": map[string]any{"kubeVirtVMAddressPersistence": nil}}))
	})

	w.sub("started before the upgrade", func(t *testing.T) {
		vm := w.vm("old-1")
		vmi := w.vmi(vm)
		_, err := w.add(w.pod("", "n2", nil, vmi, true))
		if want := calicoFailed + "migration target pod but no IP allocated to VM handle k8s-pod-network.vmi.tenant-a.old-1"; err == nil || err.Error() != want {
			t.Errorf("target without a handle: %v", err)
		}
	})

	w.sub("forged owner", func(t *testing.T) {
		forged := g.instance.DeepCopy()
		forged.SetUID("11111111-2222-3333-4444-555555555555")
		p := w.pod("", "n1", calicoPin(`["198.51.100.20"]`), forged, false)
		_, err := w.d.Add(ctx, Request{Pod: p, Node: "n1", ContainerID: "forged"})
		if want := calicoFailed + "error getting IP from IPAM: failed to get VMI info: VMI UID mismatch: pod ownerReference has 11111111-2222-3333-4444-555555555555 but VMI resource has " + string(g.instance.GetUID()); err == nil || err.Error() != want {
			t.Errorf("got %v", err)
		}
	})

	w.sub("deletion while running", func(t *testing.T) {
		w.deleting("virtualmachines", "db-1")
		g.end()
		if d.record(ctx, "198.51.100.20") != nil {
			t.Error("the address of a VM that goes is kept at DEL")
		}
		if w.handle(handle) != nil {
			t.Error("the handle is left")
		}
	})

	w.sub("deletion while stopped", func(t *testing.T) {
		g := w.start(w.vm("db-2"), "n1", calicoPin(`["198.51.100.60"]`))
		time.Sleep(2 * w.opts.GCAfter) // the collector has seen whose it is
		g.shutDown()
		w.delete("virtualmachines", "db-2")
		w.free("198.51.100.60")
	})

	w.sub("deletion while stopped and the collector new", func(t *testing.T) {
		g := w.start(w.vm("db-3"), "n1", calicoPin(`["198.51.100.61"]`))
		g.shutDown()
		w.restart()
		d = w.calico()
		w.delete("virtualmachines", "db-3")
		w.never("a collector that never saw the owner frees it", func() bool { return d.record(ctx, "198.51.100.61") == nil })
	})

	w.parallel(w.d, w.twin())
}

func TestCalicoDualStack(t *testing.T) {
	for _, driver := range []string{"calico-3.31", "calico-3.32"} {
		t.Run(driver, func(t *testing.T) {
			w := newWorld(t, driver, "198.51.100.0/24", "fd00:10:244::/64")
			d := w.calico()
			s := w.mustAdd(w.plain("auto", "n1", nil))
			if len(s.res.IPs) != 2 || !s.res.IPs[0].Is4() || !s.res.IPs[1].Is6() {
				t.Errorf("automatic addresses: %s", s.ips())
			}
			pin := calicoPin(`["198.51.100.20","fd00:10:244::20"]`)
			w.equal("a pod's pair", w.mustAdd(w.plain("pair", "n1", calicoPin(`["198.51.100.30","fd00:10:244::30"]`))).ips(), "198.51.100.30,fd00:10:244::30")
			g, err := w.tryStart(w.vm("db-1"), "n1", pin)
			if !d.persistence {
				must(t, err)
				w.equal("a VM's pair", g.ips(), "198.51.100.20,fd00:10:244::20")
				return
			}
			// Each call for an address of the VM's answers with its first one.
			if want := calicoFailed + `failed to add IP addr to "eth0": file exists`; err == nil || err.Error() != want {
				t.Errorf("a pair on a VM: %v", err)
			}
			if d.record(t.Context(), "198.51.100.20") == nil || d.record(t.Context(), "fd00:10:244::20") != nil {
				t.Error("the IPv4 address should be the VM's, the IPv6 one nobody's")
			}
			_, err = w.add(g.req.Pod)
			if err == nil {
				t.Error("the second try works")
			}
			auto := w.start(w.vm("db-2"), "n1", nil)
			if len(auto.res.IPs) != 2 {
				t.Errorf("automatic addresses of a VM: %s", auto.ips())
			}
			want := auto.ips()
			auto.shutDown()
			w.equal("after a restart", w.start(auto.vm, "n2", nil).ips(), want)
		})
	}
}

func TestCalicoExhausted(t *testing.T) {
	w := newWorld(t, "calico-3.31", "198.51.100.0/30")
	for _, n := range []string{"a", "b", "c", "d"} {
		w.mustAdd(w.plain(n, map[bool]string{true: "n1", false: "n2"}[n < "c"], nil))
	}
	w.addFails(w.plain("e", "n1", nil), calicoFailed+"failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; No IPs available in pools: [198.51.100.0/30]")
}

// TestCalicoFree frees addresses that share a block in any order: the others keep their owners.
func TestCalicoFree(t *testing.T) {
	b := &calicoBlock{Spec: calicoBlockSpec{CIDR: "198.51.100.0/30", Allocations: make([]*int, 4), Unallocated: []int{0, 1, 2, 3}}}
	for i, h := range []string{"a", "b", "a", "c"} {
		b.take(i, allocation{handle: h, attrs: map[string]string{"pod": h}})
	}
	if !slices.Equal(b.owned("a"), []int{0, 2}) || len(b.Spec.Attributes) != 3 {
		t.Fatalf("%+v", b.Spec)
	}
	b.free(b.owned("a"))
	got := map[string]int{}
	for o, i := range b.Spec.Allocations {
		if i != nil {
			got[b.Spec.Attributes[*i].Handle] = o
		}
	}
	if !maps.Equal(got, map[string]int{"b": 1, "c": 3}) || !slices.Equal(b.Spec.Unallocated, []int{0, 2}) || len(b.Spec.Attributes) != 2 {
		t.Errorf("%v, %+v", got, b.Spec)
	}
}
