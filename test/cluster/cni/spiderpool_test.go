package cni

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const spiderFailed = `plugin type="macvlan" failed (add): spiderpool IP allocation error: [POST /ipam/ip][500] postIpamIpFailure  `

func spiderPin(pools ...string) map[string]string {
	return map[string]string{spiderPoolAnnotation: `{"ipv4":["` + strings.Join(pools, `","`) + `"]}`}
}

func (w *world) spider() *spiderpool { return w.d.(*spiderpool) }

// onePool creates a pool of some addresses, as a client does who knows no more than the documents say.
func (w *world) onePool(name string, ips ...string) error {
	w.Helper()
	p := &spiderPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spiderPoolSpec{Subnet: "198.51.100.0/24", IPs: ips, Gateway: new("198.51.100.1")}}
	_, err := w.spider().pools.create(w.Context(), "", p)
	return err
}

func (w *world) endpoint(name string) *spiderEndpoint {
	w.Helper()
	ep, err := w.spider().endpoints.get(w.Context(), ns, name)
	must(w.T, ignoreNotFound(err))
	return ep
}

// inPool is a pool's record of an address.
func (w *world) inPool(pool, addr string) spiderRecord {
	w.Helper()
	p, err := w.spider().pools.get(w.Context(), "", pool)
	must(w.T, err)
	r, err := p.records()
	must(w.T, err)
	return r[addr]
}

