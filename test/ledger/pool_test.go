package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/test/fault"
)

// lab is the pool of these tests, with the CIDRs given.
func lab(cidrs ...string) ledger.Pool { return ledger.Pool{Name: "lab", CIDRs: cidrs} }

// registered checks that the registry has the pools that there are and no others, each with at
// least the CIDRs that it hands out; exactly these where nothing is under way.
func (w *world) registered(exact bool) error {
	snap, err := w.boss.Ledger.Snapshot(context.WithoutCancel(w.t.Context()))
	if err != nil {
		return err
	}
	have := map[string][]string{}
	for _, n := range snap.Networks {
		for name, cidrs := range n.Pools {
			have[name] = cidrs
		}
	}
	var errs []error
	for _, p := range snap.Pools {
		for _, c := range p.CIDRs {
			if !slices.Contains(have[p.Name], c) {
				errs = append(errs, fmt.Errorf("pool %s hands out %s, the registry has %v", p.Name, c, have[p.Name]))
			}
		}
		if exact && len(have[p.Name]) != len(p.CIDRs) {
			errs = append(errs, fmt.Errorf("pool %s has %v, the registry %v", p.Name, p.CIDRs, have[p.Name]))
		}
		delete(have, p.Name)
	}
	if exact && len(have) > 0 {
		errs = append(errs, fmt.Errorf("the registry has %v, and no pools of it", have))
	}
	return errors.Join(errs...)
}

// Every change of pools is killed before and after every call. The registry covers what is handed
// out at once, and is exact after the command has been run again.
func TestPoolChangeKilledAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		setup []ledger.Pool
		run   func(context.Context, *ledger.Store) error
	}{
		{"add", nil, func(ctx context.Context, s *ledger.Store) error {
			_, err := s.AddPool(ctx, lab("198.51.100.0/24"), "u")
			if exists := (*ledger.PoolExistsError)(nil); errors.As(err, &exists) {
				return nil // as the command takes it: unchanged
			}
			return err
		}},
		{"set, another CIDR", []ledger.Pool{lab("198.51.100.0/24")}, func(ctx context.Context, s *ledger.Store) error {
			return first(s.SetPool(ctx, lab("198.51.100.0/23")))
		}},
		{"set, a family more", []ledger.Pool{lab("198.51.100.0/24")}, func(ctx context.Context, s *ledger.Store) error {
			return first(s.SetPool(ctx, lab("198.51.100.0/24", "2001:db8::/120")))
		}},
		{"remove", []ledger.Pool{lab("198.51.100.0/24"), {Name: "other", CIDRs: []string{"203.0.113.0/24"}}}, func(ctx context.Context, s *ledger.Store) error {
			err := s.RemovePool(ctx, "lab")
			if missing := (*ledger.PoolNotFoundError)(nil); errors.As(err, &missing) {
				return nil
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; n < 60; n++ {
				ended := false
				for _, after := range []bool{false, true} {
					w := newWorld(t)
					for _, p := range c.setup {
						if _, err := w.boss.Ledger.AddPool(t.Context(), p, "u"); err != nil {
							t.Fatal(err)
						}
					}
					x := w.writer(fault.At(n, fault.Action{Kill: !after, KillAfter: after}))
					err := c.run(t.Context(), x.Ledger)
					if !x.transport.Dead() {
						if err != nil {
							t.Errorf("without a fault: %v", err)
						}
						ended = true
					} else if err := w.registered(false); err != nil {
						t.Errorf("killed at call %d (after: %v): %v", n, after, err)
					}
					if err := c.run(t.Context(), w.writer(nil).Ledger); err != nil {
						t.Errorf("killed at call %d (after: %v), then run again: %v", n, after, err)
					}
					if err := w.registered(true); err != nil {
						t.Errorf("killed at call %d (after: %v), then run again: %v", n, after, err)
					}
				}
				if ended {
					if n < 5 {
						t.Errorf("only %d calls", n-1)
					}
					return
				}
			}
			t.Error("it never ended")
		})
	}
}

