package ledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// Claim is a request for one address of one family.
type Claim struct {
	Owner  Owner
	Pool   string
	Family address.Family
	// Wanted is the address asked for; the zero Addr lets the ledger choose.
	Wanted netip.Addr
	// Named is the address that the VM itself names as the interface's; the zero Addr where it
	// names none. Among several rows of an owner it is the one that counts.
	Named netip.Addr
	// Replace lets an owner that has an address move to another one; it keeps both until the
	// new one is in use.
	Replace bool
	// Adopt gives the owner the rows of an earlier machine of its name.
	Adopt bool
	MAC   string
	Op    string
	// Usable asks the cluster whether something that is not the owner has the address, and
	// says what; "" where nothing is seen.
	Usable func(context.Context, netip.Addr) (string, error)
	// Gone proves that the owner of a held row no longer uses the address.
	Gone func(context.Context, Entry) (bool, error)
	// Preview chooses without writing.
	Preview bool
	// Read is what the caller has just read; nil lets the first try read it. It need not be the newest:
	// whatever it decides is checked against the block, and against the pool that is read after it.
	Read *Read
}

// Read is an owner's rows and a pool's specification.
type Read struct {
	Rows []Entry
	Pool Pool
}

// TakenError is a claim on an address that has a row of somebody else.
type TakenError struct {
	Addr  netip.Addr
	Entry Entry
	// Expired is set where the row's cool-down is over and only the right to take it is missing.
	Expired bool
}

func (e *TakenError) Error() string {
	r := e.Entry.Row
	switch {
	case e.Entry.Err != nil:
		return fmt.Sprintf("address %s has a row that can't be read (%v) and counts as taken: repair or remove %s", e.Addr, e.Entry.Err, e.Entry.Key)
	case r.State == Held && e.Expired:
		return fmt.Sprintf("address %s was released by %s, and its cool-down is over, but you may not take the rows of namespace %s: choose another one, or let an operator free it", e.Addr, r.VM, r.Owner().Namespace)
	case r.State == Held:
		return fmt.Sprintf("address %s was released by %s and cools down until %s: choose another one or wait", e.Addr, r.VM, r.Until.UTC().Format(time.RFC3339))
	case r.State == Foreign:
		return fmt.Sprintf("address %s is claimed by %s (%s): choose another one; where that is no longer so, run: kubectl vmip audit --refresh", e.Addr, r.VM, r.Reason)
	}
	return fmt.Sprintf("address %s is %s by virtualmachine %s, interface %s", e.Addr, r.State, r.VM, r.Interface)
}

// InUseError is a claim on an address that the ledger has free and the cluster shows in use.
type InUseError struct {
	Addr netip.Addr
	By   string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("address %s is in use by %s", e.Addr, e.By)
}

// PoolFullError is an automatic choice with nothing left.
type PoolFullError struct {
	Pool   string
	Family address.Family
}

func (e *PoolFullError) Error() string {
	return fmt.Sprintf("pool %s has no free %s address: release some, or widen it with: kubectl vmip pool set %s --range …", e.Pool, e.Family, e.Pool)
}

// OtherAddressError is a claim by an interface that already has another address of the family.
type OtherAddressError struct {
	Owner Owner
	Have  Entry
	// Want is the address or pool that was asked for.
	Want string
}

func (e *OtherAddressError) Error() string {
	return fmt.Sprintf("virtualmachine %s already has %s on interface %s (%s), not %s: move it with --replace, or release it first", e.Owner.VM(), e.Have.Addr, e.Owner.Interface, e.Have.Row.State, e.Want)
}

// MovingError is a second replacement while the first has not come to its end.
type MovingError struct {
	Owner Owner
	Have  Entry
}

func (e *MovingError) Error() string {
	return fmt.Sprintf("virtualmachine %s is still leaving %s on interface %s: restart it first with: kubectl vmip restart %s -n %s", e.Owner.VM(), e.Have.Addr, e.Owner.Interface, e.Owner.Name, e.Owner.Namespace)
}

// OlderUIDError is a row of an earlier machine of the same name.
type OlderUIDError struct {
	Owner Owner
	Have  Entry
}

func (e *OlderUIDError) Error() string {
	return fmt.Sprintf("address %s is %s by an earlier virtualmachine %s (UID %s, this one is %s): release it first with: kubectl vmip release %s -n %s",
		e.Have.Addr, e.Have.Row.State, e.Owner.VM(), e.Have.Row.UID, e.Owner.UID, e.Owner.Name, e.Owner.Namespace)
}

