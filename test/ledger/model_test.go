package ledger

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// The model of the ledger that recorded histories are checked against: one pool of a few
// addresses, a few machines of one interface. What it says of an acknowledged operation is strict:
// an address that was given out had no other owner, what was acknowledged is there later, an
// address that was excluded is not given out. A refusal because an address is taken, or the pool
// full, or that the machine has another one, is always allowed: a writer that loses a race has an
// address for a moment of which nobody is told. Cool-downs end at once: time goes on by minutes with every look at the clock.
const (
	addresses = 8
	machines  = 5
)

type opKind byte

const (
	opReserve   opKind = iota // any address
	opReserveIP               // a given one
	opReplace                 // another given one
	opRelease
	opExclude // from the pool, by a mask of addresses
)

var opNames = []string{"reserve", "reserve --ip", "replace", "release", "pool set --exclude"}

type input struct {
	id      int
	kind    opKind
	machine int
	address int // 1..addresses; 0 is none
	mask    uint16
}

type answer byte

const (
	done    answer = iota
	no             // taken, full, moving, another address: always allowed
	none           // no reservation to release
	unknown        // died, or outcome unknown: applied, in part or not at all
)

type output struct {
	answer  answer
	address int
	why     string // for people
}

type rowState byte

const (
	free rowState = iota
	isReserved
	isHeld
)

// state is comparable, so that the checker can tell where it has been.
type state struct {
	row   [addresses + 1]rowState
	owner [addresses + 1]int8
	// named is what the machine goes by; pending a replacement that died between its writes.
	named, pending [machines]int8
	excluded       uint16
	// announced is an exclusion that died half-way: the next command that changes the pool, or meets
	// it, ends it one way or the other.
	announced   uint16
	isAnnounced bool
}

// resolved are the states that the end of an announced change, at any time, may lead to.
func (s state) resolved() []state {
	if !s.isAnnounced {
		return []state{s}
	}
	withdrawn := s
	withdrawn.announced, withdrawn.isAnnounced = 0, false
	all := []state{s, withdrawn}
	if s.allows(s.announced) {
		done := withdrawn
		done.excluded = s.announced
		all = append(all, done)
	}
	return all
}

// allows says whether the addresses of a mask may be excluded.
func (s *state) allows(mask uint16) bool {
	for a := 1; a <= addresses; a++ {
		if mask&(1<<a) != 0 && s.row[a] != free {
			return false
		}
	}
	return true
}

// takable says whether a machine may get the address.
func (s *state) takable(a int) bool {
	return (s.excluded|s.announced)&(1<<a) == 0 && s.row[a] != isReserved
}

func (s state) give(m, a int) state {
	s.row[a], s.owner[a], s.named[m] = isReserved, int8(m), int8(a)
	return s
}

func (s state) set(a int, r rowState) state {
	s.row[a] = r
	return s
}

// step returns the states that an operation with that answer may lead to; none where it is impossible.
func step(s state, in input, out output) []state {
	if out.answer == no {
		return []state{s}
	}
	m, cur, pending := in.machine, int(s.named[in.machine]), int(s.pending[in.machine])
	switch in.kind {
	case opReserve, opReserveIP:
		return stepReserve(s, in, out, m, cur, pending)
	case opReplace:
		return stepReplace(s, in, out, m, cur, pending)
	case opRelease:
		if out.answer == none {
			return when(cur == 0 && pending == 0, s)
		}
		next := s
		next.named[m], next.pending[m] = 0, 0
		for _, a := range []int{cur, pending} {
			if a != 0 {
				next = next.set(a, isHeld)
			}
		}
		if out.answer == unknown {
			return []state{s, next}
		}
		// Acknowledged as unchanged where the addresses cool down already.
		return []state{next}
	case opExclude:
		next := s
		next.excluded, next.announced, next.isAnnounced = in.mask, 0, false
		if out.answer != unknown {
			return when(s.allows(in.mask), next)
		}
		half := s
		half.announced, half.isAnnounced = in.mask, true
		if s.allows(in.mask) {
			return []state{s, half, next}
		}
		return []state{s, half}
	}
	return nil
}

func when(possible bool, s state) []state {
	if possible {
		return []state{s}
	}
	return nil
}

func stepReserve(s state, in input, out output, m, cur, pending int) []state {
	if out.answer == unknown {
		next := []state{s}
		for a := 1; a <= addresses; a++ {
			if in.kind == opReserveIP && a != in.address {
				continue
			}
			if cur == 0 && s.takable(a) {
				next = append(next, s.give(m, a))
			}
		}
		if pending != 0 {
			next = append(next, s.complete(m, cur, pending))
		}
		return next
	}
	a := out.address
	switch {
	case in.kind == opReserveIP && a != in.address:
		return nil // another address than the one that was asked for
	case cur == 0:
		return when(s.takable(a), s.give(m, a))
	case pending != 0 && a == pending:
		return []state{s.complete(m, cur, pending)}
	case pending != 0 && a == cur && in.kind == opReserveIP:
		next := s.set(pending, isHeld)
		next.pending[m] = 0
		return []state{next}
	}
	return when(a == cur && (pending == 0), s)
}

// complete ends a replacement that died.
func (s state) complete(m, cur, pending int) state {
	s = s.set(cur, isHeld)
	s.named[m], s.pending[m] = int8(pending), 0
	return s
}

func stepReplace(s state, in input, out output, m, cur, pending int) []state {
	a := in.address
	possible := a == pending || s.takable(a)
	move := func() state {
		next := s
		if pending != 0 && pending != a {
			next = next.set(pending, isHeld)
		}
		next.pending[m] = 0
		next = next.give(m, a)
		if cur != 0 && cur != a {
			next = next.set(cur, isHeld)
		}
		return next
	}
	if out.answer == unknown {
		next := []state{s}
		if a != cur && possible {
			next = append(next, move())
			if cur != 0 {
				half := s
				if pending != 0 && pending != a {
					half = half.set(pending, isHeld)
				}
				half.row[a], half.owner[a], half.pending[m] = isReserved, int8(m), int8(a)
				next = append(next, half)
			}
		}
		return next
	}
	if out.address != a {
		return nil
	}
	if a == cur {
		next := s
		if pending != 0 {
			next = next.set(pending, isHeld)
			next.pending[m] = 0
		}
		return []state{next}
	}
	return when(possible, move())
}

var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{}} },
	Step: func(st, in, out any) (next []any) {
		for _, s := range st.(state).resolved() {
			for _, s := range step(s, in.(input), out.(output)) {
				next = append(next, s)
			}
		}
		return next
	},
	Equal: func(a, b any) bool { return a.(state) == b.(state) },
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		return fmt.Sprintf("%s m%d a%d mask %b -> %d a%d %s", opNames[i.kind], i.machine, i.address, i.mask, o.answer, o.address, o.why)
	},
}).ToModel()