// One change stops before every call while another one runs; whoever wins, the registry covers
// what the pool hands out, and a removal removes only what it has announced.
func TestPoolChangesMeet(t *testing.T) {
	t.Parallel()
	type change struct {
		name string
		do   func(context.Context, *ledger.Store) error
	}
	set := func(cidrs ...string) func(context.Context, *ledger.Store) error {
		return func(ctx context.Context, s *ledger.Store) error { return first(s.SetPool(ctx, lab(cidrs...))) }
	}
	remove := func(ctx context.Context, s *ledger.Store) error { return s.RemovePool(ctx, "lab") }
	again := func(ctx context.Context, s *ledger.Store) error {
		_ = s.RemovePool(ctx, "lab")
		return first(s.AddPool(ctx, lab("198.51.100.0/25"), "u"))
	}
	for _, a := range []change{{"a wider CIDR", set("198.51.100.0/23")}, {"another CIDR", set("203.0.113.0/24")}, {"a removal", remove}, {"a family more", set("198.51.100.0/24", "2001:db8::/120")}} {
		for _, b := range []change{{"another CIDR", set("203.0.113.0/24")}, {"the old CIDR", set("198.51.100.0/24")}, {"a removal", remove}, {"removed and added again", again}} {
			t.Run(a.name+" and "+b.name, func(t *testing.T) {
				t.Parallel()
				for n := 1; n < 60; n++ {
					if !everything && !sampled(a.name, b.name, n, 4) {
						if n > 20 {
							return
						}
						continue
					}
					w := newWorld(t)
					if _, err := w.boss.Ledger.AddPool(t.Context(), lab("198.51.100.0/24"), "u"); err != nil {
						t.Fatal(err)
					}
					wake, reached := make(chan struct{}), make(chan struct{})
					x := w.writer(func(c fault.Call) fault.Action {
						if c.N != n {
							return fault.Action{}
						}
						close(reached)
						return fault.Action{Wait: wake}
					})
					ended := make(chan error, 1)
					go func() { ended <- a.do(t.Context(), x.Ledger) }()
					select {
					case err := <-ended:
						if err != nil {
							t.Error(err)
						}
						return
					case <-reached:
					}
					errB := b.do(t.Context(), w.writer(nil).Ledger)
					before, _ := w.boss.Ledger.Pool(t.Context(), "lab")
					close(wake)
					errA := <-ended
					where := fmt.Sprintf("stalled at call %d, %s: %v; meanwhile %v", n, x.transport.Calls()[n-1], errA, errB)
					if err := w.registered(true); err != nil {
						t.Fatalf("%s: %v", where, err)
					}
					after, _ := w.boss.Ledger.Pool(t.Context(), "lab")
					// The other one has ended well and was told so; only a change that begins anew may undo it.
					if errB == nil && before != nil && after == nil && !strings.HasPrefix(x.transport.Calls()[n-1].Path, "/api") {
						t.Fatalf("%s: the pool is gone", where)
					}
					if errA != nil && errB != nil {
						t.Fatalf("%s: both were refused", where)
					}
				}
			})
		}
	}
}

