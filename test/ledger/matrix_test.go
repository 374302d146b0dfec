package ledger

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/test/fault"
)

// everything says whether everything is to be tried (make test-faults-ledger), or a part that is the
// same every time (make test).
var everything = os.Getenv("VMIP_FAULTS") == "all"

// command is a mutating command with what has to be there before it.
type command struct {
	name  string
	setup func(*world) error
	run   func(*world, *writer) error
	// done checks what must be true once the command has ended well.
	done func(*world)
}

func first[T any](_ T, err error) error { return err }

func reserved(w *world) error {
	return first(w.reserve(w.boss, "db-1", "198.51.100.20"))
}

var commands = []command{
	{"reserve", nil, func(w *world, x *writer) error { return first(w.reserve(x, "db-1")) }, func(w *world) { w.is("db-1", "198.51.100.2", "198.51.100.2 reserved") }},
	{"reserve --ip", nil, func(w *world, x *writer) error { return first(w.reserve(x, "db-1", "198.51.100.20")) }, func(w *world) { w.is("db-1", "198.51.100.20", "198.51.100.20 reserved") }},
	{"reserve, both families", func(w *world) error {
		p, err := w.boss.Ledger.Pool(w.t.Context(), "lab")
		if err == nil {
			p.CIDRs = append(p.CIDRs, "2001:db8::/120")
			_, err = w.boss.Ledger.SetPool(w.t.Context(), *p)
		}
		return err
	}, func(w *world, x *writer) error { return first(w.reserve(x, "db-1")) }, func(w *world) {
		w.is("db-1", "198.51.100.2,2001:db8::1", "198.51.100.2 reserved", "2001:db8::1 reserved")
	}},
	{"reserve again", reserved, func(w *world, x *writer) error { return first(w.reserve(x, "db-1")) }, func(w *world) { w.is("db-1", "198.51.100.20", "198.51.100.20 reserved") }},
	{"repair", func(w *world) error {
		if err := reserved(w); err != nil {
			return err
		}
		return w.edit("db-1", map[string]any{annotation: nil})
	}, func(w *world, x *writer) error { return first(w.reserve(x, "db-1")) }, func(w *world) { w.is("db-1", "198.51.100.20", "198.51.100.20 reserved") }},
	{"take back a held one", func(w *world) error {
		if err := reserved(w); err != nil {
			return err
		}
		return first(w.release(w.boss, "db-1"))
	}, func(w *world, x *writer) error { return first(w.reserve(x, "db-1")) }, func(w *world) { w.is("db-1", "198.51.100.20", "198.51.100.20 reserved") }},
	{"replace", reserved, func(w *world, x *writer) error { return first(w.replace(x, "db-1", "198.51.100.30")) }, func(w *world) {
		w.is("db-1", "198.51.100.30", "198.51.100.20 held", "198.51.100.30 reserved")
	}},
	{"replace and back", func(w *world) error {
		if err := reserved(w); err != nil {
			return err
		}
		return first(w.replace(w.boss, "db-1", "198.51.100.30"))
	}, func(w *world, x *writer) error { return first(w.replace(x, "db-1", "198.51.100.20")) }, func(w *world) {
		w.is("db-1", "198.51.100.20", "198.51.100.20 reserved", "198.51.100.30 held")
	}},
	{"release", reserved, func(w *world, x *writer) error { return first(w.release(x, "db-1")) }, func(w *world) { w.is("db-1", "", "198.51.100.20 held") }},
	{"adopt a template", func(w *world) error { return w.edit("db-1", map[string]any{annotation: "198.51.100.40"}) }, func(w *world, x *writer) error {
		return first(w.ask(x, reservation.Request{VM: w.ref("db-1"), Adopt: true}))
	}, func(w *world) { w.is("db-1", "198.51.100.40", "198.51.100.40 reserved") }},
	{"adopt after a recreation", func(w *world) error {
		if err := reserved(w); err != nil {
			return err
		}
		return w.recreate("db-1")
	}, func(w *world, x *writer) error {
		return first(w.ask(x, reservation.Request{VM: w.ref("db-1"), Adopt: true}))
	}, func(w *world) { w.is("db-1", "198.51.100.20", "198.51.100.20 reserved") }},
	{"ahead of the machine", nil, func(w *world, x *writer) error {
		return first(w.ask(x, reservation.Request{VM: w.ref("later"), Ahead: true}, "198.51.100.50"))
	}, func(w *world) {
		if got := w.states("later"); len(got) != 1 || got[0] != "198.51.100.50 reserved" {
			w.t.Errorf("the machine to come has %v", got)
		}
	}},
	{"plan", func(w *world) error { w.vm(planned...); return nil }, func(w *world, x *writer) error {
		var reqs []reservation.Request
		for _, n := range planned {
			reqs = append(reqs, reservation.Request{VM: w.ref(n)})
		}
		var errs []error
		for _, o := range x.Reserve(w.t.Context(), reqs, nil) {
			errs = append(errs, o.Err)
		}
		return errors.Join(errs...)
	}, func(w *world) {
		for _, n := range planned {
			if got := w.states(n); len(got) != 1 || !strings.HasSuffix(got[0], " reserved") {
				w.t.Errorf("%s has %v", n, got)
			}
		}
	}},
	{"pool set", reserved, func(w *world, x *writer) error {
		p, err := x.Ledger.Pool(w.t.Context(), "lab")
		if err != nil {
			return err
		}
		p.Exclude = []string{"198.51.100.30"}
		return first(x.Ledger.SetPool(w.t.Context(), *p))
	}, func(w *world) {
		if err := first(w.reserve(w.boss, "web", "198.51.100.30")); err == nil || !strings.Contains(err.Error(), "excluded") {
			w.t.Errorf("the excluded address: %v", err)
		}
	}},
	{"pool remove", nil, func(w *world, x *writer) error {
		err := x.Ledger.RemovePool(w.t.Context(), "lab")
		if errors.As(err, new(*ledger.PoolNotFoundError)) {
			return nil // the one before it did
		}
		return err
	}, func(w *world) {
		if left := w.objects(ledger.KindPool); len(left) > 0 {
			w.t.Errorf("the pool is there: %v", left)
		}
	}},
	{"pool add", nil, func(w *world, x *writer) error {
		ns, err := x.core.CoreV1().Namespaces().Get(w.t.Context(), "kube-system", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = x.Ledger.AddPool(w.t.Context(), ledger.Pool{Name: "more", CIDRs: []string{"203.0.113.0/24"}}, ns.UID)
		if errors.As(err, new(*ledger.PoolExistsError)) {
			return nil
		}
		return err
	}, func(w *world) {
		if err := first(w.ask(w.boss, reservation.Request{VM: w.ref("web"), Pool: "more"})); err != nil {
			w.t.Errorf("from the new pool: %v", err)
		}
	}},
	{"scan", func(w *world) error {
		_, err := w.boss.Ledger.Record(w.t.Context(), []ledger.ForeignClaim{{Network: "default", Addr: netip.MustParseAddr("198.51.100.40"), By: "node n9", Reason: "gone"}})
		return err
	}, func(w *world, x *writer) error {
		var gone []ledger.Entry
		for _, e := range w.rows() {
			if e.Addr.String() == "198.51.100.40" {
				gone = append(gone, e)
			}
		}
		_, err := x.Ledger.Record(w.t.Context(), []ledger.ForeignClaim{{Network: "default", Addr: netip.MustParseAddr("198.51.100.41"), By: "node n1", Reason: "an address of the node"}})
		return errors.Join(err, first(x.Ledger.Forget(w.t.Context(), gone)))
	}, func(w *world) {
		if got := fmt.Sprint(w.foreign()); got != "[198.51.100.41 node n1]" {
			w.t.Errorf("claims of others: %s", got)
		}
	}},
	{"sweep", func(w *world) error {
		dead := w.writer(fault.On(fault.Action{Kill: true}, "PATCH", "virtualmachines"))
		if err := first(w.reserve(dead, "db-1", "198.51.100.20")); err == nil {
			return errors.New("the writer lives")
		}
		if err := first(w.reserve(w.boss, "web", "198.51.100.30")); err != nil {
			return err
		}
		if err := first(w.release(w.boss, "web")); err != nil {
			return err
		}
		w.clock.ahead.Store(int64(time.Hour))
		return nil
	}, func(w *world, x *writer) error {
		swept, err := x.Sweep(w.t.Context(), reservation.SweepOptions{Grace: time.Minute})
		errs := []error{err}
		for _, s := range swept {
			errs = append(errs, s.Err)
		}
		return errors.Join(errs...)
	}, func(w *world) {
		w.is("db-1", "198.51.100.20", "198.51.100.20 reserved")
		w.is("web", "")
	}},
}

var planned = []string{"p-1", "p-2", "p-3", "p-4", "p-5", "p-6", "p-7", "p-8", "p-9", "p-10"}

// prepared is a world in which a command can run.
func (c command) prepared(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	ns, err := w.boss.core.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.boss.Ledger.AddPool(t.Context(), ledger.Pool{Name: "lab", CIDRs: []string{"198.51.100.0/24"}, Gateways: []string{"198.51.100.1"}}, ns.UID); err != nil {
		t.Fatal(err)
	}
	w.vm("db-1", "web")
	if c.setup != nil {
		if err := c.setup(w); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	return w
}

// Every command is killed just before and just after every call that it makes. What it leaves
// behind is sound, and the same command, run again, completes it.
func TestKilledAtEveryCall(t *testing.T) {
	t.Parallel()
	points := make(chan int, len(commands))
	t.Run("commands", func(t *testing.T) {
		for _, c := range commands {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				n, tried := 0, 0
				for ; n < 200; n++ {
					if !everything && !sampled(c.name, "", n, 8) {
						if n < 50 {
							continue
						}
						break
					}
					ended := false
					for _, after := range []bool{false, true} {
						ended = c.killed(t, n+1, after) || ended
					}
					if ended {
						break // the command makes no n-th call
					}
					tried += 2
				}
				if everything && n < 3 {
					t.Errorf("%s made %d calls: the faults never met it", c.name, n)
				}
				points <- tried
			})
		}
	})
	close(points)
	total := 0
	for n := range points {
		total += n
	}
	// A new call of a command is a new point by itself; a number that falls means that commands
	// have gone from the table, or that their faults no longer meet them.
	t.Logf("%d crash points in %d commands", total, len(commands))
	if least := 60; total < least || everything && total < 500 {
		t.Errorf("%d crash points: the table has lost some", total)
	}
}

