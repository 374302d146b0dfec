package ledger

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

var since = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

func row(vm string, state State) Row {
	r := Row{VM: vm, UID: "u-" + "1", Interface: "default", State: state, Op: "01J", Since: since}
	if state == Held {
		r.Until = since.Add(10 * time.Minute)
	}
	return r
}

// Fields of a newer version survive a rewrite, in place or through a transition.
func TestRowKeepsUnknownFields(t *testing.T) {
	raw := `{"vm":"tenant-a/db-1","uid":"u-1","interface":"default","state":"reserved","op":"01J","since":"2026-12-01T10:00:00Z","lease":{"a":[1,2]},"zone":"x"}`
	r, err := parseRow(raw)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.encode(); err != nil || got != raw {
		t.Errorf("%s, %v\nwant %s", got, err, raw)
	}
	r.State, r.Op = Releasing, "01K"
	got, err := r.encode()
	if err != nil || !strings.Contains(got, `"lease":{"a":[1,2]},"zone":"x"}`) || !strings.Contains(got, `"state":"releasing","op":"01K"`) {
		t.Errorf("%s, %v", got, err)
	}
}

func TestRowRefusesNonsense(t *testing.T) {
	for raw, want := range map[string]string{
		`{`:                      "not a row",
		`"x"`:                    "not a row",
		`{"vm":"tenant-a/db-1"}`: `unknown state ""`,
		`{"vm":"a/b","interface":"i","op":"1","state":"leased","since":"2026-12-01T10:00:00Z"}`:                  `unknown state "leased"`,
		`{"vm":"db-1","interface":"i","op":"1","state":"reserved","since":"2026-12-01T10:00:00Z"}`:               "not namespace/name",
		`{"vm":"a/b/c","interface":"i","op":"1","state":"reserved","since":"2026-12-01T10:00:00Z"}`:              "not namespace/name",
		`{"vm":"a/b","op":"1","state":"reserved","since":"2026-12-01T10:00:00Z"}`:                                "no interface",
		`{"vm":"a/b","interface":"i","state":"reserved","since":"2026-12-01T10:00:00Z"}`:                         "no op",
		`{"vm":"a/b","interface":"i","op":"1","state":"held","since":"2026-12-01T10:00:00Z"}`:                    "held without an end",
		`{"vm":"a/b","interface":"i","op":"1","state":"reserved","since":"yesterday"}`:                           "not a row",
		`{"vm":"a/b","interface":"i","op":"1","state":"reserved","since":"2026-12-01T10:00:00Z","replaces":"x"}`: "not an address",
		// What can't be written back as it was read.
		`{"vm":"a/b","interface":"i","op":"1","State":"reserved","since":"2026-12-01T10:00:00Z"}`:                                 `field "State" must be written "state"`,
		`{"vm":"a/b","interface":"i","op":"1","state":"reserved","since":"0000-01-01T00:00:00+01:00"}`:                            "a year must be",
		`{"vm":"a/b","interface":"i","op":"1","state":"held","since":"2026-12-01T10:00:00Z","until":"9999-12-31T23:59:59-01:00"}`: "a year must be",
		`{"vm":"a/b","interface":"i","op":"1","state":"held","since":"2026-12-01T10:00:00Z","until":"0001-01-01T00:00:00.5Z"}`:    "held without an end",
	} {
		if _, err := parseRow(raw); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", raw, err, want)
		}
	}
}

func TestBlockIndexesItsOwners(t *testing.T) {
	b := newBlock("default", netip.MustParsePrefix("198.51.100.0/24"))
	a, c := netip.MustParseAddr("198.51.100.20"), netip.MustParseAddr("198.51.100.21")
	db, web := row("tenant-a/db-1", Reserved), row("tenant-a/web", Reserved)
	put := func(at netip.Addr, r *Row) {
		t.Helper()
		if err := b.put(at, r); err != nil {
			t.Fatal(err)
		}
	}
	has := func(r Row) bool { _, ok := b.cm.Labels[r.Owner().Label()]; return ok }
	put(a, &db)
	put(c, &db) // an interface on the move has two rows
	if !has(db) {
		t.Error("no label for the owner of a row")
	}
	put(c, nil)
	if !has(db) {
		t.Error("the label went with one of two rows")
	}
	put(a, &web)
	if has(db) || !has(web) {
		t.Errorf("a row changed hands and the labels are %v", b.cm.Labels)
	}
	// While a row can't be read it may be anybody's: no label goes.
	b.cm.Data["198.51.100.22"] = "{"
	put(a, nil)
	if !has(web) {
		t.Error("a label went although a damaged row may be its owner's")
	}
	if err := b.put(netip.MustParseAddr("198.51.100.22"), &db); err == nil || b.cm.Data["198.51.100.22"] != "{" {
		t.Errorf("a damaged row was overwritten: %v", err)
	}
	foreign := Row{VM: "node/n1", State: Foreign, Since: since, Reason: "node address"}
	put(c, &foreign)
	if has(foreign) {
		t.Error("a foreign claim is no owner")
	}
}

