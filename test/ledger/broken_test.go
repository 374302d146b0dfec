package ledger

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/test/fault"
)

// A checker that finds nothing proves nothing. Each of these takes one rule of the protocol away,
// and the histories that follow must be found impossible.
func TestBrokenProtocolIsCaught(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]*history{
		"blocks are written without a look what was there": {broken: func(c fault.Call) fault.Action {
			if !c.Writes() || !strings.Contains(c.Path, "vmip-block") {
				return fault.Action{}
			}
			return fault.Action{Delay: time.Duration(rand.IntN(30)) * time.Millisecond, Rewrite: unguarded}
		}},
		"a write whose answer never came is taken for done": {broken: func(c fault.Call) fault.Action {
			if !c.Writes() || !strings.Contains(c.Path, "vmip-block") || rand.IntN(4) > 0 {
				return fault.Action{}
			}
			a := fault.Action{Pretend: true}
			if c.Method == "PATCH" {
				a.Answer = []byte(`{"kind":"ConfigMap","apiVersion":"v1"}`)
			}
			return a
		}},
		"a release frees rows without a look whose they are": {naive: true},
	} {
		t.Run(name, func(t *testing.T) {
			if !everything && !strings.HasPrefix(name, "blocks") {
				t.Skip("make test-faults-ledger: it takes a number of histories")
			}
			t.Parallel()
			for seed := range uint64(40) {
				try := &history{seed: seed, broken: h.broken, naive: h.naive, writers: 4}
				if result, _ := try.run(t, 64, false); result == porcupine.Illegal {
					return
				}
			}
			t.Error("40 histories with a broken protocol look sound")
		})
	}
}

var errNone = errors.New("no reservation")

// unguarded takes from a write what makes it meet others: the resourceVersion of an update, the
// tests of a patch.
func unguarded(body []byte) []byte {
	var ops []map[string]any
	if json.Unmarshal(body, &ops) == nil {
		ops = slices.DeleteFunc(ops, func(o map[string]any) bool { return o["op"] == "test" })
		return encoded(ops, body)
	}
	var o map[string]any
	if json.Unmarshal(body, &o) != nil {
		return body
	}
	if m, ok := o["metadata"].(map[string]any); ok {
		delete(m, "resourceVersion")
	}
	return encoded(o, body)
}

func encoded(v any, otherwise []byte) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		return otherwise
	}
	return out
}

// naiveRelease frees a machine's rows as a simple program would: it looks them up, and takes the
// keys away.
func (w *world) naiveRelease(x *writer, name string) (reservation.Result, error) {
	ctx := w.t.Context()
	vm, err := x.virt.KubevirtV1().VirtualMachines(w.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return reservation.Result{}, err
	}
	rows, err := x.Ledger.RowsOf(ctx, ledger.Owner{Namespace: w.namespace, Name: name, UID: vm.UID, Interface: "default"})
	if err != nil {
		return reservation.Result{}, err
	}
	var res reservation.Result
	for _, e := range rows {
		if e.Row.State != ledger.Reserved {
			continue
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		block, key, _ := strings.Cut(e.Key, "/")
		patch, err := json.Marshal(map[string]any{"data": map[string]any{key: nil}})
		if err != nil {
			return res, err
		}
		if _, err := x.core.CoreV1().ConfigMaps(w.ledger).Patch(ctx, block, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return res, err
		}
		res.Addresses = append(res.Addresses, e.Addr)
	}
	if len(res.Addresses) == 0 {
		return res, &reservation.RefusedError{Object: name, Code: "NoReservation", Err: errNone}
	}
	return res, nil
}