// killed kills the command at its n-th call; true where it made none.
func (c command) killed(t *testing.T, n int, after bool) bool {
	t.Helper()
	w := c.prepared(t)
	x := w.writer(fault.At(n, fault.Action{Kill: !after, KillAfter: after}))
	err := c.run(w, x)
	where := "after its last call"
	calls := x.transport.Calls()
	if len(calls) >= n {
		where = fmt.Sprintf("at call %d (after: %v), %s", n, after, calls[n-1])
	}
	if !x.transport.Dead() {
		if err != nil {
			t.Errorf("%s without a fault: %v", c.name, err)
		}
		c.done(w)
		w.whole()
		return true
	}
	// A template that asks for an address before anybody has adopted it is sound only afterwards.
	if err := w.unsound(); err != nil && c.name != "adopt a template" {
		t.Errorf("%s killed %s leaves: %v", c.name, where, err)
	}
	if err := c.run(w, w.writer(nil)); err != nil {
		t.Errorf("%s killed %s, then run again: %v", c.name, where, err)
	}
	c.done(w)
	w.whole()
	if found := w.findings(); len(found) > 0 {
		t.Errorf("%s killed %s, then run again: audit finds %q", c.name, where, found)
	}
	if t.Failed() {
		t.Fatalf("%s killed %s", c.name, where)
	}
	return false
}

