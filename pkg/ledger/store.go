package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/patch"
)

// Clock tells the time; the API server's, not this machine's, so that clients with wrong clocks
// agree on cool-downs.
type Clock interface{ Now() time.Time }

// Store reads and writes the ledger in one namespace. Reads that decide are GET and LIST with
// resourceVersion unset; writes are compare-and-swap on one object.
type Store struct {
	ConfigMaps corev1client.ConfigMapInterface
	Namespace  string
	Clock      Clock
	// FieldManager is written with every change.
	FieldManager string
	// DryRun sends every write with dryRun=All: the server checks it and keeps nothing.
	DryRun bool

	// apart is set once a write of rows of several namespaces was forbidden.
	apart atomic.Bool

	mu sync.Mutex
	// waiting are transitions by the name of their block. A name that is there has a goroutine
	// that writes.
	waiting map[string][]*change
}

// ErrChanged is returned where somebody else changed what a decision was based on: read again
// and decide again.
var ErrChanged = errors.New("changed by another writer")

// UnknownError is a write whose outcome could not be found out. Running the command again
// settles it.
type UnknownError struct {
	Object string
	Err    error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("outcome unknown: writing %s: %v; run the command again", e.Object, e.Err)
}

// Unwrap returns the cause.
func (e *UnknownError) Unwrap() error { return e.Err }

func (s *Store) describe(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ledger configmap %s/%s: %w", s.Namespace, name, err)
}

func (s *Store) dryRun() []string {
	if s.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func (s *Store) get(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	cm, err := s.ConfigMaps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, s.describe(name, err)
	}
	return cm, nil
}

// write creates or replaces an object under the resourceVersion that it carries; a conflict is
// ErrChanged. An answer that got lost is settled: while the object's resourceVersion is the one
// sent, the same write is repeated under it, so that at most one of them applies; as soon as it
// differs the object itself tells whose write it was.
func (s *Store) write(ctx context.Context, cm *corev1.ConfigMap) error {
	var lost error
	for try := 0; ; try++ {
		var err error
		if cm.ResourceVersion == "" {
			_, err = s.ConfigMaps.Create(ctx, cm, metav1.CreateOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
		} else {
			_, err = s.ConfigMaps.Update(ctx, cm, metav1.UpdateOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
		}
		switch {
		case err == nil:
			return nil
		case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && cm.ResourceVersion != "":
			if lost == nil {
				return ErrChanged
			}
			now, rerr := s.ConfigMaps.Get(ctx, cm.Name, metav1.GetOptions{})
			if rerr == nil && now.Data != nil && mapsEqual(now.Data, cm.Data) && mapsEqual(now.Annotations, cm.Annotations) {
				return nil // the write whose answer was lost
			}
			if rerr == nil || apierrors.IsNotFound(rerr) {
				return ErrChanged
			}
			lost = rerr
		case !Ambiguous(err):
			return s.describe(cm.Name, err)
		default:
			lost = err
		}
		if !Pause(ctx, try) || try == maxSettle {
			return &UnknownError{Object: "configmap " + s.Namespace + "/" + cm.Name, Err: lost}
		}
	}
}

const maxSettle = 8

// mapsEqual is exact: an op is fresh for every write, so that equal contents are the same write.
func mapsEqual(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// Ambiguous says whether the server may have applied a write all the same.
func Ambiguous(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // no answer at all
	}
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err)
}

// Pause waits before the next try, longer after more tries and never the same time in two
// processes; false when the context has ended.
func Pause(ctx context.Context, try int) bool {
	limit := min(2*time.Millisecond<<min(try, 7), 200*time.Millisecond)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(rand.N(limit)):
		return true
	}
}

// retry runs an attempt until it no longer meets another writer.
func (s *Store) retry(ctx context.Context, attempt func() error) error {
	for try := 0; ; try++ {
		err := attempt()
		if !errors.Is(err, ErrChanged) {
			return err
		}
		if !Pause(ctx, try) {
			return fmt.Errorf("gave up after %d conflicts with other writers: %w", try+1, context.Cause(ctx))
		}
	}
}

// DamagedError is a row that can't be read where it matters to whom it belongs.
type DamagedError struct {
	Owner Owner
	Entry Entry
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("ledger row %s can't be read (%v) and may belong to %s: repair or remove it by hand", e.Entry.Key, e.Entry.Err, e.Owner)
}