// A damaged row is named, counts as taken, and hides none of its neighbours.
func TestSnapshotOfDamage(t *testing.T) {
	good, _ := row("tenant-a/db-1", Reserved).encode()
	block := newBlock("default", netip.MustParsePrefix("198.51.100.0/24")).cm
	block.Data = map[string]string{"198.51.100.20": good, "198.51.100.21": "{", "198.51.101.9": good, "hello": good}
	misnamed := newBlock("default", netip.MustParsePrefix("198.51.100.0/24")).cm
	misnamed.Name = "vmip-block-default-198.51.100.7-24"
	pool := &corev1.ConfigMap{}
	pool.Name, pool.Labels, pool.Data = "vmip-pool-lab", map[string]string{LabelKind: KindPool}, map[string]string{"spec": "cidrs: [nonsense]\nnetwork: default\n"}
	s := ParseSnapshot([]corev1.ConfigMap{*block, *misnamed, *pool, {}})
	if len(s.Entries) != 4 || len(s.Damaged) != 2 {
		t.Fatalf("%d entries, damaged %q", len(s.Entries), s.Damaged)
	}
	for _, e := range s.Entries {
		if wantErr := e.Raw == "{" || !strings.HasPrefix(e.Key, "vmip-block-default-198.51.100.0-24/198.51.100."); (e.Err != nil) != wantErr {
			t.Errorf("%s: %v", e.Key, e.Err)
		}
	}
}

func TestBudget(t *testing.T) {
	b := newBlock("default", netip.MustParsePrefix("2001:db8::/120"))
	size := 0
	for a := b.prefix.Addr(); b.prefix.Contains(a); a = a.Next() {
		r := row(fmt.Sprintf("a-tenant-with-a-long-name/a-virtual-machine-%d", size), Reserved)
		r.UID, r.MAC, r.Op = "0b0e9d8a-1c0f-4a3f-9c55-2f3f0c7b7f10", "02:00:00:00:00:20", NewOp()
		if err := b.put(a, &r); err != nil {
			t.Fatal(err)
		}
		raw := b.cm.Data[address.Key(a)]
		if len(raw)+len(address.Key(a)) > 290 {
			t.Errorf("row of %d bytes: %s", len(raw), raw)
		}
		size += len(raw) + len(address.Key(a)) + len(r.Owner().Label())
	}
	if size > 100<<10 {
		t.Errorf("a full block has %d bytes", size)
	}
	b.cm.Data["stray"] = strings.Repeat("x", maxBlockBytes)
	r := row("tenant-a/db-1", Reserved)
	if err := b.put(b.prefix.Addr(), &r); err == nil || !strings.Contains(err.Error(), "something else is stored in it") {
		t.Errorf("an overfull block: %v", err)
	}
}