// others are what other people do while a command is stalled.
var others = []struct {
	name string
	do   func(*world) error
}{
	{"reserve", func(w *world) error { return first(w.reserve(w.writer(nil), "db-1")) }},
	{"reserve another address", func(w *world) error { return first(w.reserve(w.writer(nil), "db-1", "198.51.100.77")) }},
	{"replace", func(w *world) error { return first(w.replace(w.writer(nil), "db-1", "198.51.100.66")) }},
	{"release", func(w *world) error { return first(w.release(w.writer(nil), "db-1")) }},
	{"release, then a stranger", func(w *world) error {
		if err := first(w.release(w.writer(nil), "db-1")); err != nil {
			return err
		}
		w.clock.ahead.Store(int64(time.Hour))
		return errors.Join(first(w.reserve(w.writer(nil), "web", "198.51.100.20")), first(w.reserve(w.writer(nil), "web")))
	}},
	{"the annotation comes back", func(w *world) error { return w.edit("db-1", map[string]any{annotation: "198.51.100.20"}) }},
	{"the annotation goes", func(w *world) error { return w.edit("db-1", map[string]any{annotation: nil}) }},
	{"sweep", func(w *world) error {
		return first(w.writer(nil).Sweep(w.t.Context(), reservation.SweepOptions{}))
	}},
	{"the pool shrinks", func(w *world) error {
		p, err := w.writer(nil).Ledger.Pool(w.t.Context(), "lab")
		if err != nil {
			return err
		}
		p.Exclude = []string{"198.51.100.2", "198.51.100.20", "198.51.100.30"}
		return first(w.writer(nil).Ledger.SetPool(w.t.Context(), *p))
	}},
	{"the pool goes", func(w *world) error { return w.writer(nil).Ledger.RemovePool(w.t.Context(), "lab") }},
	{"the machine is made again", func(w *world) error { return w.recreate("db-1") }},
}

