package audit_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// remedy compares the only finding of a code.
func (w *world) remedy(t *testing.T, code audit.Code, remedy string, evidence ...string) {
	t.Helper()
	f := w.the(t, code)
	if f.Remedy != remedy {
		t.Errorf("remedy %q, want %q", f.Remedy, remedy)
	}
	for _, part := range evidence {
		if !strings.Contains(f.Evidence, part) {
			t.Errorf("evidence %q lacks %q", f.Evidence, part)
		}
	}
}

func unreadable(configmap, kind string) ledger.Damage {
	return ledger.Damage{ConfigMap: configmap, Kind: kind, Network: ledger.DefaultNetwork, Err: errors.New("nonsense")}
}

func TestPoolUnregistered(t *testing.T) {
	run(t, []scenario{
		{"no registry", func(w *world) { w.Ledger.Networks = nil }, []string{"PoolUnregistered pool/p1"}},
		{"no entry", func(w *world) { delete(w.registry("default"), "p1") }, []string{"PoolUnregistered pool/p1"}},
		{"other CIDRs", func(w *world) { w.registry("default")["p1"] = []string{"203.0.113.0/24"} }, []string{"PoolUnregistered pool/p1"}},
		{"one family", func(w *world) { w.registry("default")["p1"] = []string{"198.51.100.0/24"} }, []string{"PoolUnregistered pool/p1"}},
		{"an entry in another network's registry", func(w *world) {
			w.registry("vpc-2")["p1"] = w.registry("default")["p1"]
			delete(w.registry("default"), "p1")
		}, []string{"InterruptedPoolChange pool/p1", "PoolUnregistered pool/p1"}},

		{"in another order", func(w *world) { slices.Reverse(w.registry("default")["p1"]) }, nil},
		{"a registry that can't be read", func(w *world) {
			w.Ledger.Networks, w.Ledger.Damaged = nil, []ledger.Damage{unreadable("vmip-network-default", ledger.KindNetwork)}
		}, []string{"LedgerCorrupt vmip-system/vmip-network-default"}},
		{"a pool of a newer format", func(w *world) {
			w.registry("default")["p1"] = nil
			w.Ledger.Newer = []ledger.Damage{unreadable("vmip-pool-p1", ledger.KindPool)}
		}, []string{"NewerFormat vmip-system/vmip-pool-p1"}},
		{"a registry of a newer format", func(w *world) {
			w.Ledger.Networks[0].Pools = nil
			w.Ledger.Newer = []ledger.Damage{unreadable("vmip-network-default", ledger.KindNetwork)}
		}, []string{"NewerFormat vmip-system/vmip-network-default"}},
	})
	w := newWorld()
	w.Ledger.Networks, w.LedgerNamespace = nil, "ipam"
	w.remedy(t, audit.PoolUnregistered, "kubectl vmip pool add p1 --cidr=198.51.100.0/24,2001:db8::/64 --range=198.51.100.10-198.51.100.200 --exclude=198.51.100.50 --gateway=198.51.100.1 --ledger-namespace ipam",
		"pool p1 has 198.51.100.0/24,2001:db8::/64 in network default, and there is no configmap vmip-network-default")
	w = newWorld()
	w.registry("default")["p1"] = []string{"198.51.100.0/24"}
	w.remedy(t, audit.PoolUnregistered, "kubectl edit configmap vmip-network-default -n vmip-system", "has it with 198.51.100.0/24", `p1: ["198.51.100.0/24", "2001:db8::/64"]`)
}