// RowsOf returns the rows that name the owner's machine and interface, whatever their UID, in
// one request however large the ledger is.
func (s *Store) RowsOf(ctx context.Context, o Owner) ([]Entry, error) {
	blocks, err := s.blocks(ctx, o.Label())
	if err != nil {
		return nil, fmt.Errorf("ledger rows of %s: %w", o, err)
	}
	return ownedIn(o, blocks)
}

// blocks lists the blocks with a label; "" lists all.
func (s *Store) blocks(ctx context.Context, label string) ([]*block, error) {
	selector := LabelKind + "=" + KindBlock
	if label != "" {
		selector += "," + label
	}
	list, err := s.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("ledger in namespace %s: %w", s.Namespace, err)
	}
	var out []*block
	for i := range list.Items {
		b, err := parseBlock(&list.Items[i])
		if err != nil {
			return nil, s.describe(list.Items[i].Name, err)
		}
		out = append(out, b)
	}
	return out, nil
}

// ownedIn finds an owner's rows. A block that has the owner's label and, instead of its row, one
// that can't be read may hide it.
func ownedIn(o Owner, blocks []*block) (out []Entry, err error) {
	for _, b := range blocks {
		if _, labelled := b.cm.Labels[o.Label()]; !labelled {
			continue
		}
		rows := b.rowsOf(o)
		if len(rows) == 0 {
			for _, e := range b.entries() {
				if e.Err != nil {
					return nil, &DamagedError{o, e}
				}
			}
		}
		out = append(out, rows...)
	}
	slices.SortFunc(out, compareEntries)
	return out, nil
}

// Row reads the row of one address.
func (s *Store) Row(ctx context.Context, network string, a netip.Addr) (Entry, bool, error) {
	b, err := s.block(ctx, network, address.BlockOf(a))
	if err != nil || b == nil {
		return Entry{}, false, err
	}
	e, ok := b.entry(a)
	return e, ok, nil
}

// block reads one block; nil where it does not exist.
func (s *Store) block(ctx context.Context, network string, prefix netip.Prefix) (*block, error) {
	name := blockName(network, prefix)
	cm, err := s.ConfigMaps.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.describe(name, err)
	}
	b, err := parseBlock(cm)
	return b, s.describe(name, err)
}

// change is one transition that waits for its block to be written. It is told to write for all
// that wait, or that it has been written.
type change struct {
	from  Entry
	to    *Row
	err   error
	write chan struct{}
	done  chan struct{}
}

// Transition changes one row from exactly the UID, op and state that were read; nil frees the
// address. It returns ErrChanged where the row is no longer the one that was read. Transitions of
// rows of one block that are made at once, by goroutines of one Store, share a write.
func (s *Store) Transition(ctx context.Context, from Entry, to *Row) error {
	prefix := address.BlockOf(from.Addr)
	name := blockName(from.Network, prefix)
	c := &change{from: from, to: to, write: make(chan struct{}), done: make(chan struct{})}
	s.mu.Lock()
	if s.waiting == nil {
		s.waiting = map[string][]*change{}
	}
	waiting, busy := s.waiting[name]
	s.waiting[name] = append(waiting, c)
	s.mu.Unlock()
	if busy {
		select {
		case <-c.done:
			return c.err
		case <-c.write:
		}
	}
	s.mu.Lock()
	batch := s.waiting[name]
	s.waiting[name] = nil // those that come now wait for the next write
	s.mu.Unlock()
	s.transitAll(ctx, from.Network, prefix, batch)
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.waiting[name]
	for i := len(batch) - 1; i >= 0; i-- {
		switch other := batch[i]; {
		case other == c:
		case c.err != nil && ctx.Err() != nil:
			other.err = nil
			next = slices.Insert(next, 0, other) // this one was interrupted, not they
		default:
			close(other.done)
		}
	}
	if len(next) == 0 {
		delete(s.waiting, name)
		return c.err
	}
	s.waiting[name] = next
	close(next[0].write)
	return c.err
}

// transitAll makes transitions of one block: in one write, or in one for each namespace where an
// admission policy forbids more.
func (s *Store) transitAll(ctx context.Context, network string, prefix netip.Prefix, batch []*change) {
	by := map[string][]*change{}
	for _, c := range batch {
		ns := c.from.Row.Owner().Namespace
		by[ns] = append(by[ns], c)
	}
	if len(by) > 1 && !s.apart.Load() {
		s.transit(ctx, network, prefix, batch)
		if !slices.ContainsFunc(batch, func(c *change) bool { return apierrors.IsForbidden(c.err) }) {
			return
		}
		s.apart.Store(true)
		for _, c := range batch {
			c.err = nil
		}
	}
	for _, ns := range slices.Sorted(maps.Keys(by)) {
		s.transit(ctx, network, prefix, by[ns])
	}
}

