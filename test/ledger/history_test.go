package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/test/fault"
)

// history is what a number of writers did to one small pool at once.
type history struct {
	w     *world
	seed  uint64
	start time.Time
	// broken rewrites calls, to break the protocol on purpose; nil leaves it whole.
	broken func(fault.Call) fault.Action
	// naive releases rows without the protocol.
	naive bool
	// writers are so many at once; few where a history is to be proven impossible, which takes the
	// checker the longer the more operations overlap.
	writers int

	ids        atomic.Int64
	mu         sync.Mutex
	ops        []porcupine.Operation
	transports []*fault.Transport
	settling   sync.WaitGroup
	// wrote is when the operations with these numbers sent their first write and were told of their last.
	wrote map[int][2]int64
}

const (
	writers = 16
	// share of conflicting writes, and of writers at work at once, below which a history proves little.
	leastConflicts = 0.3
	leastWriters   = 8
)

func addr(a int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(a)}) }

func vmName(m int) string { return "m-" + strconv.Itoa(m) }

// run lets the writers do so many operations and returns what the checker says of them.
func (h *history) run(t *testing.T, operations int, faults bool) (porcupine.CheckResult, string) {
	t.Helper()
	h.w = newWorld(t)
	h.w.clock.step.Store(int64(2 * time.Minute))
	// Automatic choice and explicit addresses meet in the same eight.
	h.w.pool(ledger.Pool{CIDRs: []string{"198.51.100.0/28"}, Ranges: []string{fmt.Sprintf("198.51.100.1-198.51.100.%d", addresses)}, HoldFor: "1m"})
	for m := range machines {
		h.w.vm(vmName(m))
	}
	h.start, h.wrote = time.Now(), map[int][2]int64{}
	var wg sync.WaitGroup
	each := operations / h.writers
	for c := range h.writers {
		wg.Go(func() { h.client(c, each, faults) })
	}
	wg.Wait()
	for _, tr := range h.transports {
		tr.Settle()
	}
	h.settling.Wait()
	h.w.clock.step.Store(0)
	if h.broken != nil || h.naive {
		return porcupine.CheckOperationsTimeout(model, h.telling(), 10*time.Second), ""
	}
	// Operations that were slow overlap with all others. Most have their effect with their own writes:
	// an order that fits into these is one that fits.
	if porcupine.CheckOperationsTimeout(model, h.narrowed(), 10*time.Second) == porcupine.Ok {
		return porcupine.Ok, ""
	}
	result, info := porcupine.CheckOperationsVerbose(model, h.telling(), time.Minute)
	if result == porcupine.Ok {
		return result, ""
	}
	return result, h.draw(t, info)
}

// telling are the operations that say something: a refusal because of others is always allowed and
// changes nothing, so that the checker need not look for its place.
func (h *history) telling() []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(h.ops), func(o porcupine.Operation) bool {
		return o.Output.(output).answer == no
	})
}

// narrowed are the telling operations with the time from their first write to their last.
func (h *history) narrowed() []porcupine.Operation {
	ops := h.telling()
	for i, o := range ops {
		if w, wrote := h.wrote[o.Input.(input).id]; wrote && o.Output.(output).answer == done {
			ops[i].Call, ops[i].Return = w[0], w[1]
		}
	}
	return ops
}

// draw writes the history as a picture, for whoever has to find out what happened.
func (h *history) draw(t *testing.T, info porcupine.LinearizationInfo) string {
	f, err := os.CreateTemp("", "history-*.html")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer f.Close()
	if err := porcupine.Visualize(model, info, f); err != nil {
		t.Error(err)
	}
	at := h.firstImpossible(20 * time.Second)
	for _, o := range h.telling() {
		if o.Call > at {
			continue
		}
		t.Logf("%4d to %4d ms, writer %2d: %s", o.Call/1e6, o.Return/1e6, o.ClientId, model.DescribeOperation(o.Input, o.Output))
	}
	return f.Name()
}

// firstImpossible is when the operation came back with which the history became impossible, the
// largest time where that is not found.
func (h *history) firstImpossible(patience time.Duration) int64 {
	ops, begin := h.telling(), time.Now()
	for _, last := range slices.SortedFunc(slices.Values(ops), func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) }) {
		var until []porcupine.Operation
		for _, o := range ops {
			if o.Call > last.Return {
				continue
			}
			if o.Return > last.Return {
				o.Return, o.Output = math.MaxInt64-1, output{answer: unknown}
			}
			until = append(until, o)
		}
		if porcupine.CheckOperationsTimeout(model, until, time.Second) == porcupine.Illegal {
			return last.Return
		}
		if time.Since(begin) > patience {
			break
		}
	}
	return math.MaxInt64
}