func TestPoolNormalise(t *testing.T) {
	given := Pool{Name: "lab", CIDRs: []string{"198.51.100.0/24", "2001:DB8::/64"}, Ranges: []string{" 198.51.100.10 - 198.51.100.20"}, Exclude: []string{"198.51.100.96/29", "198.51.100.50"}, Gateways: []string{"2001:0db8::0001"}}
	before := fmt.Sprint(given)
	p, err := given.Normalise()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(p), "{lab default [198.51.100.0/24 2001:db8::/64] [198.51.100.10-198.51.100.20] [198.51.100.96/29 198.51.100.50] [2001:db8::1] auto  [] 10m0s 1}"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := fmt.Sprint(given); got != before {
		t.Errorf("the pool that was given became %s", got)
	}
	for want, p := range map[string]Pool{
		"at least 1m0s":     {Name: "lab", CIDRs: []string{"198.51.100.0/24"}, HoldFor: "59s"},
		`name "Lab"`:        {Name: "Lab", CIDRs: []string{"198.51.100.0/24"}},
		`network "a.b"`:     {Name: "lab", Network: "a.b", CIDRs: []string{"198.51.100.0/24"}},
		"openBlocks":        {Name: "lab", CIDRs: []string{"2001:db8::/64"}, OpenBlocks: 1 << 30},
		"needs a CIDR":      {Name: "lab"},
		`namespace "A"`:     {Name: "lab", CIDRs: []string{"198.51.100.0/24"}, Namespaces: []string{"A"}},
		"is not an IP addr": {Name: "lab", CIDRs: []string{"198.51.100.0/24"}, Gateways: []string{"gw"}},
	} {
		if _, err := p.Normalise(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pool "+p.Name) {
			t.Errorf("%+v: %v; want %q", p, err, want)
		}
	}
}

// A pool is of addresses that a machine can be reached at; those for documentation are such.
func TestPoolIsForHosts(t *testing.T) {
	for cidr, want := range map[string]string{
		"0.0.0.0/0":          "contains 0.0.0.0/8",
		"0.1.2.0/24":         "lies in 0.0.0.0/8",
		"127.0.0.0/8":        "is 127.0.0.0/8, loopback",
		"127.0.1.0/24":       "lies in 127.0.0.0/8, loopback",
		"126.0.0.0/7":        "contains 127.0.0.0/8",
		"169.254.0.0/16":     "link-local",
		"169.254.9.0/24":     "link-local",
		"168.0.0.0/6":        "contains 169.254.0.0/16",
		"224.0.0.0/24":       "multicast",
		"239.255.255.0/24":   "multicast",
		"240.0.0.0/24":       "class E",
		"255.255.255.0/24":   "contains 255.255.255.255/32, the limited broadcast",
		"255.255.255.255/32": "is 255.255.255.255/32",
		"::/0":               "contains ::/128",
		"::/128":             "unspecified",
		"::1/128":            "loopback",
		"::/127":             "contains ::/128",
		"::fffe:0:0/95":      "contains ::ffff:0.0.0.0/96",
		"fe80::/64":          "link-local",
		"fe00::/7":           "contains fe80::/10",
		"ff02::/16":          "lies in ff00::/8, multicast",
	} {
		_, err := Pool{Name: "lab", CIDRs: []string{"2001:db8::/64", cidr}}.Normalise()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pool lab: CIDR "+cidr) {
			t.Errorf("%s: %v; want %q", cidr, err, want)
		}
	}
	for _, cidr := range []string{
		"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "10.0.0.0/8", "100.64.0.0/10", "fd00::/8", "2000::/3",
		"1.0.0.0/8", "126.0.0.0/8", "128.0.0.0/8", "169.253.0.0/16", "169.255.0.0/16", "223.255.255.0/24", "::2/127", "fec0::/10", "fe00::/9",
	} {
		if _, err := (Pool{Name: "lab", CIDRs: []string{cidr}}).Normalise(); err != nil {
			t.Errorf("%s: %v", cidr, err)
		}
	}
}

// While a change is announced, only what both specifications allow is handed out.
func TestPendingChangeLimits(t *testing.T) {
	spec, err := Pool{Name: "lab", CIDRs: []string{"198.51.100.0/24"}}.Normalise()
	if err != nil {
		t.Fatal(err)
	}
	narrower := spec
	narrower.Exclude = []string{"198.51.100.20"}
	for _, c := range []struct {
		pending *Pool
		addr    string
		ok      bool
	}{
		{nil, "198.51.100.20", true},
		{&narrower, "198.51.100.20", false},
		{&narrower, "198.51.100.21", true},
		{&Pool{Name: "lab", Network: "default"}, "198.51.100.21", false}, // a removal
	} {
		p := &poolObject{cm: &corev1.ConfigMap{}, spec: spec, pending: c.pending}
		p.cm.Name = poolName("lab")
		if err := p.encode(); err != nil {
			t.Fatal(err)
		}
		back, err := parsePool(p.cm)
		if err != nil {
			t.Fatal(err)
		}
		if err := back.check(netip.MustParseAddr(c.addr), "tenant-a", true); (err == nil) != c.ok {
			t.Errorf("pending %v, %s: %v", c.pending, c.addr, err)
		}
	}
}