func TestInterruptedPoolChange(t *testing.T) {
	announce := func(at metav1.Time, edit func(*ledger.Pool)) func(*world) {
		return func(w *world) {
			to := w.Ledger.Pools[0]
			edit(&to)
			w.Ledger.Changes = map[string]ledger.Change{"p1": {To: to, Announced: at.Time}}
		}
	}
	exclude := func(p *ledger.Pool) { p.Exclude = []string{"198.51.100.60"} }
	pool := []string{"InterruptedPoolChange pool/p1"}
	lost := func(w *world) { w.registry("default")["lost"] = []string{"203.0.113.0/24"} }
	run(t, []scenario{
		{"a change", announce(long, exclude), pool},
		{"of an unknown time, as in a dump without managed fields", announce(metav1.Time{}, exclude), pool},
		{"a removal", announce(long, func(p *ledger.Pool) { p.CIDRs = nil }), pool},
		{"extended in the registry alone", func(w *world) {
			w.registry("default")["p1"] = append(w.registry("default")["p1"], "203.0.113.0/24")
		}, pool},
		{"a registry entry without a pool", lost, []string{"InterruptedPoolChange pool/lost"}},
		{"a pool whose object is gone, with its rows", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.Ledger.Pools = nil
		}, pool},

		{"a change that is under way", announce(ago(30*time.Second), exclude), nil},
		{"an extension that is under way", func(w *world) {
			w.registry("default")["p1"] = append(w.registry("default")["p1"], "203.0.113.0/24")
			w.Ledger.Networks[0].Written = ago(30 * time.Second).Time
		}, nil},
		{"a change of the CIDRs that is under way", func(w *world) {
			announce(ago(30*time.Second), func(p *ledger.Pool) { p.CIDRs = []string{"203.0.113.0/24"} })(w)
			w.registry("default")["p1"] = append(w.registry("default")["p1"], "203.0.113.0/24")
		}, nil},
		{"an addition that is under way", func(w *world) {
			lost(w)
			w.Ledger.Networks[0].Written = ago(30 * time.Second).Time
		}, nil},
		{"a pool that can't be read", func(w *world) {
			lost(w)
			w.Ledger.Damaged = []ledger.Damage{unreadable("vmip-pool-lost", ledger.KindPool)}
		}, []string{"LedgerCorrupt vmip-system/vmip-pool-lost"}},
		{"a pool of a newer format", func(w *world) {
			announce(long, exclude)(w)
			w.Ledger.Newer = []ledger.Damage{unreadable("vmip-pool-p1", ledger.KindPool)}
		}, []string{"NewerFormat vmip-system/vmip-pool-p1"}},
	})
	edit := "kubectl edit configmap vmip-network-default -n vmip-system"
	for name, c := range map[string]struct {
		build    func(*world)
		remedy   string
		evidence string
	}{
		"change": {announce(long, func(p *ledger.Pool) {
			p.Exclude, p.Gateways, p.HoldFor, p.Namespaces = nil, []string{"198.51.100.2"}, "20m0s", []string{"tenant-a"}
		}), "kubectl vmip pool set p1 --exclude= --gateway=198.51.100.2 --for-namespace=tenant-a --hold-for=20m0s", "--gateway=198.51.100.2"},
		"nothing new":       {announce(long, func(*ledger.Pool) {}), "kubectl edit configmap vmip-pool-p1 -n vmip-system", "the same specification"},
		"what no shell may": {announce(long, func(p *ledger.Pool) { p.Attachment = "a;b" }), "kubectl edit configmap vmip-pool-p1 -n vmip-system", "--attachment=a;b"},
		"nonsense":          {announce(long, func(p *ledger.Pool) { p.CIDRs = []string{"x"} }), "kubectl edit configmap vmip-pool-p1 -n vmip-system", "can't be understood"},
		"another network":   {announce(long, func(p *ledger.Pool) { p.Network = "vpc-2" }), "kubectl edit configmap vmip-pool-p1 -n vmip-system", "--network=vpc-2"},
		"removal":           {announce(long, func(p *ledger.Pool) { p.CIDRs = nil }), "kubectl vmip pool remove p1", "removal of pool p1"},
		"entry alone": {func(w *world) {
			lost(w)
			w.row("203.0.113.20", "tenant-a/x", "", network("vpc-2"))
		}, "kubectl vmip pool remove lost", "203.0.113.0/24"},
		"entry and rows": {func(w *world) {
			lost(w)
			w.row("203.0.113.20", "tenant-a/x", "")
		}, "kubectl vmip pool add lost --cidr=203.0.113.0/24", "vmip-block-default/203.0.113.20"},
		"no name": {func(w *world) { w.registry("default")["a b"] = []string{"203.0.113.0/24"} }, edit, "a b"},
		"extended": {func(w *world) {
			w.registry("default")["p1"] = append(w.registry("default")["p1"], "203.0.113.0/24")
		}, edit, "keeps 203.0.113.0/24 for pool p1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for n := range w.Ledger.Pools {
				w.Ledger.Pools[n].HoldFor = ledger.DefaultHoldFor.String()
			}
			c.build(w)
			w.remedy(t, audit.InterruptedPoolChange, c.remedy, c.evidence)
		})
	}
}