// Claimed is what became of a claim.
type Claimed struct {
	// Entry is the owner's row, reserved under the claim's op.
	Entry Entry
	// Fresh is set where the row was not reserved before: whoever gives up later takes it back.
	Fresh bool
	// New is set where the address was nobody's, and the owner's neither, before.
	New bool
	// Old is the row that the owner moves away from; nil where it moves from none.
	Old *Entry
	// Lost are further reserved rows of the owner, of the same family: of commands that died or
	// were slower. They are taken back once the VM names Entry.
	Lost []Entry
	Err  error
}

// maxRounds is how often a claim is decided anew: with back-off, about 20 seconds of never being
// the faster one.
const maxRounds = 128

// claiming is a claim on its way.
type claiming struct {
	Claim
	out *Claimed
	// pool is the claim's pool, as read in this round.
	pool *poolObject
	rows []Entry
	// found are rows of the owner that stood in a block without the owner's label, or were
	// written after the rows were listed; by block.
	found map[string][]Entry
	// seen are the answers of Usable.
	seen map[netip.Addr]string
	// tries is how often the claim met another writer; quick is set where it only lost the race for a
	// free address: the owner's rows and the pool need not be read again for another one.
	tries int
	quick bool
	// call is shared by the claims of one call.
	call *call
	// own is set once a write over another machine's expired row was forbidden: an admission policy
	// leaves those to operators.
	own bool
	plan
}

// call is what the claims of one call share.
type call struct {
	// pools are those that were read after a block, by block, its fence and the pool's name. As long as
	// the block has that fence no change of the pool has come to its check of rows, and one that does
	// meets a conflict.
	pools map[string]*poolObject
}

// plan is what a claim decided to do in this round: take a row that the owner has, or put a new
// one at an address; without an address any will do.
type plan struct {
	take *Entry
	at   netip.Addr
	old  *Entry
	lost []Entry
}

// Standing finds the row that the claim would go on with among an owner's rows, by the pool's
// specification: where the VM names it already, the claim has nothing to write. The result has
// no Entry where the owner needs a new row.
func (c Claim) Standing(rows []Entry, pool Pool) (Claimed, error) {
	p, err := c.decide(rows, func(e Entry) bool { return e.Network == pool.Network && pool.Contains(e.Addr) })
	if err != nil || p.take == nil {
		return Claimed{}, err
	}
	return Claimed{Entry: *p.take, Old: p.old, Lost: p.lost}, nil
}

func (c *claiming) fail(err error) { c.out.Err = err }

// Claim gives owners addresses: the one that an owner has, the one it wants or the next free one.
// Its row is then reserved under the claim's op. However many claims run at once, here or in
// other processes, an address gets one owner. Claims of one call that fall into one block are
// one write. The result has the order of the claims.
func (s *Store) Claim(ctx context.Context, claims ...Claim) []Claimed {
	out := make([]Claimed, len(claims))
	todo := make([]*claiming, len(claims))
	shared := &call{pools: map[string]*poolObject{}}
	for i, c := range claims {
		todo[i] = &claiming{Claim: c, call: shared, out: &out[i], seen: map[netip.Addr]string{}, found: map[string][]Entry{}}
	}
	for round := 0; len(todo) > 0; round++ {
		todo = s.claimRound(ctx, todo)
		if len(todo) == 0 {
			break
		}
		for _, c := range todo {
			c.tries++
		}
		if round == maxRounds || !Pause(ctx, round) {
			err := context.Cause(ctx)
			if err == nil {
				err = ErrChanged
			}
			for _, c := range todo {
				c.fail(fmt.Errorf("gave up after %d conflicts with other writers: %w", round+1, err))
			}
			break
		}
	}
	return out
}

