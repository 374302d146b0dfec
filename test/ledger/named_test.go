package ledger

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/test/fault"
)

// must fails the test where a command that has to work does not.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func isRefused(t *testing.T, err error, code string) {
	t.Helper()
	var r *reservation.RefusedError
	if !errors.As(err, &r) || r.Code != code {
		t.Errorf("%v, want a refusal %s", err, code)
	}
}

// Two reserves of one machine: the one that stalled between its list of rows and its block must
// find what the other one wrote, and must not take the winner's row away.
func TestWokenLoserKeepsTheWinnersRow(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"GET /api/v1/namespaces/LEDGER/configmaps/vmip-pool-lab", "GET /api/v1/namespaces/LEDGER/configmaps/vmip-block", "configmaps/vmip-block-default", "PATCH /api/v1", "POST /api", "PATCH /apis/kubevirt.io"} {
		w := newWorld(t)
		w.pool(ledger.Pool{})
		w.vm("db-1", "db-2")
		if before == "PATCH /api/v1" {
			must[reservation.Result](t)(w.reserve(w.boss, "db-2", "198.51.100.99")) // the block is there
		}
		s := w.stalled(strings.ReplaceAll(before, "LEDGER", w.ledger))
		var slow reservation.Result
		var err error
		s.during(t, func() { slow, err = w.reserve(s.writer, "db-1") }, func() {
			must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1"))
		})
		if err != nil || len(slow.Addresses) != 1 {
			t.Errorf("stalled before %s: %v, %v", before, slow, err)
			continue
		}
		w.is("db-1", slow.Addresses[0].String(), slow.Addresses[0].String()+" reserved")
		w.whole()
	}
}

// Different addresses for one machine at once: one wins, the other says so and leaves nothing
// reserved, in whichever block it was.
func TestTwoAddressesForOneMachine(t *testing.T) {
	t.Parallel()
	for _, block := range []string{"198.51.100.20", "198.51.101.20"} {
		for _, before := range []string{"configmaps/vmip-block", "POST", "PATCH /apis/kubevirt.io"} {
			w := newWorld(t)
			w.pool(ledger.Pool{CIDRs: []string{"198.51.100.0/22"}})
			w.vm("db-1")
			s := w.stalled(before)
			var slow, quick error
			s.during(t, func() { _, slow = w.reserve(s.writer, "db-1", block) }, func() {
				_, quick = w.reserve(w.writer(nil), "db-1", "198.51.100.30")
			})
			want := "198.51.100.30"
			if slow == nil {
				want, slow, quick = block, quick, nil
			}
			if quick != nil {
				t.Errorf("%s before %s: both are refused: %v", block, before, quick)
			}
			isRefused(t, slow, "HasOtherAddress")
			if got := w.asks("db-1"); got != want {
				t.Errorf("%s before %s: the template asks for %q, want %q", block, before, got, want)
			}
			w.whole()
		}
	}
}

// A row whose label was removed by hand is found in its block, and gets its label back.
func TestLabelRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	must[reservation.Result](t)(w.reserve(w.boss, "db-1"))
	maps := w.boss.core.CoreV1().ConfigMaps(w.ledger)
	blocks, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: ledger.LabelKind + "=" + ledger.KindBlock})
	if err != nil || len(blocks.Items) != 1 {
		t.Fatal(blocks, err)
	}
	cm := &blocks.Items[0]
	for k := range cm.Labels {
		if strings.HasPrefix(k, ledger.LabelOwner) {
			delete(cm.Labels, k)
		}
	}
	if _, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1"))
	w.is("db-1", "198.51.100.2", "198.51.100.2 reserved")
	if got.Addresses[0].String() != "198.51.100.2" {
		t.Errorf("reserved %v", got.Addresses)
	}
}

// Of two reserved rows the one that the machine names counts, also where its template has lost the
// annotation and the other row has the lower address. The other one goes.
func TestNamedRowCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	// A reserve that dies before its patch leaves the lower row.
	dead := w.writer(fault.On(fault.Action{Kill: true}, "PATCH", "virtualmachines"))
	if _, err := w.reserve(dead, "db-1", "198.51.100.10"); err == nil || !dead.transport.Dead() {
		t.Fatal("the writer lives")
	}
	low := w.rows()[0]
	if err := w.boss.Ledger.Transition(t.Context(), low, nil); err != nil {
		t.Fatal(err)
	}
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.30"))
	claims := w.boss.Ledger.Claim(t.Context(), ledger.Claim{Owner: low.Row.Owner(), Pool: "lab", Family: low.Family(), Wanted: low.Addr, Op: ledger.NewOp(), Replace: true})
	if claims[0].Err != nil {
		t.Fatal(claims[0].Err)
	}
	row := claims[0].Entry.Row
	row.Replaces = ""
	if err := w.boss.Ledger.Transition(t.Context(), claims[0].Entry, &row); err != nil {
		t.Fatal(err)
	}
	if err := w.edit("db-1", map[string]any{annotation: nil}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := w.writer(nil).Reserve(ctx, []reservation.Request{{VM: w.ref("db-1")}}, nil)
	if out[0].Err != nil || out[0].Result.Addresses[0].String() != "198.51.100.30" {
		t.Errorf("%v, %v", out[0].Result, out[0].Err)
	}
	w.is("db-1", "198.51.100.30", "198.51.100.10 held", "198.51.100.30 reserved")
}