// A removal that stalls before its last call does not remove a pool that was made meanwhile.
func TestStalledRemovalMeetsANewPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.boss.Ledger.AddPool(t.Context(), lab("198.51.100.0/24"), "u"); err != nil {
		t.Fatal(err)
	}
	w.vm("db-1")
	s := w.stalled("DELETE")
	var err error
	s.during(t, func() { err = s.Ledger.RemovePool(t.Context(), "lab") }, func() {
		if _, err := w.boss.Ledger.SetPool(t.Context(), lab("198.51.100.0/24")); err != nil {
			t.Fatal(err)
		}
		if _, err := w.reserve(w.boss, "db-1", "198.51.100.20"); err != nil {
			t.Fatal(err)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "another command") {
		t.Errorf("the removal ends with %v", err)
	}
	if err := w.registered(true); err != nil {
		t.Error(err)
	}
	w.is("db-1", "198.51.100.20", "198.51.100.20 reserved")
}

// An interrupted change withdraws its announcement.
func TestInterruptedChangeIsWithdrawn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.boss.Ledger.AddPool(t.Context(), lab("198.51.100.0/24"), "u"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	x := w.writer(func(c fault.Call) fault.Action {
		if strings.Contains(c.Path, "vmip-block") {
			cancel()
		}
		return fault.Action{}
	})
	if _, err := x.Ledger.SetPool(ctx, lab("203.0.113.0/24")); !errors.Is(err, context.Canceled) {
		t.Errorf("the interrupted change ends with %v", err)
	}
	if err := w.registered(true); err != nil {
		t.Error(err)
	}
	for _, cm := range w.objects(ledger.KindPool) {
		if _, pending := cm.Data["pending"]; pending {
			t.Errorf("the announcement stands: %v", cm.Data)
		}
	}
}

// Nobody may take the addresses of a pool of another cluster's ledger.
func TestCopiedLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.boss.Ledger.AddPool(t.Context(), lab("198.51.100.0/24"), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.boss.Ledger.AddPool(t.Context(), ledger.Pool{Name: "other", CIDRs: []string{"203.0.113.0/24"}}, types.UID("v")); err == nil || !strings.Contains(err.Error(), "belongs to cluster u") {
		t.Errorf("%v", err)
	}
}

// A pool that can't be read stops only those whom it may serve, and can be repaired and removed.
func TestDamagedPool(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]string{"no YAML": "{", "nonsense": "cidrs: [198.51.100.0/40]\nnetwork: default\n", "not for hosts": "cidrs: [224.0.0.0/24]\nnetwork: default\n"} {
		w := newWorld(t)
		w.pool(ledger.Pool{})
		w.pool(ledger.Pool{Name: "good", CIDRs: []string{"203.0.113.0/24"}})
		w.vm("db-1", "web", "mail")
		must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
		must[reservation.Result](t)(w.reserve(w.boss, "web", "203.0.113.20"))
		cm, err := w.boss.core.CoreV1().ConfigMaps(w.ledger).Get(t.Context(), ledger.PoolConfigMap("lab"), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cm.Data["spec"] = spec
		if _, err := w.boss.core.CoreV1().ConfigMaps(w.ledger).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		x := w.writer(nil)
		_, err = w.reserve(x, "mail")
		isRefused(t, err, "DamagedPool")
		must[reservation.Result](t)(w.reserve(x, "web"))
		must[reservation.Result](t)(w.reserve(x, "mail", "203.0.113.30"))
		must[reservation.Result](t)(w.release(x, "mail"))
		must[reservation.Result](t)(w.ask(x, reservation.Request{VM: w.ref("mail"), Pool: "good"}))
		if err := x.Ledger.RemovePool(t.Context(), "lab"); !errors.As(err, new(*ledger.RowsOutsideError)) {
			t.Errorf("%s: a pool with a reservation was removed: %v", name, err)
		}
		repaired, changed, err := x.Ledger.ChangePool(t.Context(), "lab", func(p ledger.Pool) ledger.Pool {
			p.CIDRs, p.Exclude = []string{"198.51.100.0/24"}, []string{"198.51.100.7"}
			return p
		})
		if err != nil || !changed || repaired.Exclude[0] != "198.51.100.7" {
			t.Errorf("%s: repaired to %+v, %v", name, repaired, err)
		}
		must[reservation.Result](t)(w.reserve(x, "db-1"))
		if err := w.registered(true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.whole()
	}
}

// Of two changes of different fields at once none is lost.
func TestTwoChangesOfOnePool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.boss.Ledger.AddPool(t.Context(), lab("198.51.100.0/24"), "u"); err != nil {
		t.Fatal(err)
	}
	s := w.stalled("PUT", "vmip-pool-lab")
	var err error
	s.during(t, func() {
		_, _, err = s.Ledger.ChangePool(t.Context(), "lab", func(p ledger.Pool) ledger.Pool { p.Gateways = []string{"198.51.100.1"}; return p })
	}, func() {
		if _, _, err := w.boss.Ledger.ChangePool(t.Context(), "lab", func(p ledger.Pool) ledger.Pool { p.Exclude = []string{"198.51.100.9"}; return p }); err != nil {
			t.Fatal(err)
		}
	})
	p, perr := w.boss.Ledger.Pool(t.Context(), "lab")
	if err != nil || perr != nil || len(p.Gateways) != 1 || len(p.Exclude) != 1 {
		t.Errorf("the pool is %+v, %v, %v", p, err, perr)
	}
	if err := w.registered(true); err != nil {
		t.Error(err)
	}
}