// claimRound tries every claim once and returns those that met another writer.
func (s *Store) claimRound(ctx context.Context, todo []*claiming) (again []*claiming) {
	s.readRows(ctx, todo)
	pools := map[string]*poolObject{}
	at := map[string][]*claiming{}
	any := map[string][]*claiming{}
	for _, c := range todo {
		if c.out.Err != nil {
			continue
		}
		switch {
		case c.quick && c.tries%rereadEvery != 0:
		case c.Read != nil && c.tries == 0:
			c.pool = &poolObject{spec: c.Read.Pool}
		case pools[c.Pool] == nil:
			p, err := s.pool(ctx, c.Pool)
			if err != nil {
				c.fail(err)
				continue
			}
			pools[c.Pool] = p
			fallthrough
		default:
			c.pool = pools[c.Pool]
		}
		if err := c.decide(); err != nil {
			c.fail(err)
			continue
		}
		switch {
		case c.take != nil:
			key := blockName(c.take.Network, address.BlockOf(c.take.Addr))
			at[key] = append(at[key], c)
		case c.at.IsValid():
			key := blockName(c.pool.spec.Network, address.BlockOf(c.at))
			at[key] = append(at[key], c)
		default:
			key := c.Pool + "/" + c.Family.String()
			any[key] = append(any[key], c)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(at)) {
		again = append(again, s.fill(ctx, at[key])...)
	}
	for _, key := range slices.Sorted(maps.Keys(any)) {
		again = append(again, s.fillAny(ctx, any[key])...)
	}
	return again
}

// rereadEvery is after how many races for free addresses everything is read again.
const rereadEvery = 4

// fewOwners is how many owners are asked for one by one: more are found in one look at all blocks.
const fewOwners = 4

// readRows lists the rows of all owners.
func (s *Store) readRows(ctx context.Context, todo []*claiming) {
	owners := map[string]bool{}
	todo = slices.DeleteFunc(slices.Clone(todo), func(c *claiming) bool {
		switch {
		case c.quick && c.tries%rereadEvery != 0:
			return true
		case c.Read != nil && c.tries == 0:
			c.rows = slices.Clone(c.Read.Rows)
			return true
		}
		owners[c.Owner.Label()] = true
		return false
	})
	type answer struct {
		rows []Entry
		err  error
	}
	answers := map[string]answer{}
	var blocks []*block
	var all error
	if len(owners) > fewOwners {
		blocks, all = s.blocks(ctx, "")
	}
	for _, c := range todo {
		label := c.Owner.Label()
		a, known := answers[label]
		switch {
		case known:
		case len(owners) <= fewOwners:
			a.rows, a.err = s.RowsOf(ctx, c.Owner)
		case all != nil:
			a.err = all
		default:
			a.rows, a.err = ownedIn(c.Owner, blocks)
		}
		answers[label] = a
		c.rows = slices.Clone(a.rows)
		if a.err != nil {
			c.fail(a.err)
		}
	}
}

// fits says whether the pool lets the owner have a row's address.
func (c *claiming) fits(e Entry) bool {
	return e.Network == c.pool.spec.Network && c.pool.check(e.Addr, c.Owner.Namespace, false) == nil
}

// decide chooses the row that the owner may simply go on with, or that it needs a new one.
func (c *claiming) decide() error {
	c.plan = plan{}
	rows := c.rows
	for _, found := range c.found {
		for _, e := range found {
			if !slices.ContainsFunc(rows, func(x Entry) bool { return x.Key == e.Key }) {
				rows = append(rows, e)
			}
		}
	}
	var err error
	c.plan, err = c.Claim.decide(rows, c.fits)
	return err
}

// decide is pure. In the order of their weight an owner's rows are: the one that the VM names, one
// that replaces it, reserved ones, those being released, those that cool down; the lowest address
// first. fits says whether the claim's pool allows an address.
func (c Claim) decide(rows []Entry, fits func(Entry) bool) (plan, error) {
	var mine []Entry
	for _, e := range rows {
		r := e.Row
		switch {
		case e.Family() != c.Family:
		case r.State == Leaving && (!c.Replace || e.Addr != c.Wanted):
			if c.Replace {
				return plan{}, &MovingError{c.Owner, e}
			}
		case r.State == Held && !fits(e):
			// It cools down in a pool that is not asked, or that is gone.
		case r.UID != "" && r.UID != c.Owner.UID && !c.Adopt:
			if r.State != Held {
				return plan{}, &OlderUIDError{c.Owner, e}
			}
		default:
			mine = append(mine, e)
		}
	}
	slices.SortStableFunc(mine, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(c.weight(a), c.weight(b)), a.Addr.Compare(b.Addr))
	})
	if len(mine) == 0 {
		return plan{at: c.Wanted}, nil
	}
	current := mine[0]
	var p plan
	for i := range mine {
		e := &mine[i]
		switch {
		case c.Wanted.IsValid() && e.Addr == c.Wanted:
			p.take = e
		case !c.Wanted.IsValid() && e.Row.State == Reserved && c.names(current) && e.Row.Replaces == current.Addr.String():
			p.take = e // a replacement that died half-way goes forward
		}
	}
	switch {
	case p.take != nil && (p.take.Addr == current.Addr || c.mayPass(*p.take, current)):
	case p.take == nil && !c.Wanted.IsValid() && !c.Replace && fits(current):
		p.take = &current
	case p.take == nil && (current.Row.State == Held || c.Replace && current.Row.State == Reserved):
		p.at = c.Wanted
	default:
		want := c.Wanted.String()
		if !c.Wanted.IsValid() {
			want = "one of pool " + c.Pool
		}
		return plan{}, &OtherAddressError{c.Owner, current, want}
	}
	p.sort(c, mine, current)
	return p, nil
}

