package audit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// A machine that was deleted while it was stopped leaves its address behind.
func TestC44OrphanReservation(t *testing.T) {
	gone := func(w *world) { w.row("198.51.100.20", "tenant-a/db-1", "u-1") }
	run(t, []scenario{
		{"gone", gone, []string{"OrphanReservation tenant-a/db-1 198.51.100.20"}},
		{"gone right after it was reserved", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "u-1", since(ago(time.Second)))
		}, []string{"OrphanReservation tenant-a/db-1 198.51.100.20"}},
		{"gone while it moved", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "u-1", state(ledger.Leaving))
			w.row("198.51.100.21", "tenant-a/db-1", "u-1")
		}, []string{"OrphanReservation tenant-a/db-1 198.51.100.20", "OrphanReservation tenant-a/db-1 198.51.100.21"}},
		{"another machine of that name, which has nothing to do with it", func(w *world) {
			gone(w)
			w.reserved("tenant-a/db-1", "198.51.100.30")
		}, []string{"OrphanReservation tenant-a/db-1 198.51.100.20"}},

		{"stopped", func(w *world) { w.reserved("tenant-a/db-1", "198.51.100.20") }, nil},
		{"not created yet", func(w *world) { w.row("198.51.100.20", "tenant-a/db-1", "") }, nil},
		{"in a dump, within the grace time", func(w *world) {
			w.Unordered = true
			w.row("198.51.100.20", "tenant-a/db-1", "u-1", since(ago(30*time.Second)))
		}, nil},
		{"being restored", func(w *world) {
			gone(w)
			w.Restoring = []machine.Ref{{Namespace: "tenant-a", Name: "db-1"}}
		}, nil},
		{"its instance still stops", func(w *world) {
			vmi, _ := w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1")
			vmi.DeletionTimestamp = &long
			w.VMs = w.VMs[:0]
		}, nil},
		{"its pod still has the address", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.VMs = w.VMs[:0]
		}, nil},
		{"released", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "u-1", state(ledger.Held), func(e *ledger.Entry) { e.Row.Until = now.Add(time.Minute) })
		}, nil},
		{"a foreign claim", func(w *world) { w.row("198.51.100.20", "tenant-a/x", "u-1", state(ledger.Foreign)) }, nil},
	})
}

func TestOrphansAreSkippedWithoutProof(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*world)
		want string
	}{
		"machines can't be listed": {func(w *world) { w.Gaps = map[audit.Resource]audit.Gap{audit.VMs: {Reason: "forbidden"}} }, "forbidden"},
		"restores can't be listed": {func(w *world) { w.Gaps = map[audit.Resource]audit.Gap{audit.Restores: {Reason: "forbidden"}} }, "forbidden"},
		"a dump without namespace": {func(w *world) { w.Complete = func(ns string) bool { return ns != "tenant-a" } }, "tenant-a"},
		"another cluster's ledger": {func(w *world) {
			w.Cluster, w.Ledger.Networks[0].Cluster = "c-1", "c-2"
		}, "c-2"},
		"instances can't be listed": {func(w *world) { w.Gaps = map[audit.Resource]audit.Gap{audit.VMIs: {Reason: "timeout"}} }, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.row("198.51.100.20", "tenant-a/db-1", "u-1")
			c.edit(w)
			r := audit.Run(&w.Snapshot, w.Options)
			if len(r.Findings) > 0 {
				t.Errorf("findings %v", r.Findings)
			}
			if !skips(r, audit.OrphanReservation, c.want) {
				t.Errorf("skipped %v, want OrphanReservation because of %q", r.Skipped, c.want)
			}
		})
	}
}

func skips(r *audit.Report, code audit.Code, reason string) bool {
	for _, s := range r.Skipped {
		for _, c := range s.Codes {
			if c == code && strings.Contains(s.Reason, reason) {
				return true
			}
		}
	}
	return false
}

func TestHeldExpired(t *testing.T) {
	held := func(until time.Time) func(*world) {
		return func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "u-1", state(ledger.Held), func(e *ledger.Entry) { e.Row.Until = until })
		}
	}
	run(t, []scenario{
		{"over", held(now.Add(-time.Minute)), []string{"HeldExpired tenant-a/db-1 198.51.100.20"}},
		{"not over", held(now.Add(time.Minute)), nil},
		{"still in use", func(w *world) {
			held(now.Add(-time.Minute))(w)
			w.pod("tenant-a/x", "n1", "198.51.100.20")
		}, nil},
	})
}

