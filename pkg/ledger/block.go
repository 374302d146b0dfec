package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/patch"
)

// maxBlockBytes is far above a full block (256 rows of 250 bytes) and far below the 1 MiB that
// an object may have: past it something else is being stored in the block.
const maxBlockBytes = 512 << 10

// block is one object of rows. Methods change the copy in memory; the store writes it.
type block struct {
	network string
	prefix  netip.Prefix
	cm      *corev1.ConfigMap
	// parsed keeps what was read from a key, since a batch asks for each row many times.
	parsed map[string]Entry
}

func blockName(network string, prefix netip.Prefix) string {
	return "vmip-block-" + network + "-" + address.BlockKey(prefix)
}

func newBlock(network string, prefix netip.Prefix) *block {
	return &block{network: network, prefix: prefix, cm: &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:        blockName(network, prefix),
			Labels:      map[string]string{LabelKind: KindBlock, LabelNetwork: network},
			Annotations: map[string]string{AnnotationFormat: Format},
		},
	}}
}

// parseBlock reads a block's identity; rows are read one by one, so that a damaged one does not
// hide its neighbours.
func parseBlock(cm *corev1.ConfigMap) (*block, error) {
	network := cm.Labels[LabelNetwork]
	key, ok := strings.CutPrefix(cm.Name, "vmip-block-"+network+"-")
	if network == "" || !ok {
		return nil, fmt.Errorf("configmap %s: its name and its label %s=%q don't make a block", cm.Name, LabelNetwork, network)
	}
	prefix, err := address.ParseBlockKey(key)
	if err != nil {
		return nil, fmt.Errorf("configmap %s: %w", cm.Name, err)
	}
	return &block{network: network, prefix: prefix, cm: cm}, nil
}

// writable refuses objects of a newer format: this version would not know what it destroys.
func writable(cm *corev1.ConfigMap) error {
	if f := cm.Annotations[AnnotationFormat]; f != "" && f != Format {
		return fmt.Errorf("configmap %s has format %q, this version writes %s: use a newer kubectl-vmip", cm.Name, f, Format)
	}
	return nil
}

func (b *block) entry(a netip.Addr) (Entry, bool) {
	key := address.Key(a)
	raw, ok := b.cm.Data[key]
	if !ok {
		return Entry{}, false
	}
	return b.parse(key, raw), true
}

func (b *block) parse(key, raw string) Entry {
	if e, ok := b.parsed[key]; ok && e.Raw == raw {
		return e
	}
	e := b.parseRow(key, raw)
	if b.parsed == nil {
		b.parsed = map[string]Entry{}
	}
	b.parsed[key] = e
	return e
}

func (b *block) parseRow(key, raw string) Entry {
	e := Entry{Network: b.network, Key: b.cm.Name + "/" + key, Raw: raw}
	if e.Addr, e.Err = address.ParseKey(key); e.Err != nil {
		return e
	}
	if !b.prefix.Contains(e.Addr) {
		e.Err = fmt.Errorf("it stands in the block of %s", b.prefix)
		return e
	}
	e.Row, e.Err = parseRow(raw)
	return e
}

// entries returns all rows in the order of their addresses.
func (b *block) entries() []Entry {
	out := make([]Entry, 0, len(b.cm.Data))
	for key, raw := range b.cm.Data {
		out = append(out, b.parse(key, raw))
	}
	slices.SortFunc(out, compareEntries)
	return out
}