// mayPass says whether a row other than the one that counts may become the owner's address.
func (c Claim) mayPass(e, current Entry) bool {
	switch {
	case c.Replace || current.Row.State == Held:
		return true
	case c.names(current):
		return e.Row.State == Reserved && e.Row.Replaces == current.Addr.String()
	}
	return e.Row.State == Reserved // of two that the VM does not name, the one that was asked for
}

// sort tells the row that the owner moves away from and those that lost a race from one another.
func (p *plan) sort(c Claim, mine []Entry, current Entry) {
	for i := range mine {
		e := &mine[i]
		switch {
		case e.Row.State != Reserved || p.take != nil && e.Addr == p.take.Addr:
		case p.take != nil && p.take.Row.Replaces == e.Addr.String(), c.Replace && e.Addr == current.Addr:
			p.old = e
		default:
			p.lost = append(p.lost, *e)
		}
	}
}

// names says whether the row is the one that the VM names.
func (c Claim) names(e Entry) bool { return e.Row.State == Reserved && e.Addr == c.Named }

func (c Claim) weight(e Entry) int {
	switch {
	case c.names(e):
		return 0
	case e.Row.State == Reserved:
		return 1
	case e.Row.State == Releasing || e.Row.State == Leaving:
		return 2
	}
	return 3
}

// row is what the claim writes at an address; was is the owner's own row that stands there.
func (c *claiming) row(now time.Time, was Row) Row {
	row := Row{Since: now}
	if c.take != nil {
		row = was
		row.Until = time.Time{}
		if was.State != Reserved {
			row.Since, row.Replaces = now, ""
		}
	}
	row.VM, row.UID, row.Interface, row.State, row.Op = c.Owner.VM(), c.Owner.UID, c.Owner.Interface, Reserved, c.Op
	if c.MAC != "" {
		row.MAC = c.MAC
	}
	if c.old != nil {
		row.Replaces = c.old.Addr.String()
	}
	return row
}

// look notes the owner's rows in a block that was just read and says whether they leave the
// decision as it was. A row that another process has written since the rows were listed is found
// here, and one whose label is gone.
func (c *claiming) look(b *block) bool {
	c.found[b.cm.Name] = b.rowsOf(c.Owner)
	before := c.plan
	for i := range c.rows {
		// What the block says now is newer than what the list said.
		if e := &c.rows[i]; strings.HasPrefix(e.Key, b.cm.Name+"/") {
			now, ok := b.entry(e.Addr)
			if !ok || now.Err != nil || !now.Row.same(e.Row) {
				return false
			}
		}
	}
	if err := c.decide(); err != nil {
		c.fail(err)
		return true
	}
	if (c.take == nil) != (before.take == nil) || c.at != before.at {
		return c.take != nil && address.BlockOf(c.take.Addr) == b.prefix && c.take.Network == b.network
	}
	return c.take == nil || c.take.Key == before.take.Key
}

// fill writes claims on given addresses of one block.
func (s *Store) fill(ctx context.Context, items []*claiming) (again []*claiming) {
	first := items[0]
	network, a := first.pool.spec.Network, first.at
	if first.take != nil {
		network, a = first.take.Network, first.take.Addr
	}
	b, err := s.blockToFill(ctx, first, network, address.BlockOf(a))
	if errors.Is(err, ErrChanged) {
		return items
	}
	if err != nil {
		for _, c := range items {
			c.fail(err)
		}
		return nil
	}
	var put []*claiming
	for _, c := range items {
		if !c.look(b) {
			c.quick = false
			again = append(again, c)
			continue
		}
		if c.out.Err != nil {
			continue
		}
		if c.take != nil {
			c.at = c.take.Addr
		} else if err := s.free(ctx, c, b); err != nil {
			c.fail(err)
			continue
		}
		put = append(put, c)
	}
	return append(again, s.commit(ctx, b, put, false)...)
}