// transit makes transitions of one block in one write.
func (s *Store) transit(ctx context.Context, network string, prefix netip.Prefix, batch []*change) {
	err := s.retry(ctx, func() error {
		b, err := s.block(ctx, network, prefix)
		if err != nil {
			return err
		}
		changed := false
		for _, c := range batch {
			c.err = errRowGone
			if b == nil {
				continue
			}
			if now, ok := b.entry(c.from.Addr); !ok || now.Err != nil || !now.Row.same(c.from.Row) {
				continue
			}
			c.err = b.put(c.from.Addr, c.to)
			changed = changed || c.err == nil
		}
		if !changed {
			return nil
		}
		return s.save(ctx, b)
	})
	if err == nil {
		return
	}
	for _, c := range batch {
		if c.err == nil {
			c.err = err
		}
	}
}

// errRowGone is ErrChanged for the caller, but ends the inner retry.
var errRowGone = &rowGoneError{}

type rowGoneError struct{}

func (*rowGoneError) Error() string { return "the row was changed by another writer" }

// IsChanged says whether somebody else changed the row that a transition was to start from.
func IsChanged(err error) bool {
	var gone *rowGoneError
	return errors.Is(err, ErrChanged) || errors.As(err, &gone)
}

func (s *Store) save(ctx context.Context, b *block) error {
	if err := writable(b.cm); err != nil {
		return err
	}
	return s.write(ctx, b.cm)
}

// saveRows writes rows of a block that was read: by key where that can be, or the whole block. A
// conflict is ErrChanged. An answer that was lost is settled as write settles it: the same patch
// is sent again as long as the rows are as they were.
func (s *Store) saveRows(ctx context.Context, b *block, was, labels map[string]string, hadData bool) error {
	if err := writable(b.cm); err != nil {
		return err
	}
	body, ok, err := b.rowPatch(was, labels, hadData)
	if err != nil {
		return err
	}
	if !ok {
		return s.write(ctx, b.cm)
	}
	var lost error
	for try := 0; ; try++ {
		_, err := s.ConfigMaps.Patch(ctx, b.cm.Name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
		switch {
		case err == nil:
			return nil
		case patch.IsConflict(err) || apierrors.IsNotFound(err):
			if lost == nil {
				return ErrChanged
			}
			now, rerr := s.ConfigMaps.Get(ctx, b.cm.Name, metav1.GetOptions{})
			if rerr == nil && b.carries(now, was) {
				return nil // the write whose answer was lost
			}
			if rerr == nil || apierrors.IsNotFound(rerr) {
				return ErrChanged
			}
			lost = rerr
		case !Ambiguous(err):
			return s.describe(b.cm.Name, err)
		default:
			lost = err
		}
		if !Pause(ctx, try) || try == maxSettle {
			return &UnknownError{Object: "configmap " + s.Namespace + "/" + b.cm.Name, Err: lost}
		}
	}
}

// Snapshot reads the whole ledger in one request.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	list, err := s.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: LabelKind})
	if err != nil {
		return nil, fmt.Errorf("ledger in namespace %s: %w", s.Namespace, err)
	}
	return ParseSnapshot(list.Items), nil
}

// ParseSnapshot reads the ledger's objects; other ConfigMaps are passed over, damaged ones named.
func ParseSnapshot(items []corev1.ConfigMap) *Snapshot {
	out := &Snapshot{}
	for i := range items {
		cm := &items[i]
		kind, ours := cm.Labels[LabelKind]
		if !ours {
			continue
		}
		about := Damage{ConfigMap: cm.Name, Kind: kind, Network: cm.Labels[LabelNetwork]}
		if about.Err = writable(cm); about.Err != nil {
			out.Newer = append(out.Newer, about)
		}
		if about.Err = out.add(cm); about.Err != nil {
			out.Damaged = append(out.Damaged, about)
		}
	}
	slices.SortFunc(out.Entries, compareEntries)
	return out
}

// PoolOf returns the pool whose CIDRs hold the address; nil where none does.
func (s *Snapshot) PoolOf(network string, a netip.Addr) *Pool {
	for i := range s.Pools {
		if p := &s.Pools[i]; p.Network == network && p.Contains(a) {
			return p
		}
	}
	return nil
}
