package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// Claim is a request for one address of one family.
type Claim struct {
	Owner Owner
	Pool  string
	// PoolChosen is set where the user named the pool: a row of another pool is then refused.
	PoolChosen bool
	Family     address.Family
	// Wanted is the address asked for; the zero Addr lets the ledger choose.
	Wanted netip.Addr
	MAC    string
	Op     string
	// Usable asks the cluster whether something that is not the owner has the address, and
	// says what; "" where nothing is seen.
	Usable func(context.Context, netip.Addr) (string, error)
	// Gone proves that the owner of a held row no longer uses the address.
	Gone func(context.Context, Entry) (bool, error)
	// Preview chooses without writing.
	Preview bool
}

// TakenError is a claim on an address that has a row of somebody else.
type TakenError struct {
	Addr  netip.Addr
	Entry Entry
}

func (e *TakenError) Error() string {
	r := e.Entry.Row
	switch {
	case e.Entry.Err != nil:
		return fmt.Sprintf("address %s has a row that can't be read (%v) and counts as taken: repair or remove %s", e.Addr, e.Entry.Err, e.Entry.Key)
	case r.State == Held:
		return fmt.Sprintf("address %s was released by %s and cools down until %s: choose another one or wait", e.Addr, r.VM, r.Until.UTC().Format(time.RFC3339))
	case r.State == Foreign:
		return fmt.Sprintf("address %s is claimed by %s (%s)", e.Addr, r.VM, r.Reason)
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
	return fmt.Sprintf("virtualmachine %s already has %s on interface %s (%s), not %s: release it first", e.Owner.VM(), e.Have.Addr, e.Owner.Interface, e.Have.Row.State, e.Want)
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

// Claim gives the owner an address: the one it has, the one it wants or the next free one. The
// row is then reserved under the claim's op. However many claims run at once, an address gets
// one owner.
func (s *Store) Claim(ctx context.Context, c Claim) (Entry, error) {
	seen := map[netip.Addr]string{}
	usable := func(ctx context.Context, a netip.Addr) (string, error) {
		by, known := seen[a]
		if known || c.Usable == nil {
			return by, nil
		}
		by, err := c.Usable(ctx, a)
		if err == nil {
			seen[a] = by
		}
		return by, err
	}
	var got Entry
	err := s.retry(ctx, func() error {
		rows, err := s.RowsOf(ctx, c.Owner)
		if err != nil {
			return err
		}
		have, err := c.decide(rows)
		if err != nil {
			return err
		}
		if have != nil {
			got, err = s.take(ctx, c, *have)
			return err
		}
		if c.Wanted.IsValid() {
			got, err = s.claimWanted(ctx, c, usable)
		} else {
			got, err = s.claimAny(ctx, c, usable)
		}
		return err
	})
	return got, err
}

// decide finds the row that the owner may simply go on with; nil where it needs a new one.
func (c Claim) decide(rows []Entry) (*Entry, error) {
	var have *Entry
	for i := range rows {
		e := &rows[i]
		r := e.Row
		switch {
		case e.Family() != c.Family || r.State == Leaving:
			continue
		case r.UID != "" && r.UID != c.Owner.UID:
			if r.State == Held {
				continue // cools down for a machine that is gone
			}
			return nil, &OlderUIDError{c.Owner, *e}
		case c.Wanted.IsValid() && e.Addr != c.Wanted:
			if r.State == Held {
				continue
			}
			return nil, &OtherAddressError{c.Owner, *e, c.Wanted.String()}
		case have == nil || have.Row.State != Reserved && (r.State == Reserved || have.Row.State == Held):
			have = e
		}
	}
	return have, nil
}

// take makes a row that the owner has, or had, reserved under the claim's op.
func (s *Store) take(ctx context.Context, c Claim, e Entry) (Entry, error) {
	pool, err := s.pool(ctx, c.Pool)
	if err != nil {
		return Entry{}, err
	}
	if c.PoolChosen && (e.Network != pool.spec.Network || !pool.spec.Contains(e.Addr)) {
		return Entry{}, &OtherAddressError{c.Owner, e, "one of pool " + c.Pool}
	}
	row := e.Row
	row.UID, row.State, row.Op, row.Until = c.Owner.UID, Reserved, c.Op, time.Time{}
	if c.MAC != "" {
		row.MAC = c.MAC
	}
	if e.Row.State != Reserved {
		row.Since = s.Clock.Now()
	}
	if !c.Preview {
		if err := s.Transition(ctx, e, &row); IsChanged(err) {
			return Entry{}, ErrChanged
		} else if err != nil {
			return Entry{}, err
		}
	}
	e.Row = row
	return e, nil
}

func (c Claim) row(now time.Time) Row {
	return Row{VM: c.Owner.VM(), UID: c.Owner.UID, Interface: c.Owner.Interface, MAC: c.MAC, State: Reserved, Op: c.Op, Since: now}
}

func (s *Store) claimWanted(ctx context.Context, c Claim, usable func(context.Context, netip.Addr) (string, error)) (Entry, error) {
	before, err := s.pool(ctx, c.Pool)
	if err != nil {
		return Entry{}, err
	}
	if err := before.check(c.Wanted, c.Owner.Namespace, false); err != nil {
		return Entry{}, err
	}
	prefix := address.BlockOf(c.Wanted)
	b, err := s.block(ctx, before.spec.Network, prefix)
	if err != nil {
		return Entry{}, err
	}
	if b == nil {
		b = newBlock(before.spec.Network, prefix)
		space, err := before.spec.Space()
		if err != nil {
			return Entry{}, err
		}
		if !c.Preview && !s.DryRun && !slices.Contains(before.spec.open(space, c.Family), prefix) {
			// Outside the open range a pool change does not create the block. So it has to be
			// there before the pool is read, or the change would fence nothing.
			if err := s.save(ctx, b); err != nil {
				return Entry{}, err
			}
			return Entry{}, ErrChanged
		}
	}
	if e, ok := b.entry(c.Wanted); ok {
		free, err := s.expired(ctx, c, e)
		if err != nil {
			return Entry{}, err
		}
		if !free {
			return Entry{}, &TakenError{c.Wanted, e}
		}
	}
	by, err := usable(ctx, c.Wanted)
	if err != nil {
		return Entry{}, err
	}
	if by != "" {
		return Entry{}, &InUseError{c.Wanted, by}
	}
	return s.commit(ctx, c, b, c.Wanted, false)
}

func (s *Store) claimAny(ctx context.Context, c Claim, usable func(context.Context, netip.Addr) (string, error)) (Entry, error) {
	before, err := s.pool(ctx, c.Pool)
	if err != nil {
		return Entry{}, err
	}
	if why := before.spec.Serves(c.Owner.Namespace); why != "" {
		return Entry{}, errors.New(why)
	}
	space, err := before.spec.Space()
	if err != nil {
		return Entry{}, err
	}
	open := before.spec.open(space, c.Family)
	if len(open) == 0 {
		return Entry{}, &PoolFullError{c.Pool, c.Family}
	}
	// Owners begin at different blocks, so that many writers at once seldom meet in one object.
	sum := sha256.Sum256([]byte(c.Owner.VM() + "/" + c.Owner.Interface))
	first := int(binary.BigEndian.Uint32(sum[:]) % uint32(len(open)))
	for i := range open {
		at := (first + i) % len(open)
		b, err := s.block(ctx, before.spec.Network, open[at])
		if err != nil {
			return Entry{}, err
		}
		if b == nil {
			b = newBlock(before.spec.Network, open[at])
		}
		a, err := s.lowest(ctx, c, space, b, before, usable)
		if err != nil {
			return Entry{}, err
		}
		if !a.IsValid() {
			continue
		}
		e, err := s.commit(ctx, c, b, a, true)
		if err == nil && at == len(open)-1 && !c.Preview && !s.DryRun && nearlyFull(space, b) {
			// Best effort: the one who finds no address opens the next block in any case.
			_ = s.openNext(ctx, c, len(open))
		}
		return e, err
	}
	if c.Preview || s.DryRun {
		return Entry{}, &PoolFullError{c.Pool, c.Family}
	}
	if err := s.openNext(ctx, c, len(open)); err != nil {
		return Entry{}, err
	}
	return Entry{}, ErrChanged
}

// lowest finds the lowest address of a block that nobody claims: first one without a row, then
// one whose cool-down is over.
func (s *Store) lowest(ctx context.Context, c Claim, space *address.Space, b *block, pool *poolObject, usable func(context.Context, netip.Addr) (string, error)) (netip.Addr, error) {
	for _, reuse := range []bool{false, true} {
		for a := range space.InBlock(b.prefix) {
			e, ok := b.entry(a)
			// The block's addresses are the specification's; only an announced change can refuse one.
			if ok != reuse || pool.pending != nil && pool.check(a, c.Owner.Namespace, true) != nil {
				continue
			}
			if ok {
				free, err := s.expired(ctx, c, e)
				if err != nil {
					return netip.Addr{}, err
				}
				if !free {
					continue
				}
			}
			by, err := usable(ctx, a)
			if err != nil {
				return netip.Addr{}, err
			}
			if by == "" {
				return a, nil
			}
		}
	}
	return netip.Addr{}, nil
}

// commit writes the row. The pool and its registry entry are read after the block was: a change
// of either in between has fenced the block, and the write meets a conflict.
func (s *Store) commit(ctx context.Context, c Claim, b *block, a netip.Addr, automatic bool) (Entry, error) {
	pool, err := s.pool(ctx, c.Pool)
	if err != nil {
		return Entry{}, err
	}
	if err := pool.check(a, c.Owner.Namespace, automatic); err != nil {
		if automatic {
			return Entry{}, ErrChanged // the pool changed while we chose
		}
		return Entry{}, err
	}
	cm, err := s.get(ctx, networkName(b.network))
	if err != nil {
		return Entry{}, err
	}
	registry, err := parseNetwork(cm)
	if err != nil {
		return Entry{}, err
	}
	if _, ok := registry.Pools[c.Pool]; !ok || pool.spec.Network != b.network {
		return Entry{}, fmt.Errorf("pool %s is not registered in network %s: an interrupted command left it; repeat `pool add %s` or `pool remove %s`", c.Pool, b.network, c.Pool, c.Pool)
	}
	row := c.row(s.Clock.Now())
	if err := b.put(a, &row); err != nil {
		return Entry{}, err
	}
	if !c.Preview {
		if err := s.save(ctx, b); err != nil {
			return Entry{}, err
		}
	}
	e, _ := b.entry(a)
	return e, nil
}

// expired says whether a row is a cool-down that is over and whose last owner is proven not to
// use the address.
func (s *Store) expired(ctx context.Context, c Claim, e Entry) (bool, error) {
	if e.Err != nil || e.Row.State != Held || !e.Row.Until.Before(s.Clock.Now()) || c.Gone == nil {
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

// openNext lets automatic choice use one block more than `open`.
func (s *Store) openNext(ctx context.Context, c Claim, open int) error {
	return s.updatePool(ctx, c.Pool, func(p *poolObject) error {
		space, err := p.spec.Space()
		if err != nil {
			return err
		}
		if p.spec.OpenBlocks > open {
			return nil
		}
		p.spec.OpenBlocks = open + 1
		if len(p.spec.open(space, c.Family)) <= open {
			return &PoolFullError{c.Pool, c.Family}
		}
		return nil
	})
}