// free says why a claim can't have the address that it wants.
func (s *Store) free(ctx context.Context, c *claiming, b *block) error {
	if err := c.pool.check(c.at, c.Owner.Namespace, false); err != nil {
		return err
	}
	if e, ok := b.entry(c.at); ok {
		free, err := s.expired(ctx, c, e)
		if err != nil {
			return err
		}
		if !free {
			return &TakenError{c.at, e, c.own && e.Err == nil && e.Row.State == Held && e.Row.Until.Before(s.Clock.Now())}
		}
	}
	by, err := c.usable(ctx, c.at)
	if err == nil && by != "" {
		err = &InUseError{c.at, by}
	}
	return err
}

// usable asks the cluster once for each address.
func (c *claiming) usable(ctx context.Context, a netip.Addr) (string, error) {
	by, known := c.seen[a]
	if known || c.Usable == nil {
		return by, nil
	}
	by, err := c.Usable(ctx, a)
	if err == nil {
		c.seen[a] = by
	}
	return by, err
}

// blockToFill reads a block, or makes one that is missing.
func (s *Store) blockToFill(ctx context.Context, c *claiming, network string, prefix netip.Prefix) (*block, error) {
	b, err := s.block(ctx, network, prefix)
	if err != nil || b != nil {
		return b, err
	}
	b = newBlock(network, prefix)
	space, err := c.pool.spec.Space()
	if err != nil {
		return nil, err
	}
	if c.Preview || s.DryRun || slices.Contains(c.pool.spec.open(space, c.Family), prefix) || c.pool.check(c.at, c.Owner.Namespace, false) != nil {
		return b, nil
	}
	// Outside the open range a pool change does not create the block. So it has to be there
	// before the pool is read, or the change would fence nothing.
	if err := s.save(ctx, b); err != nil {
		return nil, err
	}
	return nil, ErrChanged
}

// fillAny gives claims on one pool and family the lowest free addresses of the open blocks.
func (s *Store) fillAny(ctx context.Context, items []*claiming) (again []*claiming) {
	pool, family := items[0].pool, items[0].Family
	fail := func(err error) {
		for _, c := range items {
			c.fail(err)
		}
	}
	space, err := pool.spec.Space()
	if err != nil {
		fail(err)
		return nil
	}
	items = slices.DeleteFunc(items, func(c *claiming) bool {
		if why := pool.spec.Serves(c.Owner.Namespace); why != "" {
			c.fail(errors.New(why))
		}
		return c.out.Err != nil
	})
	if len(items) == 0 {
		return nil
	}
	open := pool.spec.open(space, family)
	if len(open) == 0 {
		fail(&PoolFullError{pool.spec.Name, family})
		return nil
	}
	// Owners begin at different blocks, so that many writers at once seldom meet in one object;
	// a batch fills block after block.
	first := 0
	if len(items) == 1 {
		sum := sha256.Sum256([]byte(items[0].Owner.VM() + "/" + items[0].Owner.Interface))
		first = int(binary.BigEndian.Uint32(sum[:]) % uint32(len(open)))
	}
	for i := 0; i < len(open) && len(items) > 0; i++ {
		at := (first + i) % len(open)
		b, err := s.block(ctx, pool.spec.Network, open[at])
		if err != nil {
			fail(err)
			return again
		}
		if b == nil {
			b = newBlock(pool.spec.Network, open[at])
		}
		put, changed, rest := s.choose(ctx, items, space, b)
		again, items = append(again, changed...), rest
		lost := s.commit(ctx, b, put, true)
		again = append(again, lost...)
		if len(put) > 0 && len(lost) == 0 && at == len(open)-1 && !put[0].Preview && !s.DryRun && nearlyFull(space, b) {
			// Best effort: the one who finds no address opens the next block in any case.
			_ = s.openNext(ctx, put[0].Pool, family, len(open), 1)
		}
	}
	if len(items) == 0 {
		return again
	}
	if items[0].Preview || s.DryRun {
		fail(&PoolFullError{pool.spec.Name, family})
		return again
	}
	if err := s.openNext(ctx, pool.spec.Name, family, len(open), len(items)); err != nil {
		fail(err)
		return again
	}
	for _, c := range items {
		c.quick = false // the pool has changed
	}
	return append(again, items...)
}