// operation is one operation of RFC 6902.
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// rowPatch is the change of rows, by key, from what they were to what the block has now, and nothing
// else: whoever writes other rows of the block meanwhile is no conflict. Each key is tested for what
// was read; null stands for none. So are the format, and the fence that a pool change writes. ok
// is false where the change can't be written so: a block that is to be created, and one that loses
// an owner's label, which somebody may be adding at this moment.
func (b *block) rowPatch(was map[string]string, labels map[string]string, hadData bool) (body []byte, ok bool, err error) {
	if b.cm.ResourceVersion == "" || b.cm.Annotations == nil || labels == nil {
		return nil, false, nil
	}
	for l := range labels {
		if _, kept := b.cm.Labels[l]; !kept {
			return nil, false, nil
		}
	}
	null := json.RawMessage("null")
	text := func(s string, there bool) json.RawMessage {
		if !there {
			return null
		}
		raw, merr := json.Marshal(s)
		err = errors.Join(err, merr)
		return raw
	}
	var ops []operation
	for _, k := range []string{AnnotationFence, AnnotationFormat} {
		v, there := b.cm.Annotations[k]
		ops = append(ops, operation{"test", "/metadata/annotations/" + patch.Escape(k), text(v, there)})
	}
	if !hadData {
		ops = append(ops, operation{"test", "/data", null}, operation{"add", "/data", json.RawMessage("{}")})
	}
	for _, k := range slices.Sorted(maps.Keys(was)) {
		path := "/data/" + patch.Escape(k)
		old := was[k]
		if hadData {
			ops = append(ops, operation{"test", path, text(old, old != "")})
		}
		ops = append(ops, operation{"add", path, text(b.cm.Data[k], true)})
	}
	add := map[string]bool{}
	for l := range b.cm.Labels {
		if _, there := labels[l]; !there {
			add[l] = true
		}
	}
	// Also where the label was there: whoever frees the owner's last row takes it away, and that
	// write may come in between.
	for k := range was {
		if e := b.parse(k, b.cm.Data[k]); e.Err == nil && e.Row.State != Foreign {
			add[e.Row.Owner().Label()] = true
		}
	}
	for _, l := range slices.Sorted(maps.Keys(add)) {
		ops = append(ops, operation{"add", "/metadata/labels/" + patch.Escape(l), json.RawMessage(`""`)})
	}
	body, merr := json.Marshal(ops)
	return body, true, errors.Join(err, merr)
}

// carries says whether an object has the rows that this block has under the keys.
func (b *block) carries(cm *corev1.ConfigMap, keys map[string]string) bool {
	for k := range keys {
		if cm.Data[k] != b.cm.Data[k] {
			return false
		}
	}
	return true
}

// rowsOf are the rows that name the owner's machine and interface.
func (b *block) rowsOf(o Owner) (out []Entry) {
	for _, e := range b.entries() {
		if e.Err == nil && e.Row.State != Foreign && e.Row.Names(o) {
			out = append(out, e)
		}
	}
	return out
}

func compareEntries(x, y Entry) int {
	if c := strings.Compare(x.Network, y.Network); c != 0 {
		return c
	}
	if c := x.Addr.Compare(y.Addr); c != 0 {
		return c
	}
	return strings.Compare(x.Key, y.Key)
}

// put writes a row and its owner's label; nil frees the address.
func (b *block) put(a netip.Addr, row *Row) error {
	old, had := b.entry(a)
	if had && old.Err != nil {
		return fmt.Errorf("the row of %s is damaged and stays as it is: %w", a, old.Err)
	}
	if row == nil {
		delete(b.cm.Data, address.Key(a))
	} else {
		raw, err := row.encode()
		if err != nil {
			return err
		}
		if b.cm.Data == nil {
			b.cm.Data = map[string]string{}
		}
		b.cm.Data[address.Key(a)] = raw
		if row.State != Foreign {
			b.cm.Labels[row.Owner().Label()] = ""
		}
	}
	if had && old.Row.State != Foreign && !b.indexed(old.Row.Owner()) {
		delete(b.cm.Labels, old.Row.Owner().Label())
	}
	size := 0
	for k, v := range b.cm.Data {
		size += len(k) + len(v)
	}
	if size > maxBlockBytes {
		return fmt.Errorf("configmap %s would hold %d bytes, more than the %d that a block may have: something else is stored in it", b.cm.Name, size, maxBlockBytes)
	}
	return nil
}

// indexed says whether the owner's label has to stay: a damaged row may be the owner's.
func (b *block) indexed(o Owner) bool {
	for _, e := range b.entries() {
		if e.Err != nil || e.Row.State != Foreign && e.Row.Names(o) {
			return true
		}
	}
	return false
}