// A family that is full is called full, however many blocks the other one has open.
func TestOneFamilyFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{CIDRs: []string{"198.51.100.0/29", "2001:db8::/112"}, OpenBlocks: 3})
	var names []string
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		names = append(names, "vm-"+n)
	}
	w.vm(append(names, "late")...)
	for _, n := range names {
		must[reservation.Result](t)(w.reserve(w.boss, n))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := w.writer(nil).Reserve(ctx, []reservation.Request{{VM: w.ref("late")}}, nil)
	isRefused(t, out[0].Err, "PoolFull")
	for _, s := range w.states("late") {
		if !strings.HasSuffix(s, " held") {
			t.Errorf("the refused machine has %s", s)
		}
	}
	w.whole()
}

// A held address comes back only while its pool lets it.
func TestHeldRowOfAPoolThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
	must[reservation.Result](t)(w.release(w.boss, "db-1"))
	w.clock.ahead.Store(int64(time.Hour)) // past the cool-down a removal does not mind the row
	if err := w.boss.Ledger.RemovePool(t.Context(), "lab"); err != nil {
		t.Fatal(err)
	}
	w.pool(ledger.Pool{Name: "other", CIDRs: []string{"203.0.113.0/24"}})
	got := must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1"))
	if a := got.Addresses[0].String(); got.Pool != "other" || !strings.HasPrefix(a, "203.0.113.") {
		t.Errorf("reserved %v of pool %s", got.Addresses, got.Pool)
	}
	w.is("db-1", got.Addresses[0].String(), "198.51.100.20 held", got.Addresses[0].String()+" reserved")
}

// Another pool may be chosen while an address of the first one cools down.
func TestHeldRowOfAnotherPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.pool(ledger.Pool{Name: "other", CIDRs: []string{"203.0.113.0/24"}})
	w.vm("db-1")
	must[reservation.Result](t)(w.ask(w.boss, reservation.Request{VM: w.ref("db-1"), Pool: "lab"}))
	must[reservation.Result](t)(w.release(w.boss, "db-1"))
	got := must[reservation.Result](t)(w.ask(w.boss, reservation.Request{VM: w.ref("db-1"), Pool: "other"}))
	if got.Pool != "other" || got.Addresses[0].String() != "203.0.113.1" {
		t.Errorf("reserved %v of pool %s", got.Addresses, got.Pool)
	}
	w.whole()
}

// A release that is stalled before it patches the machine meets a reserve that takes the row back:
// neither strips the other's annotation, nor turns the row held under it.
func TestStalledReleaseMeetsReserve(t *testing.T) {
	t.Parallel()
	for _, before := range [][]string{{"PUT"}, {"PATCH", "virtualmachines"}, {"GET", "/pods"}, {"GET", "virtualmachineinstances"}} {
		w := newWorld(t)
		w.pool(ledger.Pool{})
		w.vm("db-1")
		must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
		s := w.stalled(before...)
		s.during(t, func() { _, _ = w.release(s.writer, "db-1") }, func() {
			must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1"))
		})
		// Whoever was last: a machine that asks for the address has it reserved, or does not ask.
		w.sound()
		must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1"))
		w.is("db-1", "198.51.100.20", "198.51.100.20 reserved")
	}
}

// A release that is stalled while its row goes through held to another machine must not touch the
// stranger's row.
func TestStalledReleaseMeetsAStranger(t *testing.T) {
	t.Parallel()
	for _, before := range [][]string{{"PUT"}, {"PATCH", "virtualmachines"}, {"GET", "virtualmachineinstances"}} {
		w := newWorld(t)
		w.pool(ledger.Pool{})
		w.vm("db-1", "web")
		must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
		s := w.stalled(before...)
		s.during(t, func() { _, _ = w.release(s.writer, "db-1") }, func() {
			must[reservation.Result](t)(w.release(w.writer(nil), "db-1"))
			w.clock.ahead.Store(int64(time.Hour))
			must[reservation.Result](t)(w.reserve(w.writer(nil), "web", "198.51.100.20"))
		})
		w.is("web", "198.51.100.20", "198.51.100.20 reserved")
		w.is("db-1", "")
	}
}

// A patch whose answer was lost and that lands late, after a release, meets a conflict.
func TestLatePatchMeetsTakeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	land := make(chan struct{})
	x := w.writer(fault.On(fault.Action{Late: land}, "PATCH", "virtualmachines"))
	ctx, cancel := context.WithCancel(t.Context())
	once := x.transport.Plan
	x.transport.Plan = func(c fault.Call) fault.Action {
		a := once(c)
		if a.Late != nil {
			cancel() // the command is interrupted and never learns what became of it
		}
		return a
	}
	out := x.Reserve(ctx, []reservation.Request{{VM: w.ref("db-1")}}, nil)
	if out[0].Err == nil || !strings.Contains(out[0].Err.Error(), "unknown") {
		t.Errorf("a patch without an answer ended with %v", out[0].Err)
	}
	must[reservation.Result](t)(w.release(w.writer(nil), "db-1"))
	close(land)
	x.transport.Settle()
	w.is("db-1", "", "198.51.100.2 held")
}