// client is one writer: commands one after another. Where it was killed a new process goes on.
func (h *history) client(id, operations int, faults bool) {
	rng := rand.New(rand.NewPCG(h.seed, uint64(id)))
	var x *writer
	for range operations {
		if x == nil || x.transport.Dead() {
			x = h.w.writer(h.plan(rand.New(rand.NewPCG(rng.Uint64(), 1)), faults))
			h.mu.Lock()
			h.transports = append(h.transports, x.transport)
			h.mu.Unlock()
		}
		h.one(id, x, rng)
	}
}

// plan breaks calls at random.
func (h *history) plan(rng *rand.Rand, faults bool) fault.Plan {
	return func(c fault.Call) fault.Action {
		if h.broken != nil {
			if a := h.broken(c); a.Rewrite != nil || a.Pretend || a.Delay != 0 {
				return a
			}
		}
		if !faults {
			return fault.Action{}
		}
		switch p := rng.Float64(); {
		case p < 0.002:
			return fault.Action{Kill: true}
		case p < 0.004:
			return fault.Action{KillAfter: true}
		case p < 0.014:
			return fault.Action{Delay: time.Duration(100+rng.IntN(400)) * time.Millisecond} // stalled
		case p < 0.05:
			return fault.Action{Delay: time.Duration(rng.IntN(20)) * time.Millisecond}
		case !c.Writes():
			return fault.Action{}
		case p < 0.09:
			return fault.Action{Status: 409}
		case p < 0.105:
			return fault.Action{Lose: true}
		case p < 0.12:
			return fault.Action{Drop: true}
		case p < 0.13:
			late := make(chan struct{})
			time.AfterFunc(time.Duration(rng.IntN(500))*time.Millisecond, func() { close(late) })
			return fault.Action{Late: late}
		}
		return fault.Action{}
	}
}

// one runs and records one operation.
func (h *history) one(client int, x *writer, rng *rand.Rand) {
	in := input{machine: rng.IntN(machines), address: 1 + rng.IntN(addresses)}
	switch p := rng.Float64(); {
	case p < 0.25:
		in.kind, in.address = opReserve, 0
	case p < 0.45:
		in.kind = opReserveIP
	case p < 0.65:
		in.kind = opReplace
	case p < 0.95:
		in.kind, in.address = opRelease, 0
	default:
		in.kind, in.address, in.machine = opExclude, 0, 0
		if rng.IntN(2) == 0 {
			in.mask = 1 << (1 + rng.IntN(addresses))
		}
	}
	in.id = int(h.ids.Add(1))
	x.transport.Wrote = func(_ fault.Call, sent, answered time.Time) {
		h.mu.Lock()
		defer h.mu.Unlock()
		w, wrote := h.wrote[in.id]
		if !wrote {
			w[0] = sent.Sub(h.start).Nanoseconds()
		}
		w[1] = answered.Sub(h.start).Nanoseconds()
		h.wrote[in.id] = w
	}
	op := porcupine.Operation{ClientId: client, Input: in, Call: h.now()}
	out := h.do(x, in)
	op.Output, op.Return = out, h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	if out.answer != unknown {
		return
	}
	n := len(h.ops) - 1
	// It has its effect, or has none, before its last call has landed: the next operation of this
	// writer doesn't wait for that.
	h.settling.Go(func() {
		x.transport.Settle()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ops[n].Return = h.now()
	})
}

func (h *history) now() int64 { return time.Since(h.start).Nanoseconds() }

// do runs the command that an input stands for.
func (h *history) do(x *writer, in input) (out output) {
	name := vmName(in.machine)
	var err error
	var got reservation.Result
	switch in.kind {
	case opReserve:
		got, err = h.w.reserve(x, name)
	case opReserveIP:
		got, err = h.w.reserve(x, name, addr(in.address).String())
	case opReplace:
		got, err = h.w.replace(x, name, addr(in.address).String())
	case opRelease:
		if h.naive {
			got, err = h.w.naiveRelease(x, name)
		} else {
			got, err = h.w.release(x, name)
		}
	case opExclude:
		return output{answer: h.exclude(x, in.mask)}
	}
	if err == nil {
		if len(got.Addresses) > 0 {
			out.address = int(got.Addresses[0].As4()[3])
		}
		return out
	}
	return output{answer: classify(err), why: err.Error()}
}