// choose finds addresses of a block for claims: in put those that have one, in changed those that
// have to decide anew, in rest those for which the block has none.
func (s *Store) choose(ctx context.Context, items []*claiming, space *address.Space, b *block) (put, changed, rest []*claiming) {
	given := map[netip.Addr]bool{}
	for _, c := range items {
		if !c.look(b) {
			c.quick = false
			changed = append(changed, c)
			continue
		}
		if c.out.Err != nil {
			continue
		}
		if c.take != nil {
			c.at = c.take.Addr
			put = append(put, c)
			continue
		}
		a, err := s.lowest(ctx, c, space, b, given)
		switch {
		case err != nil:
			c.fail(err)
		case !a.IsValid():
			rest = append(rest, c)
		default:
			c.at, given[a] = a, true
			put = append(put, c)
		}
	}
	return put, changed, rest
}

// lowest finds an address of a block that nobody claims: the lowest one without a row, then the
// lowest whose cool-down is over. Whoever has met another writer begins a little higher, at random:
// many at once would meet at the lowest again and again.
func (s *Store) lowest(ctx context.Context, c *claiming, space *address.Space, b *block, given map[netip.Addr]bool) (netip.Addr, error) {
	var free, held []netip.Addr
	for a := range space.InBlock(b.prefix) {
		_, ok := b.entry(a)
		// The block's addresses are the specification's; only an announced change can refuse one.
		if given[a] || c.pool.pending != nil && c.pool.check(a, c.Owner.Namespace, true) != nil {
			continue
		}
		if ok {
			held = append(held, a)
		} else {
			free = append(free, a)
		}
	}
	if n := min(len(free), 1<<min(2*c.tries, 8)); n > 1 {
		from := rand.N(n)
		free = append(free[from:], free[:from]...)
	}
	for _, a := range append(free, held...) {
		if e, ok := b.entry(a); ok {
			free, err := s.expired(ctx, c, e)
			if err != nil {
				return netip.Addr{}, err
			}
			if !free {
				continue
			}
		}
		by, err := c.usable(ctx, a)
		if err != nil {
			return netip.Addr{}, err
		}
		if by == "" {
			return a, nil
		}
	}
	return netip.Addr{}, nil
}

// commit writes the rows of one block. Pools and registry are read after the block was: a change
// of either in between has fenced the block, and the write meets a conflict.
func (s *Store) commit(ctx context.Context, b *block, put []*claiming, automatic bool) (again []*claiming) {
	pools := map[string]error{}
	now := map[string]*poolObject{}
	var rows []*claiming
	put, again = s.together(put)
	reused := false
	before, labels, hadData := map[string]string{}, maps.Clone(b.cm.Labels), b.cm.Data != nil
	for _, c := range put {
		was, had := b.entry(c.at)
		reused = reused || had && !was.Row.Names(c.Owner)
		if c.take == nil || was.Row.State != Reserved {
			if _, known := pools[c.Pool]; !known {
				now[c.Pool], pools[c.Pool] = s.registered(ctx, c, b)
			}
			err := pools[c.Pool]
			if err == nil {
				err = now[c.Pool].check(c.at, c.Owner.Namespace, automatic && c.take == nil)
				if err != nil && (automatic || c.take != nil) {
					c.quick = false
					again = append(again, c) // the pool changed while we chose
					continue
				}
			}
			if err != nil {
				c.fail(err)
				continue
			}
		}
		c.out.Fresh, c.out.New = !had || was.Row.State != Reserved, c.take == nil
		row := c.row(s.Clock.Now(), was.Row)
		if err := b.put(c.at, &row); err != nil {
			c.fail(err)
			continue
		}
		before[address.Key(c.at)] = was.Raw
		rows = append(rows, c)
	}
	if len(rows) == 0 {
		return again
	}
	if !rows[0].Preview {
		err := s.saveRows(ctx, b, before, labels, hadData)
		if errors.Is(err, ErrChanged) || apierrors.IsForbidden(err) && s.lessAtOnce(rows, reused) {
			for _, c := range rows {
				c.quick = automatic && c.take == nil
			}
			return append(again, rows...)
		}
		if err != nil {
			for _, c := range rows {
				c.fail(err)
			}
			return again
		}
	}
	for _, c := range rows {
		c.out.Entry, _ = b.entry(c.at)
		c.out.Old, c.out.Lost = c.old, c.lost
	}
	return again
}

