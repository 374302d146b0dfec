package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// ForeignClaim is an address of a pool that something has, or asks for, without a reservation.
type ForeignClaim struct {
	Network string
	Addr    netip.Addr
	// By is the claimant: "namespace/name" of a virtual machine, which may still reserve the address,
	// or the kind and name of anything else ("node n1", "pod a/b").
	By string
	// Reason says what of the claimant shows the address.
	Reason string
}

// Record writes rows of state foreign for claims on addresses that have no row, and corrects those
// of another claimant; a row of another state stands. It returns the rows that it has written.
func (s *Store) Record(ctx context.Context, claims []ForeignClaim) (written []Entry, err error) {
	type key struct {
		network string
		block   netip.Prefix
	}
	by := map[key][]ForeignClaim{}
	for _, c := range claims {
		k := key{c.Network, address.BlockOf(c.Addr)}
		by[k] = append(by[k], c)
	}
	keys := make([]key, 0, len(by))
	for k := range by {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(strings.Compare(a.network, b.network), a.block.Addr().Compare(b.block.Addr()))
	})
	for _, k := range keys {
		var rows []Entry
		if e := s.retry(ctx, func() error {
			rows, err = s.record(ctx, k.network, k.block, by[k])
			return err
		}); e != nil {
			return written, fmt.Errorf("claims of others in %s of network %s: %w", k.block, k.network, e)
		}
		written = append(written, rows...)
	}
	return written, nil
}

// record writes the claims of one block.
func (s *Store) record(ctx context.Context, network string, prefix netip.Prefix, claims []ForeignClaim) (rows []Entry, err error) {
	b, err := s.block(ctx, network, prefix)
	if err != nil {
		return nil, err
	}
	if b == nil {
		b = newBlock(network, prefix)
	}
	for _, c := range claims {
		row := Row{VM: c.By, State: Foreign, Op: NewOp(), Since: s.Clock.Now(), Reason: c.Reason}
		if was, ok := b.entry(c.Addr); ok {
			if was.Err != nil || was.Row.State != Foreign || was.Row.VM == c.By && was.Row.Reason == c.Reason {
				continue
			}
			row.Since = was.Row.Since
		}
		if err := b.put(c.Addr, &row); err != nil {
			return nil, err
		}
		e, _ := b.entry(c.Addr)
		rows = append(rows, e)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	return rows, s.save(ctx, b)
}

// Forget frees rows of state foreign that nobody claims any more. A row that has changed meanwhile
// stays as it is. It returns those that are free now.
func (s *Store) Forget(ctx context.Context, rows []Entry) (freed []Entry, err error) {
	type key struct {
		network string
		block   netip.Prefix
	}
	by := map[key][]*change{}
	for _, e := range rows {
		if e.Err != nil || e.Row.State != Foreign {
			return nil, fmt.Errorf("%s is no claim of others", e)
		}
		k := key{e.Network, address.BlockOf(e.Addr)}
		by[k] = append(by[k], &change{from: e})
	}
	for k, batch := range by {
		s.transit(ctx, k.network, k.block, batch)
		for _, c := range batch {
			switch {
			case c.err == nil:
				freed = append(freed, c.from)
			case !IsChanged(c.err):
				err = errors.Join(err, c.err)
			}
		}
	}
	slices.SortFunc(freed, compareEntries)
	return freed, err
}