// What a registry keeps for a pool that is there makes no address one of the pool's.
func TestOutsidePoolInARegistryAlone(t *testing.T) {
	w := newWorld()
	w.reserved("tenant-a/db-1", "203.0.113.20")
	w.registry("default")["p1"] = append(w.registry("default")["p1"], "203.0.113.0/24")
	w.expect(t, "InterruptedPoolChange pool/p1", "OutsidePool tenant-a/db-1 203.0.113.20")
}

// Rows of a pool that can't be read may be inside it.
func TestOutsidePoolIsSkippedWhereAPoolIsUnread(t *testing.T) {
	w := newWorld()
	w.reserved("tenant-a/db-1", "203.0.113.20")
	w.Ledger.Damaged = []ledger.Damage{unreadable("vmip-pool-x", ledger.KindPool)}
	w.expect(t, "LedgerCorrupt vmip-system/vmip-pool-x")
	if r := audit.Run(&w.Snapshot, w.Options); !skips(r, audit.OutsidePool, "vmip-pool-x") {
		t.Errorf("skipped %v", r.Skipped)
	}
	w.Ledger.Damaged[0].Network = "vpc-2"
	w.expect(t, "LedgerCorrupt vmip-system/vmip-pool-x", "OutsidePool tenant-a/db-1 203.0.113.20")
}

func unindexed(e *ledger.Entry) { e.Unindexed = true }

func TestOwnerLabels(t *testing.T) {
	const label = "owner.vmip.io/0123"
	run(t, []scenario{
		{"a row without its label", func(w *world) { w.row("198.51.100.20", "tenant-a/db-1", "", unindexed) }, []string{"RowNotIndexed tenant-a/db-1 198.51.100.20"}},
		{"a label without a row", func(w *world) { w.Ledger.Strays = []ledger.Stray{{ConfigMap: "vmip-block-x", Labels: []string{label}}} },
			[]string{"StrayOwnerLabel vmip-system/vmip-block-x"}},
		{"in step", func(w *world) { w.reserved("tenant-a/db-1", "198.51.100.20") }, nil},
	})
	w := newWorld()
	w.row("198.51.100.20", "tenant-a/db-1", "", unindexed)
	own := w.Ledger.Entries[0].Row.Owner().Label()
	w.remedy(t, audit.RowNotIndexed, "kubectl label configmap vmip-block-default -n vmip-system "+own+"=", "vmip-block-default/198.51.100.20", own)
	w.Ledger.Strays = []ledger.Stray{{ConfigMap: "vmip-block-x", ResourceVersion: "7", Labels: []string{label + "4", label + "5"}}}
	w.remedy(t, audit.StrayOwnerLabel, "kubectl label configmap vmip-block-x -n vmip-system "+label+"4- "+label+"5- --resource-version=7", label+"4", label+"5")
}

// What a newer version wrote is not corrupt, and neither are rows in it that can't be read.
func TestNewerFormat(t *testing.T) {
	w := newWorld()
	w.row("198.51.100.20", "tenant-a/db-1", "", func(e *ledger.Entry) { e.Row, e.Err = ledger.Row{}, errors.New("unknown state") })
	w.Ledger.Newer = []ledger.Damage{{ConfigMap: "vmip-block-default", Kind: ledger.KindBlock, Err: errors.New(`configmap vmip-block-default has format "v2"`)}}
	w.Ledger.Damaged = w.Ledger.Newer
	w.expect(t, "NewerFormat vmip-system/vmip-block-default")
	w.remedy(t, audit.NewerFormat, "kubectl krew upgrade vmip", `configmap vmip-block-default has format "v2"`)
	w.Ledger.Newer = nil
	w.expect(t, "LedgerCorrupt vmip-system/vmip-block-default", "LedgerCorrupt row/vmip-system/vmip-block-default/198.51.100.20 198.51.100.20")
}