// together leaves out claims that may not be written together with the first one: an admission
// policy lets a tenant change the rows of one namespace in a write.
func (s *Store) together(put []*claiming) (now, later []*claiming) {
	if !s.apart.Load() {
		return put, nil
	}
	for _, c := range put {
		if c.Owner.Namespace == put[0].Owner.Namespace {
			now = append(now, c)
		} else {
			later = append(later, c)
		}
	}
	return now, later
}

// lessAtOnce says whether a write that was forbidden asked for more than it had to: rows of several
// namespaces at once, or another machine's expired row. The next try asks for less.
func (s *Store) lessAtOnce(rows []*claiming, reused bool) bool {
	if slices.ContainsFunc(rows, func(c *claiming) bool { return c.Owner.Namespace != rows[0].Owner.Namespace }) {
		s.apart.Store(true)
		return true
	}
	less := false
	for _, c := range rows {
		less = less || reused && !c.own
		c.own = true
	}
	return less
}

// registered reads the pool of a claim together with its entry in the network's registry, after the
// block was read.
func (s *Store) registered(ctx context.Context, c *claiming, b *block) (*poolObject, error) {
	key := b.cm.Name + " " + b.cm.Annotations[AnnotationFence] + " " + c.Pool
	if known := c.call.pools[key]; known != nil && c.quick && c.tries%rereadEvery != 0 {
		return known, nil
	}
	pool, err := s.registeredNow(ctx, c.Pool, b.network)
	if err == nil {
		c.call.pools[key] = pool
	}
	return pool, err
}

func (s *Store) registeredNow(ctx context.Context, name, network string) (*poolObject, error) {
	pool, err := s.pool(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := writable(pool.cm); err != nil {
		return nil, err
	}
	cm, err := s.get(ctx, networkName(network))
	if err != nil {
		return nil, err
	}
	registry, err := parseNetwork(cm)
	if err != nil {
		return nil, err
	}
	if entry := registry.Pools[name]; pool.spec.Network != network || !covers(entry, pool.spec.CIDRs) {
		return nil, fmt.Errorf("pool %s is not registered in network %s: an interrupted command left it; repeat `pool add %s` or `pool remove %s`", name, network, name, name)
	}
	return pool, nil
}

// expired says whether a row stands in nobody's way: a cool-down that is over and whose last owner
// is proven not to use the address, or a claim that the owner itself was seen to have.
func (s *Store) expired(ctx context.Context, c *claiming, e Entry) (bool, error) {
	if e.Err == nil && e.Row.State == Foreign && e.Row.VM == c.Owner.VM() {
		// What a scan has seen of the owner itself. An admission policy leaves such rows to operators.
		return !c.own, nil
	}
	if e.Err != nil || e.Row.State != Held || !e.Row.Until.Before(s.Clock.Now()) || c.Gone == nil {
		return false, nil
	}
	if c.own && e.Row.Owner().Namespace != c.Owner.Namespace {
		return false, nil
	}
	return c.Gone(ctx, e)
}

func nearlyFull(space *address.Space, b *block) bool {
	all, taken := 0, 0
	for a := range space.InBlock(b.prefix) {
		all++
		if _, ok := b.cm.Data[address.Key(a)]; ok {
			taken++
		}
	}
	return taken*4 >= all*3
}

// covers says whether a registry entry has all CIDRs of a pool.
func covers(entry, cidrs []string) bool {
	return !slices.ContainsFunc(cidrs, func(c string) bool { return !slices.Contains(entry, c) })
}

// openNext lets automatic choice use more than `open` blocks of a family: as many as hold `need`
// addresses. Where somebody has opened one meanwhile it changes nothing.
func (s *Store) openNext(ctx context.Context, pool string, family address.Family, open, need int) error {
	return s.updatePool(ctx, pool, func(p *poolObject) error {
		space, err := p.spec.Space()
		if err != nil {
			return err
		}
		if len(p.spec.open(space, family)) > open {
			return nil
		}
		n := 0
		for b := range space.Blocks(family) {
			if n++; n <= open {
				continue
			}
			p.spec.OpenBlocks = n
			for range space.InBlock(b) {
				need--
			}
			if need <= 0 {
				return nil
			}
		}
		if n <= open {
			return &PoolFullError{pool, family}
		}
		return nil
	})
}