func TestOutsidePool(t *testing.T) {
	run(t, []scenario{
		{"in no pool", func(w *world) { w.reserved("tenant-a/db-1", "203.0.113.20") }, []string{"OutsidePool tenant-a/db-1 203.0.113.20"}},
		{"excluded", func(w *world) { w.reserved("tenant-a/db-1", "198.51.100.50") }, []string{"OutsidePool tenant-a/db-1 198.51.100.50"}},
		{"the gateway", func(w *world) { w.reserved("tenant-a/db-1", "198.51.100.1") }, []string{"OutsidePool tenant-a/db-1 198.51.100.1"}},
		{"in a pool of another network", func(w *world) {
			w.pool("p2", func(p *ledger.Pool) {
				p.Network, p.CIDRs, p.Ranges, p.Exclude, p.Gateways = "vpc-2", []string{"203.0.113.0/24"}, nil, nil, nil
			})
			w.reserved("tenant-a/db-1", "203.0.113.20")
		}, []string{"OutsidePool tenant-a/db-1 203.0.113.20"}},

		{"outside the ranges of automatic choice", func(w *world) { w.reserved("tenant-a/db-1", "198.51.100.220") }, nil},
		{"the last address of an IPv6 prefix", func(w *world) { w.reserved("tenant-a/db-1", "2001:db8::ffff:ffff:ffff:ffff") }, nil},
	})
}

func TestLedgerCorrupt(t *testing.T) {
	w := newWorld()
	w.row("198.51.100.20", "tenant-a/db-1", "u-1", func(e *ledger.Entry) {
		e.Key, e.Err, e.Row = "vmip-block-default-198.51.100.0-24/198.51.100.20", errors.New("not a row"), ledger.Row{}
	})
	w.Ledger.Damaged = []ledger.Damage{{ConfigMap: "vmip-pool-x", Kind: ledger.KindPool, Network: "default", Err: errors.New("pool x: no cidrs")}}
	w.expect(t, "LedgerCorrupt row/vmip-system/vmip-block-default-198.51.100.0-24/198.51.100.20 198.51.100.20", "LedgerCorrupt vmip-system/vmip-pool-x")
	for _, f := range audit.Run(&w.Snapshot, w.Options).Findings {
		if !strings.HasPrefix(f.Remedy, "kubectl edit configmap vmip-") || !strings.HasSuffix(f.Remedy, " -n vmip-system") {
			t.Errorf("remedy %q", f.Remedy)
		}
	}
	// A row that can't be read counts as taken, also for who runs on its address.
	w.start(w.vm("tenant-a/web"), "n1", "198.51.100.20")
	w.expect(t, "LedgerCorrupt row/vmip-system/vmip-block-default-198.51.100.0-24/198.51.100.20 198.51.100.20", "LedgerCorrupt vmip-system/vmip-pool-x")
}

func TestSecondLedger(t *testing.T) {
	run(t, []scenario{
		{"a machine names another", func(w *world) {
			w.LedgerNamespace = "ipam"
			names(w.vm("tenant-a/db-1"), "203.0.113.20")
		}, []string{"SecondLedger vmip-system"}},
		{"another namespace holds one", func(w *world) { w.OtherLedgers = []string{"ipam"} }, []string{"SecondLedger ipam"}},
		{"many machines name it", func(w *world) {
			w.LedgerNamespace = "ipam"
			for _, ref := range []string{"tenant-a/a", "tenant-a/b", "tenant-a/c", "tenant-a/d"} {
				names(w.vm(ref), "203.0.113."+string("1234"[ref[len(ref)-1]-'a']))
			}
		}, []string{"SecondLedger vmip-system"}},

		{"the one that is audited", func(w *world) { w.reserved("tenant-a/db-1", "198.51.100.20") }, nil},
		{"a copied annotation", func(w *world) {
			w.LedgerNamespace = "ipam"
			vm := w.vm("tenant-a/db-1")
			names(vm, "203.0.113.20")
			vm.UID = "u-2"
		}, nil},
	})
}