func classify(err error) answer {
	var refusal *reservation.RefusedError
	if !errors.As(err, &refusal) || errors.As(err, new(*ledger.UnknownError)) {
		if errors.As(err, new(*ledger.MovingError)) {
			return no
		}
		// A release that met another command may have been undone, or done and followed by a reserve.
		return unknown
	}
	switch refusal.Code {
	case "NoReservation":
		return none
	}
	return no
}

// exclude changes the pool.
func (h *history) exclude(x *writer, mask uint16) answer {
	p, err := x.Ledger.Pool(h.w.t.Context(), "lab")
	if err != nil {
		return unknown
	}
	p.Exclude = nil
	for a := 1; a <= addresses; a++ {
		if mask&(1<<a) != 0 {
			p.Exclude = append(p.Exclude, addr(a).String())
		}
	}
	_, err = x.Ledger.SetPool(h.w.t.Context(), *p)
	switch rows := (*ledger.RowsOutsideError)(nil); {
	case err == nil:
		return done
	case errors.As(err, &rows) && !x.transport.Dead():
		return no
	}
	return unknown
}

// overlap is the largest number of operations at work at one moment.
func (h *history) overlap() int {
	type edge struct {
		at    int64
		begin bool
	}
	var edges []edge
	for _, o := range h.ops {
		if o.Output.(output).answer != unknown {
			edges = append(edges, edge{o.Call, true}, edge{o.Return, false})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return int(a.at - b.at) })
	n, most := 0, 0
	for _, e := range edges {
		if e.begin {
			n++
		} else {
			n--
		}
		most = max(most, n)
	}
	return most
}

func (h *history) conflicts() float64 {
	conflicts, writes := 0, 0
	for _, tr := range h.transports {
		c, n := tr.Conflicts()
		conflicts, writes = conflicts+c, writes+n
	}
	return float64(conflicts) / float64(max(writes, 1))
}

// Histories of many writers at once, over a connection that loses, delays and repeats, are what one
// writer after another could have done.
func TestHistories(t *testing.T) {
	t.Parallel()
	histories, operations := 4, 96
	if everything {
		histories, operations = 200, 208
	}
	if n, err := strconv.Atoi(os.Getenv("VMIP_HISTORIES")); err == nil {
		histories = n
	}
	base := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("VMIP_SEED"), 10, 64); err == nil {
		base = s
	}
	t.Logf("VMIP_SEED=%d", base)
	for i := range histories {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			// A history that the checker can't decide in its time says nothing: another one has to.
			var h *history
			var result porcupine.CheckResult
			var picture string
			for try := range uint64(3) {
				h = &history{seed: base + uint64(i) + 1000*try, writers: writers}
				if result, picture = h.run(t, operations, true); result != porcupine.Unknown {
					break
				}
				t.Logf("history of seed %d is not decided: %s", h.seed, picture)
			}
			if result != porcupine.Ok {
				t.Errorf("history of seed %d is %s: %s", h.seed, result, picture)
			}
			if c, n := h.conflicts(), h.overlap(); c < leastConflicts || n < leastWriters {
				t.Errorf("%.0f %% of the writes met a conflict, %d writers at once: too few to prove anything", 100*c, n)
			} else {
				t.Logf("%d operations, %.0f %% conflicts, %d at once", len(h.ops), 100*c, n)
			}
			h.w.settle()
			h.w.whole()
		})
	}
}

// settle lets every machine's next command complete what others have left.
func (w *world) settle() {
	w.t.Helper()
	for m := range machines {
		rows := w.states(vmName(m))
		x := w.writer(nil)
		if slices.ContainsFunc(rows, func(s string) bool { return strings.HasSuffix(s, " reserved") }) {
			if _, err := w.reserve(x, vmName(m)); err != nil {
				w.t.Error(err)
			}
		} else if slices.ContainsFunc(rows, func(s string) bool { return !strings.HasSuffix(s, " held") }) {
			if _, err := w.release(x, vmName(m)); err != nil {
				w.t.Error(err)
			}
		}
	}
}
