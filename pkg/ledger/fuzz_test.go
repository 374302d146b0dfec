package ledger

import (
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// unknownFields reads the fields of a row that this version has no name for.
func unknownFields(t *testing.T, raw string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber() // a float64 would make two numbers one
	fields := map[string]any{}
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	for _, f := range wireFields {
		delete(fields, f)
	}
	return fields
}

// sameRow compares the known fields.
func sameRow(a, b Row) bool {
	a.extra, b.extra = nil, nil
	return reflect.DeepEqual(a, b)
}

// A row that can be read is written to something that reads the same, unknown fields included.
func FuzzParseRow(f *testing.F) {
	for _, s := range States {
		raw, err := row("tenant-a/db-1", s).encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add(`{"vm":"a/b","state":"foreign","x":{"y":null}}`)
	f.Add(`{"vm":"a/b","interface":"i","mac":"02:00:00:00:00:20","state":"leaving","op":"1","since":"2026-12-01T11:00:00.9+01:00","until":null,"replaces":"2001:DB8::1","big":12345678901234567890123,"<&>":"\u2028"}`)
	f.Add(`{"vm":"a/b","state":"foreign","state":"reserved","interface":"i","op":"1","x":1,"x":2}`)
	f.Fuzz(func(t *testing.T, raw string) {
		r, err := parseRow(raw)
		if err != nil || !utf8.ValidString(raw) { // the API server keeps nothing but UTF-8
			return
		}
		once, err := r.encode()
		if err != nil {
			t.Fatalf("%s can be read and not written: %v", raw, err)
		}
		again, err := parseRow(once)
		if err != nil {
			t.Fatalf("%s can't be read back: %v", once, err)
		}
		if !sameRow(r, again) {
			t.Fatalf("%s is\n%+v, and read back from %s\n%+v", raw, r, once, again)
		}
		if before, after := unknownFields(t, raw), unknownFields(t, once); !reflect.DeepEqual(before, after) {
			t.Fatalf("%s has the unknown fields %v, rewritten %v", raw, before, after)
		}
		if twice, err := again.encode(); err != nil || twice != once {
			t.Fatalf("%s becomes %s, %v", once, twice, err)
		}
		// What a transition writes is what is read, whatever the unknown fields are called.
		r.State, r.Op, r.Until = Held, "01K", since
		if r.VM, r.Interface, r.Replaces = "tenant-a/db-1", "default", ""; r.UID == "" {
			r.UID = "u-1"
		}
		if once, err = r.encode(); err != nil {
			t.Fatal(err)
		}
		if again, err = parseRow(once); err != nil || !sameRow(r, again) {
			t.Fatalf("%s was to be\n%+v, and is\n%+v, %v", once, r, again, err)
		}
	})
}

// dataOf makes the data of an object of lines "key value".
func dataOf(lines string) map[string]string {
	data := map[string]string{}
	for line := range strings.Lines(lines) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		data[key] = value
	}
	return data
}

// unlisted names the owners that a block doesn't list.
func unlisted(b *block) (out []string) {
	for _, e := range b.entries() {
		if e.Err != nil || e.Row.State == Foreign {
			continue
		}
		if _, ok := b.cm.Labels[e.Row.Owner().Label()]; !ok {
			out = append(out, e.Row.Owner().String())
		}
	}
	return out
}

// Whatever stands in a block: a row put into it changes that row and no other, a damaged row
// stays, and every owner stays listed.
func FuzzBlock(f *testing.F) {
	good, err := row("tenant-a/db-1", Reserved).encode()
	if err != nil {
		f.Fatal(err)
	}
	foreign := `{"vm":"node/n1","state":"foreign","since":"2026-12-01T10:00:00Z"}`
	v4, v6 := "vmip-block-default-198.51.100.0-24", "vmip-block-default-2001-0db8-0000-0000-0000-0000-0000-0000-120"
	for last := range byte(3) {
		f.Add(v4, "default", "198.51.100.0 "+good+"\n198.51.100.1 {\n198.51.100.7 "+good+"\n198.51.101.9 "+good+"\nhello x", last, uint8(0), "tenant-a/web")
		f.Add(v4, "default", "198.51.100.2 "+foreign+"\n198.51.100.0 "+good, last, uint8(4), "node/n2")
		f.Add(v6, "default", "2001-0db8-0000-0000-0000-0000-0000-0001 "+good+"\n2001-db8--2 "+good, last, uint8(3), "tenant-a/db-1")
	}
	f.Add("vmip-block-a-b-198.51.100.0-24", "a-b", "", byte(255), uint8(1), "a/b")
	f.Add("vmip-block-a-b-198.51.100.0-24", "a", "", byte(0), uint8(1), "a/b")
	f.Add("vmip-block-default-255.255.255.0-24", "default", "255.255.255.255 "+good, byte(255), uint8(2), "a/b")
	f.Fuzz(func(t *testing.T, name, network, lines string, last, state uint8, vm string) {
		if !utf8.ValidString(lines) || !utf8.ValidString(vm) {
			return // the API server keeps nothing but UTF-8
		}
		cm := &corev1.ConfigMap{Data: dataOf(lines)}
		cm.Name, cm.Labels = name, map[string]string{LabelKind: KindBlock, LabelNetwork: network, "somebody": "else"}
		b, err := parseBlock(cm)
		if err != nil {
			return
		}
		if again := blockName(b.network, b.prefix); again != name {
			t.Fatalf("block %q is read as %q", name, again)
		}
		entries := b.entries()
		if len(entries) != len(cm.Data) {
			t.Fatalf("%d entries of %d keys", len(entries), len(cm.Data))
		}
		for _, e := range entries {
			if e.Err == nil && e.Row.State != Foreign {
				cm.Labels[e.Row.Owner().Label()] = ""
			}
		}
		// A row that is written as it was read loses nothing.
		for _, e := range entries {
			if e.Err != nil {
				continue
			}
			if err := b.put(e.Addr, &e.Row); err != nil {
				t.Fatalf("%s: %v", e.Raw, err)
			}
			now, _ := b.entry(e.Addr)
			if now.Err != nil || !sameRow(now.Row, e.Row) || !reflect.DeepEqual(unknownFields(t, now.Raw), unknownFields(t, e.Raw)) {
				t.Fatalf("%s was rewritten as %s, %v", e.Raw, now.Raw, now.Err)
			}
		}

		raw := b.prefix.Addr().AsSlice()
		raw[len(raw)-1] = last
		at, _ := netip.AddrFromSlice(raw)
		key := address.Key(at)
		old, had := b.entry(at)
		before := maps.Clone(cm.Data)
		untouched := func() {
			t.Helper()
			for k, v := range before {
				if k != key && cm.Data[k] != v {
					t.Fatalf("put(%s) changed key %q from %q to %q", at, k, v, cm.Data[k])
				}
			}
			for k := range cm.Data {
				if _, ok := before[k]; !ok && k != key {
					t.Fatalf("put(%s) made key %q", at, k)
				}
			}
			if lost := unlisted(b); len(lost) > 0 {
				t.Fatalf("put(%s) left owners unlisted: %q", at, lost)
			}
			if cm.Labels["somebody"] != "else" || cm.Labels[LabelNetwork] != network {
				t.Fatalf("put(%s) left the labels %v", at, cm.Labels)
			}
		}
		next := row(vm, States[int(state)%len(States)])
		_, invalid := next.encode()
		err = b.put(at, &next)
		untouched()
		if had && old.Err != nil || invalid != nil {
			if err == nil || !maps.Equal(cm.Data, before) {
				t.Fatalf("put(%s) over %q: %v, and the row is %q", at, old.Raw, err, cm.Data[key])
			}
			return
		}
		if now, _ := b.entry(at); err != nil || now.Err != nil || !sameRow(now.Row, next) {
			t.Fatalf("put(%s) wrote %q: %v, %v", at, cm.Data[key], err, now.Err)
		}
		if err := b.put(at, nil); err != nil {
			t.Fatal(err)
		}
		untouched()
		if _, left := cm.Data[key]; left {
			t.Fatalf("%s is not free", at)
		}
	})
}

// A pool that can be read is written to something that reads the same, its announced change
// included, and whatever stands in an object is an error at worst.
func FuzzParsePool(f *testing.F) {
	v4 := "cidrs: [198.51.100.0/24]\nnetwork: default\nholdFor: 10m\n"
	f.Add(v4, "", false)
	f.Add(v4, "network: default\ncidrs: []\n", true)
	f.Add(v4, v4+"exclude: [198.51.100.96/29, ' 198.51.100.7 ']\nnamespaces: [a, b]\nopenBlocks: 3\n", true)
	f.Add("cidrs: [2001:DB8::/64]\nranges: [2001:db8::1-2001:db8::9]\nexclude: ['']\n", "", false)
	f.Add("cidrs: [2001:DB8::/64, 203.0.113.0/31]\nranges: [203.0.113.0-203.0.113.1]\ngateways: [2001:db8:0::1]\nprofile: 'yes'\nattachment: \"a: \\u2028\\n#\"\n", "x", true)
	f.Add("&a [*a]", "{", true)
	f.Add("cidrs: [127.0.0.0/8]", "null", true)
	f.Fuzz(func(t *testing.T, spec, pending string, announced bool) {
		cm := &corev1.ConfigMap{Data: map[string]string{keySpec: spec}}
		if cm.Name = poolName("lab"); announced {
			cm.Data[keyPending] = pending
		}
		p, err := parsePool(cm)
		if err != nil {
			return
		}
		space, err := p.spec.Space()
		if err != nil {
			t.Fatalf("%q: accepted, and has no space: %v", spec, err)
		}
		for _, family := range p.spec.Families() {
			for b := range space.Blocks(family) {
				for a := range space.InBlock(b) {
					if err := space.Check(a); err != nil {
						t.Fatalf("%q: automatic choice offers what is refused: %v", spec, err)
					}
				}
				break // one is enough: there may be 2^56
			}
		}
		if again, err := p.spec.Normalise(); err != nil || !equality.Semantic.DeepEqual(again, p.spec) {
			t.Fatalf("%q: normalised once\n%+v, twice\n%+v, %v", spec, p.spec, again, err)
		}
		if err := p.encode(); err != nil {
			t.Fatalf("%q, %q: can be read and not written: %v", spec, pending, err)
		}
		again, err := parsePool(p.cm)
		if err != nil {
			t.Fatalf("%q can't be read back: %v", p.cm.Data, err)
		}
		if !equality.Semantic.DeepEqual(again.spec, p.spec) || !equality.Semantic.DeepEqual(again.pending, p.pending) {
			t.Fatalf("%q, %q are\n%+v, %+v, and read back from %q\n%+v, %+v", spec, pending, p.spec, p.pending, p.cm.Data, again.spec, again.pending)
		}
	})
}

// What a virtual machine says about its reservations is read back as it was written, and names
// each of its addresses.
func FuzzReservations(f *testing.F) {
	f.Add(`{"ledger":"vmip-system","uid":"u-1","interfaces":{"default":{"pool":"lab","network":"default","addresses":["198.51.100.20","2001:DB8::20"],"op":"01J","annotations":{"a":"b"}}}}`)
	f.Add(`{"interfaces":{"default":{"addresses":["198.51.100.20/24"]}}}`)
	f.Add(`{"interfaces":{"":{"addresses":null},"x":null},"interfaces":null}`)
	f.Add("null")
	f.Add("")
	f.Fuzz(func(t *testing.T, raw string) {
		said, err := ReservationsOf(map[string]string{AnnotationReservations: raw})
		if err != nil || said == nil {
			return
		}
		text, err := said.Encode()
		if err != nil {
			t.Fatalf("%s can be read and not written: %v", raw, err)
		}
		again, err := ReservationsOf(map[string]string{AnnotationReservations: text})
		if err != nil || !equality.Semantic.DeepEqual(said, again) {
			t.Fatalf("%s is\n%+v, and read back from %s\n%+v, %v", raw, said, text, again, err)
		}
		for name, r := range said.Interfaces {
			if len(r.Addrs()) != len(r.Addresses) {
				t.Fatalf("interface %q has %d addresses of %q", name, len(r.Addrs()), r.Addresses)
			}
			for _, a := range r.Addrs() {
				if !said.Names(name, a) {
					t.Fatalf("interface %q does not name its %s", name, a)
				}
			}
		}
	})
}