func TestSpiderpool(t *testing.T) {
	w := newWorld(t, "spiderpool")
	d := w.spider()
	ctx := t.Context()
	eventually(t, "the webhook is registered", func() bool {
		_, err := w.kube.core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "spiderpool-controller", getOptions)
		return err == nil
	})

	w.sub("pools", func(t *testing.T) {
		p, err := d.pools.get(ctx, "", "default-v4-ippool")
		must(t, err)
		w.equal("default pool", strings.Join(p.Spec.IPs, ","), "198.51.100.128-198.51.100.254")
		for _, c := range []struct{ pool, ips, want string }{
			{"overlaps", "198.51.100.200", `spec.ips: Forbidden: overlap with IPPool default-v4-ippool in IP ranges [198.51.100.128-198.51.100.254], total IP addresses of an IPPool are jointly determined by 'spec.ips' and 'spec.excludeIPs'`},
			{"gateway", "198.51.100.1", `spec.ips[0]: Invalid value: "198.51.100.1": conflicts with 'spec.gateway' 198.51.100.1, add the gateway IP address to 'spec.excludeIPs' or remove it from 'spec.ips'`},
		} {
			want := `admission webhook "spiderippool.spiderpool.spidernet.io" denied the request: SpiderIPPool.spiderpool.spidernet.io "` + c.pool + `" is invalid: ` + c.want
			if err := w.onePool(c.pool, c.ips); err == nil || err.Error() != want {
				t.Errorf("pool of %s:\n got %v\nwant %s", c.ips, err, want)
			}
		}
		must(t, w.onePool("db-1-v4", "198.51.100.20"))
		must(t, w.onePool("web-1-v4", "198.51.100.31", "198.51.100.30"))
		p, err = d.pools.get(ctx, "", "web-1-v4")
		must(t, err)
		if p.Spec.IPVersion == nil || *p.Spec.IPVersion != 4 || p.Finalizers[0] != spiderFinalizer || p.Labels[spiderCIDRLabel] != "198-51-100-0-24" || p.Spec.IPs[0] != "198.51.100.30-198.51.100.31" {
			t.Errorf("filled in: %+v", p)
		}
		eventually(t, "the pool is counted", func() bool {
			p, err := d.pools.get(ctx, "", "web-1-v4")
			return err == nil && p.Status.TotalIPCount != nil && *p.Status.TotalIPCount == 2
		})
	})

	g := w.start(w.vm("db-1"), "n1", spiderPin("db-1-v4"))
	w.equal("pin", g.ips(), "198.51.100.20")
	w.sub("record", func(t *testing.T) {
		ep := w.endpoint("db-1")
		if ep == nil || ep.Status.OwnerControllerType != "VirtualMachineInstance" || ep.Status.OwnerControllerName != "db-1" || ep.Status.Current.UID != string(g.req.Pod.UID) ||
			ep.Status.Current.Node != "n1" || len(ep.OwnerReferences) != 0 || ep.Finalizers[0] != spiderFinalizer {
			t.Fatalf("endpoint: %+v", ep)
		}
		ip := ep.Status.Current.IPs[0]
		if ip.Interface != "eth0" || *ip.IPv4 != "198.51.100.20/24" || *ip.IPv4Pool != "db-1-v4" || *ip.IPv4Gateway != "198.51.100.1" {
			t.Errorf("interface: %+v", ip)
		}
		if r := w.inPool("db-1-v4", "198.51.100.20"); r != (spiderRecord{"tenant-a/db-1", string(g.req.Pod.UID)}) {
			t.Errorf("pool: %+v", r)
		}
		if st := statusOf(t, g.res); st[0].Name != "kube-system/macvlan-default" || !st[0].Default {
			t.Errorf("network-status: %+v", st)
		}
	})

	w.sub("refusals", func(t *testing.T) {
		for i, c := range []struct {
			annotations map[string]string
			message     string
		}{
			{spiderPin("db-1-v4"), "failed to allocate IP addresses in standard mode: failed to allocate any IPv4 IP address to NIC eth0 from IPPools [db-1-v4]: all IP addresses used out"},
			{spiderPin("nowhere"), `failed to allocate IP addresses in standard mode: failed to get original IPPool nowhere: spiderippools.spiderpool.spidernet.io "nowhere" not found`},
			{spiderPin("web-1-v4", "web-1-v4"), "failed to allocate IP addresses in standard mode: wrong input, duplicate IPPool web-1-v4 specified for NIC eth0"},
			{map[string]string{spiderPoolAnnotation: "db-1-v4"}, "failed to allocate IP addresses in standard mode: wrong input, invalid format of Pod annotation 'ipam.spidernet.io/ippool': invalid character 'd' looking for beginning of value"},
			{map[string]string{spiderPoolsAnnotation: `[{"interface":"net1","ipv4":["web-1-v4"]}]`}, "failed to allocate IP addresses in standard mode: wrong input, invalid format of Pod annotation 'ipam.spidernet.io/ippools': interface eth0 must be specified"},
		} {
			w.addFails(w.plain("refused-"+string(rune('a'+i)), "n1", c.annotations), spiderFailed+c.message)
		}
		p := &spiderPool{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}, Spec: spiderPoolSpec{Subnet: "198.51.100.0/24", IPs: []string{"198.51.100.25"}, NamespaceName: []string{"tenant-b"}}}
		_, err := d.pools.create(ctx, "", p)
		must(t, err)
		w.addFails(w.plain("refused-ns", "n1", spiderPin("elsewhere")), spiderFailed+"failed to allocate IP addresses in standard mode: no IPPool available, all IPv4 IPPools [elsewhere] of eth0 filtered out: unmatched Namespace name of IPPool elsewhere")
	})

	w.sub("migration takes the record over at ADD", func(t *testing.T) {
		target, err := g.migrate("n2")
		must(t, err)
		w.equal("target", target.ips(), "198.51.100.20")
		if ep := w.endpoint("db-1"); ep.Status.Current.UID != string(target.req.Pod.UID) || ep.Status.Current.Node != "n2" {
			t.Errorf("endpoint: %+v", ep.Status.Current)
		}
		if r := w.inPool("db-1-v4", "198.51.100.20"); r.PodUID != string(target.req.Pod.UID) {
			t.Errorf("pool: %+v", r)
		}
		target.end() // the migration fails: nothing gives the record back to the source
		if ep := w.endpoint("db-1"); ep.Status.Current.UID != string(target.req.Pod.UID) {
			t.Errorf("endpoint after a failed migration: %+v", ep.Status.Current)
		}
		target, err = g.migrate("n2")
		must(t, err)
		g.handOver(target)
	})

	w.sub("stopped VM keeps its address", func(t *testing.T) {
		g.shutDown()
		w.never("the record goes", func() bool { return w.inPool("db-1-v4", "198.51.100.20").Pod == "" })
		w.addFails(w.plain("thief", "n1", spiderPin("db-1-v4")), spiderFailed+"failed to allocate IP addresses in standard mode: failed to allocate any IPv4 IP address to NIC eth0 from IPPools [db-1-v4]: all IP addresses used out")
	})

	w.sub("changed annotation is ignored", func(t *testing.T) {
		g = w.start(g.vm, "n1", spiderPin("web-1-v4"))
		w.equal("address", g.ips(), "198.51.100.20")
		g.shutDown()
	})

	w.sub("new address", func(t *testing.T) {
		// A deleted endpoint stays: nobody takes its finalizer while the VM is there.
		must(t, d.endpoints.delete(ctx, ns, "db-1"))
		w.never("the endpoint goes", func() bool { return w.endpoint("db-1") == nil })
		must(t, d.unfinalize(ctx, w.endpoint("db-1")))
		// Nor does the VM get its own address again at once, of a pool that still has a record.
		failed, err := w.tryStart(g.vm, "n1", spiderPin("db-1-v4"))
		if err == nil && w.inPool("db-1-v4", "198.51.100.20").PodUID != string(failed.req.Pod.UID) {
			t.Error("the old record served a new pod")
		}
		eventually(t, "the scan frees the record, and the pod starts", func() bool {
			_, err := w.add(failed.req.Pod)
			return err == nil
		})
		failed.end()
		w.delete("virtualmachineinstances", "db-1")
		must(t, d.endpoints.delete(ctx, ns, "db-1"))
		must(t, d.unfinalize(ctx, w.endpoint("db-1")))
		g = w.start(g.vm, "n2", spiderPin("web-1-v4"))
		w.equal("address from the other pool", g.ips(), "198.51.100.30")
	})

	w.sub("pods", func(t *testing.T) {
		a := w.mustAdd(w.plain("auto-1", "n1", nil))
		w.equal("first of the default pool", a.ips(), "198.51.100.128")
		r := &spiderReservedIP{ObjectMeta: metav1.ObjectMeta{Name: "held"}}
		r.Spec.IPVersion, r.Spec.IPs = new(int64(4)), []string{"198.51.100.129-198.51.100.130"}
		_, err := d.reserved.create(ctx, "", r)
		must(t, err)
		b := w.mustAdd(w.plain("auto-2", "n2", nil))
		w.equal("reserved ones are left out", b.ips(), "198.51.100.131")
		must(t, w.d.Del(ctx, a.req)) // a pod that lives keeps its address
		w.equal("record", w.inPool("default-v4-ippool", "198.51.100.128").Pod, "tenant-a/auto-1")
		a.end()
		w.equal("record", w.inPool("default-v4-ippool", "198.51.100.128").Pod, "")
		w.equal("the lowest is the next", w.mustAdd(w.plain("auto-3", "n2", nil)).ips(), "198.51.100.128")
		// No DEL: the scan finds it.
		must(t, w.kube.core.CoreV1().Pods(ns).Delete(ctx, "auto-2", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		eventually(t, "the scan frees a pod that is gone", func() bool { return w.inPool("default-v4-ippool", "198.51.100.131").Pod == "" })
	})

	w.sub("used pool", func(t *testing.T) {
		err := d.pools.patch(ctx, "", "default-v4-ippool", map[string]any{"spec": map[string]any{"excludeIPs": []string{"198.51.100.128"}}})
		want := `admission webhook "spiderippool.spiderpool.spidernet.io" denied the request: SpiderIPPool.spiderpool.spidernet.io "default-v4-ippool" is invalid: spec.ips: Forbidden: remove an IP address 198.51.100.128 that is being used by Pod tenant-a/auto-3, total IP addresses of an IPPool are jointly determined by 'spec.ips' and 'spec.excludeIPs'`
		if err == nil || err.Error() != want {
			t.Errorf("excluding an address in use: %v", err)
		}
		must(t, d.pools.patch(ctx, "", "default-v4-ippool", map[string]any{"spec": map[string]any{"excludeIPs": []string{"198.51.100.200"}}}))
		must(t, w.onePool("carved", "198.51.100.200")) // after which a pool of its own is accepted
		must(t, d.pools.delete(ctx, "", "carved"))
		w.gone("an unused pool goes", func() error { _, err := d.pools.get(ctx, "", "carved"); return err })
	})

	w.sub("two interfaces", func(t *testing.T) {
		w.nad("vlan30", `{"cniVersion":"0.3.1","plugins":[{"type":"ovs","ipam":{"type":"spiderpool"}}]}`)
		must(t, w.onePool("nic0", "198.51.100.60"))
		must(t, w.onePool("nic1", "198.51.100.61"))
		v := w.start(w.vm("two-nics"), "n1", map[string]string{
			networksAnnotation:    `[{"name":"vlan30","interface":"poda7662f44d65","mac":"02:00:00:00:00:61"}]`,
			spiderPoolsAnnotation: `[{"ipv4":["nic0"]},{"ipv4":["nic1"]}]`,
		})
		st := statusOf(t, v.res)
		if v.ips() != "198.51.100.60" || len(st) != 2 || st[1].Interface != "poda7662f44d65" || st[1].IPs[0] != "198.51.100.61" || st[1].MAC != "02:00:00:00:00:61" {
			t.Errorf("%s, %+v", v.ips(), st)
		}
		v.shutDown()
		v = w.start(v.vm, "n2", v.annotations)
		if st := statusOf(t, v.res); v.ips() != "198.51.100.60" || st[1].IPs[0] != "198.51.100.61" {
			t.Errorf("after a restart: %s, %+v", v.ips(), st)
		}
		// One pool for both interfaces gives one address.
		same := w.mustAdd(w.plain("same-pool", "n1", map[string]string{networksAnnotation: "vlan30"}))
		if st := statusOf(t, same.res); st[1].IPs[0] != same.ips() {
			t.Errorf("%s, %+v", same.ips(), st)
		}
	})

	w.sub("static IP off", func(t *testing.T) {
		m, err := w.kube.core.CoreV1().ConfigMaps(kubeSystem).Get(ctx, "spiderpool-conf", getOptions)
		must(t, err)
		on := m.Data["conf.yml"]
		set := func(conf string) {
			m.Data["conf.yml"] = conf
			m, err = w.kube.core.CoreV1().ConfigMaps(kubeSystem).Update(ctx, m, metav1.UpdateOptions{})
			must(t, err)
		}
		set(strings.Replace(on, "enableKubevirtStaticIP: true", "enableKubevirtStaticIP: false", 1))
		v := w.start(w.vm("loose"), "n1", nil)
		if w.endpoint(v.req.Pod.Name) == nil || w.endpoint("loose") != nil {
			t.Error("the endpoint should be the pod's")
		}
		v.shutDown()
		set(on)
	})

	w.sub("deletion while running", func(t *testing.T) {
		w.deleting("virtualmachines", "db-1")
		w.deleting("virtualmachineinstances", "db-1")
		g.end() // unless a scan comes first, DEL frees it
		eventually(t, "it is freed", func() bool { return w.inPool("web-1-v4", "198.51.100.30").Pod == "" && w.endpoint("db-1") == nil })
	})

	w.sub("deletion while stopped", func(t *testing.T) {
		must(t, w.onePool("db-2-v4", "198.51.100.22"))
		v := w.start(w.vm("db-2"), "n1", spiderPin("db-2-v4"))
		v.shutDown()
		w.restart()
		w.delete("virtualmachines", "db-2")
		eventually(t, "the scan frees it", func() bool { return w.inPool("db-2-v4", "198.51.100.22").Pod == "" && w.endpoint("db-2") == nil })
	})

	w.parallel(w.d, w.twin())
}

func TestSpiderpoolDualStack(t *testing.T) {
	w := newWorld(t, "spiderpool", "198.51.100.0/24", "fd00:10:244::/64")
	g := w.start(w.vm("db-1"), "n1", nil)
	if len(g.res.IPs) != 2 || g.res.IPs[0].String() != "198.51.100.128" || g.res.IPs[1].String() != "fd00:10:244:0:8000::" {
		t.Errorf("automatic: %s", g.ips())
	}
	want := g.ips()
	g.shutDown()
	w.equal("after a restart", w.start(g.vm, "n2", nil).ips(), want)
	// Of the families that are enabled, one may be left out.
	w.equal("IPv4 alone", w.mustAdd(w.plain("v4", "n1", spiderPin("default-v4-ippool"))).ips(), "198.51.100.129")
}

// A pod that is being deleted gets nothing.
func TestSpiderpoolDeadPod(t *testing.T) {
	w := newWorld(t, "spiderpool")
	p := w.plain("dying", "n1", nil)
	_, err := w.kube.core.CoreV1().Pods(ns).Patch(context.Background(), p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{})
	must(t, err)
	must(t, w.kube.core.CoreV1().Pods(ns).Delete(context.Background(), p.Name, metav1.DeleteOptions{}))
	w.addFails(p, spiderFailed+"dead Pod tenant-a/dying, we cannot allocate IP addresees to it")
}