// An answer that is lost is settled: the command ends well, whether the call was applied or not.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for _, a := range []fault.Action{{Lose: true}, {Drop: true}, {Status: 500}, {Status: 504}} {
		for _, call := range [][]string{{"POST", "configmaps"}, {"PATCH", "configmaps"}, {"PATCH", "virtualmachines"}} {
			w := newWorld(t)
			w.pool(ledger.Pool{})
			w.vm("db-1", "db-2")
			if call[0] == "PATCH" && call[1] == "configmaps" {
				must[reservation.Result](t)(w.reserve(w.boss, "db-2", "198.51.100.2"))
			}
			x := w.writer(fault.On(a, call...))
			got, err := w.reserve(x, "db-1", "198.51.100.20")
			if err != nil || got.Unchanged {
				t.Errorf("%+v of %v: %+v, %v", a, call, got, err)
			}
			w.is("db-1", "198.51.100.20", "198.51.100.20 reserved")
		}
	}
}

// A reserve that died is completed by the next one, also where it lost a race meanwhile: an orphan
// must not flip the template.
func TestOrphanOfALostRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{CIDRs: []string{"198.51.100.0/22"}})
	w.vm("db-1")
	dead := w.stalled("PATCH", "virtualmachines")
	dead.during(t, func() { _, _ = w.reserve(dead.writer, "db-1", "198.51.101.5") }, func() {
		must[reservation.Result](t)(w.release(w.writer(nil), "db-1"))
		must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1", "198.51.100.9"))
	})
	for range 2 {
		must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1"))
		if got := w.asks("db-1"); got != "198.51.100.9" {
			t.Fatalf("the template asks for %s", got)
		}
	}
	w.whole()
}

// A release that died is no success for a reserve: the row is the machine's again, by a new op.
func TestReserveAfterADeadRelease(t *testing.T) {
	t.Parallel()
	for n := range 2 {
		w := newWorld(t)
		w.pool(ledger.Pool{})
		w.vm("db-1")
		must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
		dead := w.writer(fault.On(fault.Action{Kill: n == 0, KillAfter: n == 1}, "PATCH", "virtualmachines"))
		if _, err := w.release(dead, "db-1"); err == nil {
			t.Fatal("a dead release is called a success")
		}
		if got := w.states("db-1"); len(got) != 1 || got[0] != "198.51.100.20 releasing" {
			t.Fatalf("a dead release leaves %v", got)
		}
		got := must[reservation.Result](t)(w.reserve(w.writer(nil), "db-1"))
		if got.Unchanged {
			t.Error("a reserve took a row that was being released for its own")
		}
		w.is("db-1", "198.51.100.20", "198.51.100.20 reserved")
	}
}

// GitOps puts the annotation back during the cool-down: the address stays the machine's.
func TestAnnotationComesBackDuringTheCoolDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1", "web")
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
	must[reservation.Result](t)(w.release(w.boss, "db-1"))
	if err := w.edit("db-1", map[string]any{annotation: "198.51.100.20"}); err != nil {
		t.Fatal(err)
	}
	w.clock.ahead.Store(int64(time.Hour))
	_, err := w.reserve(w.writer(nil), "web", "198.51.100.20")
	isRefused(t, err, "AddressTaken")
	if swept, err := w.writer(nil).Sweep(t.Context(), reservation.SweepOptions{}); err != nil {
		t.Errorf("%v, %v", swept, err)
	}
	if got := w.states("db-1"); len(got) != 1 || got[0] != "198.51.100.20 held" {
		t.Errorf("the address that a template asks for went: %v", got)
	}
}

// A machine made again from its manifest, between the proof that it is gone and what follows: the
// address that the new one asks for is not given away.
func TestRecreatedDuringARelease(t *testing.T) {
	t.Parallel()
	for _, before := range [][]string{{"PUT"}, {"PATCH", "virtualmachines"}, {"GET", "virtualmachineinstances"}, {"GET", "/pods"}} {
		w := newWorld(t)
		w.pool(ledger.Pool{})
		w.vm("db-1", "web")
		must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
		s := w.stalled(before...)
		s.during(t, func() { _, _ = w.release(s.writer, "db-1") }, func() {
			if err := w.recreate("db-1"); err != nil {
				t.Fatal(err)
			}
		})
		w.clock.ahead.Store(int64(time.Hour))
		_, err := w.reserve(w.writer(nil), "web", "198.51.100.20")
		if w.asks("db-1") == "198.51.100.20" && err == nil {
			t.Errorf("stalled before %v: the address that a machine asks for was given to another", before)
		}
	}
}