func TestDuplicateReservation(t *testing.T) {
	second := func(edits ...func(*ledger.Entry)) func(*world) {
		return func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			w.row("198.51.100.10", "tenant-a/db-1", vm.UID, edits...)
		}
	}
	run(t, []scenario{
		{"the machine names one", second(), []string{"DuplicateReservation tenant-a/db-1 198.51.100.10"}},
		{"the machine names none", func(w *world) {
			second()(w)
			w.VMs[0].Annotations = nil
		}, []string{"DuplicateReservation tenant-a/db-1 198.51.100.10"}},
		{"one was written before the machine", second(func(e *ledger.Entry) { e.Row.UID = "" }), []string{"DuplicateReservation tenant-a/db-1 198.51.100.10"}},
		{"both are for a machine that does not exist yet", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "")
			w.row("198.51.100.21", "tenant-a/db-1", "")
		}, []string{"DuplicateReservation tenant-a/db-1 198.51.100.21"}},
		{"three", func(w *world) {
			second()(w)
			w.row("198.51.100.30", "tenant-a/db-1", w.VMs[0].UID)
		}, []string{"DuplicateReservation tenant-a/db-1 198.51.100.30"}},

		{"within the grace time", second(since(ago(30 * time.Second))), nil},
		{"leaving", second(state(ledger.Leaving), since(ago(30*time.Second))), nil},
		{"one of each family", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			names(vm, "198.51.100.20", "2001:db8::20")
			w.row("198.51.100.20", "tenant-a/db-1", vm.UID)
			w.row("2001:db8::20", "tenant-a/db-1", vm.UID)
		}, nil},
		{"an earlier machine's", second(func(e *ledger.Entry) { e.Row.UID = "u-old" }), []string{"OrphanReservation tenant-a/db-1 198.51.100.10"}},
		{"both of a machine that is gone", func(w *world) {
			second()(w)
			w.VMs = w.VMs[:0]
		}, []string{"OrphanReservation tenant-a/db-1 198.51.100.10", "OrphanReservation tenant-a/db-1 198.51.100.20"}},
	})
	w := newWorld()
	second()(w)
	w.remedy(t, audit.DuplicateReservation, "kubectl vmip reserve db-1 -n tenant-a --interface default", "198.51.100.20 since 2026-11-28 (which the virtual machine names)", "198.51.100.10 since")
	w.VMs = w.VMs[:0]
	for n := range w.Ledger.Entries {
		w.Ledger.Entries[n].Row.UID = ""
	}
	w.remedy(t, audit.DuplicateReservation, "kubectl edit configmap vmip-block-default -n vmip-system", "198.51.100.20", "198.51.100.10")
}