// Every command stops before every call that it makes, while somebody else does each of the other
// things; then it goes on. Whoever is refused: what a template asks for is its machine's.
func TestStalledAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, c := range commands {
		switch c.name {
		case "plan", "sweep", "ahead of the machine", "reserve, both families", "pool set", "pool remove", "pool add", "scan":
			continue // of many machines, or of none that the others touch
		}
		for _, o := range others {
			t.Run(c.name+" and "+o.name, func(t *testing.T) {
				t.Parallel()
				met := 0
				for n := 1; n < 200; n++ {
					if !everything && !sampled(c.name, o.name, n, 24) {
						if n > 40 {
							break
						}
						continue
					}
					if !c.stalled(t, n, o.name, o.do) {
						break
					}
					met++
				}
				if everything && met < 4 {
					t.Errorf("the stalls met %d calls", met)
				}
			})
		}
	}
}

// sampled chooses one of so many, always the same ones.
func sampled(a, b string, n int, of uint32) bool {
	h := fnv.New32a()
	fmt.Fprint(h, a, b, n)
	return h.Sum32()%of == 0
}

// stalled stops the command at its n-th call; false where it makes none.
func (c command) stalled(t *testing.T, n int, name string, other func(*world) error) bool {
	t.Helper()
	w := c.prepared(t)
	w.detected = detect
	wake, reached := make(chan struct{}), make(chan struct{})
	x := w.writer(func(call fault.Call) fault.Action {
		if call.N != n {
			return fault.Action{}
		}
		close(reached)
		return fault.Action{Wait: wake}
	})
	ended := make(chan error, 1)
	go func() { ended <- c.run(w, x) }()
	var err, otherErr error
	select {
	case err = <-ended:
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		return false
	case <-reached:
	}
	otherErr = other(w)
	close(wake)
	select {
	case err = <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s, stalled at call %d (%s) while: %s, does not end", c.name, n, x.transport.Calls()[n-1], name)
	}
	if bad := w.unsound(); bad != nil && !tolerated(name, bad) && !(c.name == "adopt a template" && strings.HasSuffix(bad.Error(), "has no row")) {
		t.Fatalf("%s (%v), stalled at call %d (%s) while: %s (%v), leaves: %v", c.name, err, n, x.transport.Calls()[n-1], name, otherErr, bad)
	}
	return true
}

// tolerated are states that somebody has made by hand on purpose: an annotation that was put back,
// by GitOps or with a manifest, asks for what nobody has reserved. It must not be given away: the
// row is there, of that machine.
func tolerated(other string, bad error) bool {
	byHand := other == "the annotation comes back" || other == "the machine is made again"
	return byHand && !strings.Contains(bad.Error(), "both ask") && !strings.Contains(bad.Error(), "'s")
}
