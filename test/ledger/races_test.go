package ledger

import (
	"testing"
	"time"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
)

// Sequences that histories of many writers have found. Each one broke an earlier form of the code.

// A sweep frees an owner's last other row, and with it the owner's label, between the read and the
// patch of a reserve that saw the label there: the new row must be found by it all the same.
func TestLabelFreedBeforeThePatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1", "db-2")
	must[reservation.Result](t)(w.reserve(w.boss, "db-2", "198.51.100.10"))
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
	must[reservation.Result](t)(w.release(w.boss, "db-1"))
	w.clock.ahead.Store(int64(time.Hour))
	s := w.stalled("PATCH /api/v1/", "vmip-block")
	var err error
	s.during(t, func() { _, err = w.reserve(s.writer, "db-1", "198.51.100.30") }, func() {
		for _, e := range w.rows() {
			if e.Addr.String() == "198.51.100.20" {
				if err := w.boss.Ledger.Transition(t.Context(), e, nil); err != nil {
					t.Error(err)
				}
			}
		}
		w.is("db-1", "")
	})
	if err != nil {
		t.Fatal(err)
	}
	w.is("db-1", "198.51.100.30", "198.51.100.30 reserved")
	owner := ledger.Owner{Namespace: w.namespace, Name: "db-1", Interface: "default"}
	if found := must[[]ledger.Entry](t)(w.boss.Ledger.RowsOf(t.Context(), owner)); len(found) != 1 {
		t.Errorf("its label leads to %v, want its row", found)
	}
	w.whole()
}

// A reserve that saw the address which a replacement moves away from must not take the new one away
// once the replacement was acknowledged.
func TestStandingReserveMeetsReplace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
	// The replacement has written its row and is about to patch the machine.
	replacing := w.stalled("PATCH /apis/kubevirt.io", "virtualmachines/db-1")
	// The reserve has seen that row, and that the machine does not name it, and is about to take it.
	standing := w.stalled("PUT /api/v1/", "vmip-block")
	var replaced, stood error
	replacing.during(t, func() { _, replaced = w.replace(replacing.writer, "db-1", "198.51.100.30") }, func() {
		standing.during(t, func() { _, stood = w.reserve(standing.writer, "db-1", "198.51.100.20") }, func() {
			replacing.wake()
			for deadline := time.Now().Add(time.Minute); w.asks("db-1") != "198.51.100.30"; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the replacement does not reach the machine")
				}
			}
		})
	})
	if replaced != nil || stood != nil {
		t.Errorf("replace: %v, reserve: %v", replaced, stood)
	}
	w.is("db-1", "198.51.100.30", "198.51.100.20 held", "198.51.100.30 reserved")
	w.whole()
}

// A release whose row another command moves on has released it.
func TestReleaseIsMovedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
	// The first write of the block marks the row, the second one lets it cool down.
	s := w.stalledAt(2, "PUT /api/v1/", "vmip-block")
	var err error
	s.during(t, func() { _, err = w.release(s.writer, "db-1") }, func() {
		if err := w.boss.Settle(t.Context(), w.ref("db-1")); err != nil {
			t.Error(err)
		}
		w.is("db-1", "", "198.51.100.20 held")
	})
	if err != nil {
		t.Error(err)
	}
	w.is("db-1", "", "198.51.100.20 held")
	w.whole()
}