// Damage in a cluster's objects, and in a dump of them, reads the same; each row is named.
func TestDamageInAClusterAndInADump(t *testing.T) {
	w := newWorld()
	w.Ledger.Pools, w.Ledger.Networks = nil, nil
	w.row("198.51.100.20", "tenant-a/db-1", "", unindexed)
	maps := w.configMaps(t)
	block := maps[0]
	good := block.Data["198.51.100.20"]
	block.Data["198.51.100.21"], block.Data["198.51.100.22"] = "{", strings.Replace(good, `"reserved"`, `"leased"`, 1)
	block.Data["203.0.113.9"], block.Data["hello"] = good, good
	block.Data["198.51.100.23"] = strings.Replace(strings.Replace(good, "}", `,"lease":{"a":1}}`, 1), "db-1", "db-2", 1)
	block.Labels[ledger.Owner{Namespace: "tenant-a", Name: "db-2", Interface: "default"}.Label()] = ""
	object := func(name, kind string, data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ledger.DefaultNamespace, Name: name, Annotations: map[string]string{ledger.AnnotationFormat: ledger.Format},
			Labels: map[string]string{ledger.LabelKind: kind, ledger.LabelNetwork: "default"}}, Data: data}
	}
	maps = append(maps,
		object("vmip-pool-lab", ledger.KindPool, map[string]string{"spec": "network: default\ncidrs: [198.51.100.0/24]\n", "pending": "network: default\n"}),
		object("vmip-pool-bad", ledger.KindPool, map[string]string{"spec": "network: default\n"}),
		object("vmip-network-default", ledger.KindNetwork, map[string]string{"pools": "lost: [203.0.113.0/24]\n"}))
	newer := object("vmip-pool-next", ledger.KindPool, map[string]string{"spec": "network: default\nleases: 1\n"})
	newer.Annotations[ledger.AnnotationFormat] = "v2"
	maps = append(maps, newer)
	row := "LedgerCorrupt row/vmip-system/vmip-block-default-198.51.100.0-24/"
	want := []string{
		"RowNotIndexed tenant-a/db-1", "LedgerCorrupt vmip-system/vmip-pool-bad", row + "198.51.100.21", row + "198.51.100.22", row + "203.0.113.9", row + "hello",
		"InterruptedPoolChange pool/lab", "PoolUnregistered pool/lab", "InterruptedPoolChange pool/lost", "NewerFormat vmip-system/vmip-pool-next",
	}
	slices.Sort(want)

	empty := newWorld()
	empty.Ledger.Pools, empty.Ledger.Networks = nil, nil
	c := empty.cluster(t)
	var items []any
	for _, cm := range maps {
		if err := c.core.Tracker().Add(cm); err != nil {
			t.Fatal(err)
		}
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cm)
		if err != nil {
			t.Fatal(err)
		}
		m["apiVersion"], m["kind"] = "v1", "ConfigMap"
		items = append(items, m)
	}
	r, _, err := c.Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := sorted(codes(r)); !slices.Equal(got, want) {
		t.Errorf("in a cluster %q\nwant %q", got, want)
	}
	for _, f := range r.Findings {
		if f.Code == audit.LedgerCorrupt && (!strings.HasPrefix(f.Remedy, "kubectl edit configmap vmip-") || !strings.Contains(f.Evidence, f.Subject.Name)) {
			t.Errorf("%s: evidence %q, remedy %q", f.Subject, f.Evidence, f.Remedy)
		}
	}
	if got := sorted(judge(t, dump(write(t, filepath.Join(t.TempDir(), "x.json"), jsonList(t, items))))); !slices.Equal(got, want) {
		t.Errorf("in a dump %q\nwant %q", got, want)
	}
}

// A change that ends while audit looks is none that died.
func TestAPoolChangeThatEndsIsNoFinding(t *testing.T) {
	w := newWorld()
	w.Ledger.Pools, w.Ledger.Networks = nil, nil
	c := w.cluster(t)
	spec := "network: default\ncidrs: [198.51.100.0/24]\n"
	pool := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ledger.DefaultNamespace, Name: "vmip-pool-lab", Labels: map[string]string{ledger.LabelKind: ledger.KindPool}},
		Data: map[string]string{"spec": spec, "pending": spec}}
	registry := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ledger.DefaultNamespace, Name: "vmip-network-default", Labels: map[string]string{ledger.LabelKind: ledger.KindNetwork}},
		Data: map[string]string{"pools": "lab: [198.51.100.0/24]\n"}}
	for _, cm := range []*corev1.ConfigMap{pool, registry} {
		if err := c.core.Tracker().Add(cm); err != nil {
			t.Fatal(err)
		}
	}
	if r, _, err := c.Check(t.Context(), audit.Options{}); err != nil || !slices.Equal(codes(r), []string{"InterruptedPoolChange pool/lab"}) {
		t.Fatalf("findings %v, error %v", r, err)
	}
	before := c.Profiles
	c.Profiles = func(ctx context.Context) (*profile.Cluster, error) { // after the ledger was read first
		ended := pool.DeepCopy()
		delete(ended.Data, "pending")
		if _, err := c.core.CoreV1().ConfigMaps(ended.Namespace).Update(ctx, ended, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
		return before(ctx)
	}
	if r, _, err := c.Check(t.Context(), audit.Options{}); err != nil || len(r.Findings) > 0 {
		t.Errorf("findings %v, error %v", r, err)
	}
}