func TestInUseUnrecorded(t *testing.T) {
	run(t, []scenario{
		{"C19: a pool's address without a row", func(w *world) { w.start(w.vm("tenant-a/b"), "n1", "198.51.100.21") },
			[]string{"InUseUnrecorded tenant-a/b 198.51.100.21"}},

		{"excluded", func(w *world) { w.start(w.vm("tenant-a/b"), "n1", "198.51.100.50") }, nil},
		{"outside the ranges", func(w *world) { w.start(w.vm("tenant-a/b"), "n1", "198.51.100.220") }, nil},
		{"outside the pool", func(w *world) { w.start(w.vm("tenant-a/b"), "n1", "203.0.113.21") }, nil},
		{"its own reservation waits for a restart", func(w *world) { w.before("tenant-a/b", "198.51.100.21", "198.51.100.30") },
			[]string{"RestartPending tenant-a/b 198.51.100.30"}},
		{"the ledger has a row of it", func(w *world) {
			w.start(w.vm("tenant-a/b"), "n1", "198.51.100.21")
			w.row("198.51.100.21", "tenant-a/b", "", state(ledger.Foreign))
		}, nil},
		{"a pool of an attachment with the same numbers", func(w *world) {
			w.Ledger.Pools[0].Attachment = "tenant-a/lan"
			w.start(w.vm("tenant-a/b"), "n1", "198.51.100.21")
		}, nil},
		{"a pod that is no machine", func(w *world) { w.pod("tenant-a/x", "n1", "198.51.100.21") }, nil},
	})
}

func TestPoolOverlapsNode(t *testing.T) {
	run(t, []scenario{
		{"C20: a node in the range", func(w *world) { w.node("n9", "198.51.100.11") }, []string{"PoolOverlapsNode pool/p1 198.51.100.11"}},
		{"the same address twice", func(w *world) {
			n := w.node("n9", "198.51.100.11")
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.11"})
		}, []string{"PoolOverlapsNode pool/p1 198.51.100.11"}},

		{"excluded", func(w *world) { w.node("n9", "198.51.100.50") }, nil},
		{"outside the ranges", func(w *world) { w.node("n9", "198.51.100.220") }, nil},
		{"a pool of an attachment", func(w *world) {
			w.Ledger.Pools[0].Attachment = "tenant-a/lan"
			w.node("n9", "198.51.100.11")
		}, nil},
	})
	w := newWorld()
	w.node("n9", "198.51.100.11")
	if f, want := w.the(t, audit.PoolOverlapsNode), "kubectl vmip pool set p1 --exclude 198.51.100.50,198.51.100.11"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}
}

func TestNodeUnreachable(t *testing.T) {
	silent := func(w *world, s corev1.ConditionStatus) {
		w.Nodes[0].Status.Conditions[0].Status = s
		w.Nodes[0].Status.Conditions[0].LastTransitionTime = ago(time.Hour)
	}
	run(t, []scenario{
		{"silent", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			silent(w, corev1.ConditionUnknown)
		}, []string{"NodeUnreachable tenant-a/db-1 198.51.100.20"}},
		{"gone", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n9", "198.51.100.20")
		}, []string{"NodeUnreachable tenant-a/db-1 198.51.100.20"}},

		{"answers", func(w *world) { w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20") }, nil},
		{"cordoned", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			w.Nodes[0].Spec.Unschedulable = true
		}, nil},
		{"not ready, and says so itself", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
			silent(w, corev1.ConditionFalse)
		}, nil},
		{"another node", func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n2", "198.51.100.20")
			silent(w, corev1.ConditionUnknown)
		}, nil},
		{"a machine without a reservation", func(w *world) {
			w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.20")
			silent(w, corev1.ConditionUnknown)
		}, nil},
	})
}

func mac(vm *kubevirtv1.VirtualMachine, mac string) {
	vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress = mac
}

