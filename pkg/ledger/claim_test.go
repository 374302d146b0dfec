package ledger

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

func TestDecide(t *testing.T) {
	ip := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, n}) }
	row := func(n byte, state State, more ...string) Entry {
		e := Entry{Network: "default", Addr: ip(n), Key: ip(n).String(), Row: Row{VM: "t/db-1", UID: "u-1", Interface: "default", State: state, Op: "op", Until: time.Unix(1, 0)}}
		for _, m := range more {
			switch key, value, _ := strings.Cut(m, "="); key {
			case "uid":
				e.Row.UID = types.UID(value)
			case "replaces":
				e.Row.Replaces = value
			}
		}
		return e
	}
	other := Entry{Network: "default", Addr: netip.MustParseAddr("203.0.113.5"), Key: "203.0.113.5", Row: Row{VM: "t/db-1", UID: "u-1", Interface: "default", State: Held, Op: "op"}}
	otherReserved := other
	otherReserved.Row.State = Reserved
	for _, c := range []struct {
		name    string
		rows    []Entry
		named   byte
		wanted  byte
		replace bool
		adopt   bool
		// take is the address of the row to go on with, at the one for a new row ("any" for any),
		// or the type of the error.
		take, at, old string
		lost          []string
		err           error
	}{
		{name: "nothing yet", at: "any"},
		{name: "nothing yet, one wanted", wanted: 20, at: "198.51.100.20"},
		{name: "its row", rows: []Entry{row(20, Reserved)}, named: 20, take: "198.51.100.20"},
		{name: "its row, wanted", rows: []Entry{row(20, Reserved)}, named: 20, wanted: 20, take: "198.51.100.20"},
		{name: "an interrupted reserve", rows: []Entry{row(20, Reserved)}, take: "198.51.100.20"},
		{name: "another one wanted", rows: []Entry{row(20, Reserved)}, named: 20, wanted: 21, err: &OtherAddressError{}},
		{name: "another one wanted, interrupted", rows: []Entry{row(20, Reserved)}, wanted: 21, err: &OtherAddressError{}},
		{name: "another one wanted, held", rows: []Entry{row(20, Held)}, wanted: 21, at: "198.51.100.21"},
		{name: "another one wanted, releasing", rows: []Entry{row(20, Releasing)}, wanted: 21, err: &OtherAddressError{}},
		{name: "held comes back", rows: []Entry{row(20, Held)}, take: "198.51.100.20"},
		{name: "held of a pool that is not asked", rows: []Entry{other}, at: "any"},
		{name: "reserved in a pool that is not asked", rows: []Entry{otherReserved}, err: &OtherAddressError{}},
		{name: "releasing before held", rows: []Entry{row(20, Held), row(21, Releasing)}, take: "198.51.100.21"},
		{name: "leaving is nobody's", rows: []Entry{row(20, Leaving)}, at: "any"},

		// Several reserved rows: of commands that died, or were slower.
		{name: "the named one counts, not the lowest", rows: []Entry{row(20, Reserved), row(21, Reserved)}, named: 21, take: "198.51.100.21", lost: []string{"198.51.100.20"}},
		{name: "none is named: the lowest", rows: []Entry{row(21, Reserved), row(20, Reserved)}, take: "198.51.100.20", lost: []string{"198.51.100.21"}},
		{name: "none is named: the one wanted", rows: []Entry{row(20, Reserved), row(21, Reserved)}, wanted: 21, take: "198.51.100.21", lost: []string{"198.51.100.20"}},
		{name: "the named one counts, not the one wanted", rows: []Entry{row(20, Reserved), row(21, Reserved)}, named: 20, wanted: 21, err: &OtherAddressError{}},

		// Earlier machines of the name.
		{name: "an earlier machine's", rows: []Entry{row(20, Reserved, "uid=u-0")}, err: &OlderUIDError{}},
		{name: "an earlier machine's, releasing", rows: []Entry{row(20, Releasing, "uid=u-0")}, err: &OlderUIDError{}},
		{name: "an earlier machine's, held", rows: []Entry{row(20, Held, "uid=u-0")}, at: "any"},
		{name: "an earlier machine's, adopted", rows: []Entry{row(20, Reserved, "uid=u-0")}, adopt: true, take: "198.51.100.20"},
		{name: "written before the machine", rows: []Entry{row(20, Reserved, "uid=")}, take: "198.51.100.20"},

		// Replacing.
		{name: "replace", rows: []Entry{row(20, Reserved)}, named: 20, wanted: 21, replace: true, at: "198.51.100.21", old: "198.51.100.20"},
		{name: "replace by any", rows: []Entry{row(20, Reserved)}, named: 20, replace: true, at: "any", old: "198.51.100.20"},
		{name: "replace without an address", replace: true, wanted: 21, at: "198.51.100.21"},
		{name: "replace by itself", rows: []Entry{row(20, Reserved)}, named: 20, wanted: 20, replace: true, take: "198.51.100.20"},
		{name: "replace by an address of its own that cools down", rows: []Entry{row(20, Reserved), row(21, Held)}, named: 20, wanted: 21, replace: true, take: "198.51.100.21", old: "198.51.100.20"},
		{name: "replace died before the patch", rows: []Entry{row(20, Reserved), row(21, Reserved, "replaces=198.51.100.20")}, named: 20, wanted: 21, replace: true, take: "198.51.100.21", old: "198.51.100.20"},
		{name: "any command completes it", rows: []Entry{row(20, Reserved), row(21, Reserved, "replaces=198.51.100.20")}, named: 20, take: "198.51.100.21", old: "198.51.100.20"},
		{name: "replace by any, died before the patch", rows: []Entry{row(20, Reserved), row(21, Reserved, "replaces=198.51.100.20")}, named: 20, replace: true, take: "198.51.100.21", old: "198.51.100.20"},
		{name: "the one that the VM names, in spite of it", rows: []Entry{row(20, Reserved), row(21, Reserved, "replaces=198.51.100.20")}, named: 20, wanted: 20, take: "198.51.100.20", lost: []string{"198.51.100.21"}},
		{name: "a third one instead", rows: []Entry{row(20, Reserved), row(21, Reserved, "replaces=198.51.100.20")}, named: 20, wanted: 22, replace: true, at: "198.51.100.22", old: "198.51.100.20", lost: []string{"198.51.100.21"}},
		{name: "replace died after the patch", rows: []Entry{row(20, Reserved), row(21, Reserved, "replaces=198.51.100.20")}, named: 21, take: "198.51.100.21", old: "198.51.100.20"},
		{name: "replaces what is not named", rows: []Entry{row(20, Reserved), row(21, Reserved, "replaces=198.51.100.9")}, named: 20, take: "198.51.100.20", lost: []string{"198.51.100.21"}},
		{name: "back to the one it leaves", rows: []Entry{row(20, Leaving), row(21, Reserved, "replaces=198.51.100.20")}, named: 21, wanted: 20, replace: true, take: "198.51.100.20", old: "198.51.100.21"},
		{name: "a second replacement too early", rows: []Entry{row(20, Leaving), row(21, Reserved, "replaces=198.51.100.20")}, named: 21, wanted: 22, replace: true, err: &MovingError{}},
		{name: "replace what is being released", rows: []Entry{row(20, Releasing)}, wanted: 21, replace: true, err: &OtherAddressError{}},
	} {
		claim := Claim{Owner: Owner{Namespace: "t", Name: "db-1", UID: "u-1", Interface: "default"}, Pool: "lab", Family: address.IPv4, Replace: c.replace, Adopt: c.adopt}
		if c.named != 0 {
			claim.Named = ip(c.named)
		}
		if c.wanted != 0 {
			claim.Wanted = ip(c.wanted)
		}
		v6 := Entry{Network: "default", Addr: netip.MustParseAddr("2001:db8::1"), Key: "v6", Row: Row{VM: "t/db-1", UID: "u-1", Interface: "default", State: Reserved, Op: "op"}}
		p, err := claim.decide(append(slices.Clone(c.rows), v6), func(e Entry) bool { return e.Addr.As4()[0] == 198 })
		if c.err != nil {
			if err == nil || !sameType(err, c.err) {
				t.Errorf("%s: %v, want a %T", c.name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		text := func(e *Entry) string {
			if e == nil {
				return ""
			}
			return e.Addr.String()
		}
		at := ""
		if p.take == nil {
			if at = "any"; p.at.IsValid() {
				at = p.at.String()
			}
		}
		var lost []string
		for _, e := range p.lost {
			lost = append(lost, e.Addr.String())
		}
		if text(p.take) != c.take || at != c.at || text(p.old) != c.old || !slices.Equal(lost, c.lost) {
			t.Errorf("%s: takes %q, new at %q, leaves %q, lost %v; want %q, %q, %q, %v", c.name, text(p.take), at, text(p.old), lost, c.take, c.at, c.old, c.lost)
		}
	}
}

func sameType(err, want error) bool {
	switch want.(type) {
	case *OtherAddressError:
		return errors.As(err, new(*OtherAddressError))
	case *OlderUIDError:
		return errors.As(err, new(*OlderUIDError))
	case *MovingError:
		return errors.As(err, new(*MovingError))
	}
	return false
}
