package ledger

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func splitVM(s string) (namespace, name string) {
	namespace, name, _ = strings.Cut(s, "/")
	return namespace, name
}

// wireRow is the JSON form of a Row; the order is the one people read.
type wireRow struct {
	VM        string     `json:"vm"`
	UID       types.UID  `json:"uid,omitempty"`
	Interface string     `json:"interface,omitempty"`
	MAC       string     `json:"mac,omitempty"`
	State     State      `json:"state"`
	Op        string     `json:"op,omitempty"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until,omitempty"`
	Replaces  string     `json:"replaces,omitempty"`
	Reason    string     `json:"reason,omitempty"`
}

var wireFields = []string{"vm", "uid", "interface", "mac", "state", "op", "since", "until", "replaces", "reason"}

// parseRow reads one row and keeps the fields that it does not know. Whatever it can't
// understand is an error: such a row counts as taken and is never rewritten.
func parseRow(raw string) (Row, error) {
	var w wireRow
	if err := json.Unmarshal([]byte(raw), &w); err != nil {
		return Row{}, fmt.Errorf("not a row: %w", err)
	}
	r := Row{VM: w.VM, UID: w.UID, Interface: w.Interface, MAC: w.MAC, State: w.State, Op: w.Op, Since: wireTime(w.Since), Replaces: w.Replaces, Reason: w.Reason}
	if w.Until != nil {
		r.Until = wireTime(*w.Until)
	}
	if err := r.valid(); err != nil {
		return Row{}, err
	}
	var err error
	if r.extra, err = extraOf([]byte(raw), wireFields); err != nil {
		return Row{}, err
	}
	return r, nil
}

// extraOf are the fields that an object has besides the known ones. encoding/json takes "State" for
// "state": kept as an unknown field it would stand behind the one that is written next, and win over it.
func extraOf(raw []byte, known []string) (extra, error) {
	var all extra
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	for _, f := range known {
		delete(all, f)
	}
	for name := range all {
		for _, f := range known {
			if strings.EqualFold(name, f) {
				return nil, fmt.Errorf("field %q must be written %q", name, f)
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// with writes an object with its unknown fields last and in a stable order.
func (x extra) with(known []byte) ([]byte, error) {
	if len(x) == 0 {
		return known, nil
	}
	extra, err := json.Marshal(map[string]json.RawMessage(x))
	if err != nil {
		return nil, err
	}
	return slices.Concat(known[:len(known)-1], []byte(","), extra[1:]), nil
}

// wireTime is a time as a row has it: in UTC and whole seconds.
func wireTime(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// hasYear says whether RFC 3339 can write a time. It can read others: a zone may move the first
// or the last hours of its range out of it.
func hasYear(t time.Time) bool { y := t.UTC().Year(); return y >= 0 && y <= 9999 }

func (r Row) valid() error {
	known := false
	for _, s := range States {
		known = known || s == r.State
	}
	switch {
	case !known:
		return fmt.Errorf("unknown state %q", r.State)
	case !hasYear(r.Since) || !hasYear(r.Until):
		return fmt.Errorf("since %s, until %s: a year must be 0 to 9999", r.Since, r.Until)
	case r.State == Foreign:
		return nil
	case strings.Count(r.VM, "/") != 1 || strings.HasPrefix(r.VM, "/") || strings.HasSuffix(r.VM, "/"):
		return fmt.Errorf("vm %q is not namespace/name", r.VM)
	case r.Interface == "":
		return fmt.Errorf("no interface")
	case r.Op == "":
		return fmt.Errorf("no op")
	case r.State == Held && r.Until.IsZero():
		return fmt.Errorf("held without an end")
	}
	if r.Replaces != "" {
		if _, err := netip.ParseAddr(r.Replaces); err != nil {
			return fmt.Errorf("replaces %q is not an address", r.Replaces)
		}
	}
	return nil
}

// encode writes a row as one line of JSON, unknown fields last and in a stable order.
func (r Row) encode() (string, error) {
	w := wireRow{VM: r.VM, UID: r.UID, Interface: r.Interface, MAC: r.MAC, State: r.State, Op: r.Op, Since: wireTime(r.Since), Replaces: r.Replaces, Reason: r.Reason}
	if !r.Until.IsZero() {
		until := wireTime(r.Until)
		w.Until = &until
	}
	if err := r.valid(); err != nil {
		return "", fmt.Errorf("row of %s: %w", r.VM, err)
	}
	known, err := json.Marshal(w)
	if err != nil {
		return "", err
	}
	line, err := r.extra.with(known)
	return string(line), err
}

// same says whether a row is still the one that was read: a transition is only from the UID, op
// and state that were read.
func (r Row) same(other Row) bool {
	return r.VM == other.VM && r.UID == other.UID && r.Interface == other.Interface && r.Op == other.Op && r.State == other.State
}