// The same MAC on two machines, in whatever spelling, running or not.
func TestC54DuplicateMAC(t *testing.T) {
	run(t, []scenario{
		{"in two namespaces, one machine stopped, another letter case", func(w *world) {
			a := w.vm("tenant-a/db-1")
			mac(a, "02:AA:00:00:00:01")
			w.start(a, "n1", "203.0.113.5")
			b := w.vm("tenant-b/db-1")
			mac(b, "02:aa:00:00:00:01")
			b.CreationTimestamp = ago(time.Hour)
		}, []string{"DuplicateMAC tenant-b/db-1"}},
		{"with dashes", func(w *world) {
			mac(w.vm("tenant-a/db-1"), "02-AA-00-00-00-01")
			mac(w.vm("tenant-b/db-2"), "02:aa:00:00:00:01")
		}, []string{"DuplicateMAC tenant-b/db-2"}},

		{"a machine in a migration", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			mac(vm, "02:aa:00:00:00:01")
			vmi, p := w.start(vm, "n1", "198.51.100.20")
			w.migrate(vmi, p, "n2", "198.51.100.20")
		}, nil},
		{"the instance of an earlier machine of that name still stops", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			mac(vm, "02:aa:00:00:00:01")
			w.start(vm, "n1", "203.0.113.5")
			vm.UID = "u-new"
		}, nil},
		{"different MACs", func(w *world) {
			mac(w.vm("tenant-a/db-1"), "02:aa:00:00:00:01")
			mac(w.vm("tenant-b/db-1"), "02:aa:00:00:00:02")
		}, nil},
		{"no MAC pinned", func(w *world) {
			w.vm("tenant-a/db-1")
			w.vm("tenant-b/db-1")
		}, nil},
		{"masquerade", func(w *world) {
			for _, ref := range []string{"tenant-a/db-1", "tenant-b/db-1"} {
				vm := w.vm(ref)
				vm.Spec.Template.Spec.Domain.Devices.Interfaces[0] = *kubevirtv1.DefaultMasqueradeNetworkInterface()
				mac(vm, "02:aa:00:00:00:01")
			}
		}, nil},
		{"different attachments", func(w *world) {
			for _, ref := range []string{"tenant-a/db-1", "tenant-b/db-1"} {
				vm := w.vm(ref)
				secondary(vm, "lan", vm.Namespace+"/lan")
				vm.Spec.Template.Spec.Domain.Devices.Interfaces[1].MacAddress = "02:aa:00:00:00:01"
			}
		}, nil},
		{"isolated networks", func(w *world) {
			w.Ledger.Pools[0].Namespaces = []string{"tenant-a"}
			w.pool("p2", func(p *ledger.Pool) { p.Network, p.Namespaces = "vpc-2", []string{"tenant-b"} })
			mac(w.vm("tenant-a/db-1"), "02:aa:00:00:00:01")
			mac(w.vm("tenant-b/db-1"), "02:aa:00:00:00:01")
		}, nil},
	})
}

// Two ledgers, a stray pod, everything: none of it shows for machines that don't exist.
func TestEmptyClusterIsClean(t *testing.T) {
	w := newWorld()
	w.expect(t)
	w.Pods = append(w.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	w.expect(t)
	(&world{}).expect(t)
}

// C48: the UID decides whose a row is, the name is for people. Of two rows of one name that of the
// machine that exists stays, and a release, which takes all rows of the name, is no remedy.
func TestC48SameNameOtherUID(t *testing.T) {
	w := newWorld()
	w.start(w.reserved("x/y", "198.51.100.151"), "n1", "198.51.100.151")
	w.row("198.51.100.152", "x/y", "uid-1")
	w.expect(t, "OrphanReservation x/y 198.51.100.152")
	if f := w.the(t, audit.OrphanReservation); f.Remedy != "kubectl vmip reclaimer --once" {
		t.Errorf("remedy %q", f.Remedy)
	}
}

// The remedies of one pool don't undo one another: each names all that has to be excluded.
func TestNodeRemediesAgree(t *testing.T) {
	w := newWorld()
	w.node("n4", "198.51.100.11")
	w.node("n5", "198.51.100.12")
	w.expect(t, "PoolOverlapsNode pool/p1 198.51.100.11", "PoolOverlapsNode pool/p1 198.51.100.12")
	for _, f := range audit.Run(&w.Snapshot, w.Options).Findings {
		if f.Remedy != "kubectl vmip pool set p1 --exclude 198.51.100.50,198.51.100.11,198.51.100.12" {
			t.Errorf("remedy %q", f.Remedy)
		}
	}
}
