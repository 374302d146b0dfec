package plan

import (
	"reflect"
	"strings"
	"testing"
)

const good = `apiVersion: vmip.io/v1alpha1
kind: ReservationPlan
items:
- {namespace: tenant-a, name: db-1, addresses: [198.51.100.20, "2001:DB8::0:20"], mac: 02-00-00-00-00-2A}
- {name: web, interface: lan, pool: lab}
---
# nothing
---
apiVersion: vmip.io/v1alpha1
kind: ReservationPlan
items:
- {name: mail}
`

const goodCSV = "\ufeff# from the address book\n" + `Namespace,VM,Interface,Pool,IP,MAC
tenant-a,db-1,,,198.51.100.20 2001:db8::20,02:00:00:00:00:2a
,web,lan,lab,,
,mail,,,,
`

func TestYAMLAndCSVAreOne(t *testing.T) {
	a, err := Read(strings.NewReader(good), "plan.yaml", "tenant-b")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Read(strings.NewReader(goodCSV), "plan.csv", "tenant-b")
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Items) != 3 || a.Items[0].VM.String() != "tenant-a/db-1" || a.Items[0].Addresses[1].String() != "2001:db8::20" || a.Items[0].MAC != "02:00:00:00:00:2a" ||
		a.Items[1].VM.String() != "tenant-b/web" || a.Items[1].Interface != "lan" || a.Items[1].Pool != "lab" || a.Items[2].VM.Name != "mail" {
		t.Errorf("read %+v", a.Items)
	}
	for i := range a.Items {
		a.Items[i].Where, b.Items[i].Where = "", ""
	}
	if !reflect.DeepEqual(a.Items, b.Items) {
		t.Errorf("YAML %+v\nCSV  %+v", a.Items, b.Items)
	}
}

func TestRefused(t *testing.T) {
	yaml := func(items string) string {
		return "apiVersion: vmip.io/v1alpha1\nkind: ReservationPlan\nitems:\n" + items
	}
	for name, c := range map[string]struct {
		plan string
		want []string
	}{
		"empty":             {"", []string{"p has no items"}},
		"no items":          {yaml("  []"), []string{"p has no items"}},
		"another kind":      {"apiVersion: v1\nkind: ConfigMap\ndata: {}\n", []string{"unknown field \"data\""}},
		"another version":   {"apiVersion: vmip.io/v9\nkind: ReservationPlan\nitems: [{name: a}]\n", []string{`"vmip.io/v9"`, "apiVersion: vmip.io/v1alpha1"}},
		"no kind":           {"items: [{name: a}]\n", []string{"kind: ReservationPlan"}},
		"unknown field":     {yaml("- {name: a, adress: [198.51.100.1]}"), []string{`unknown field "adress"`}},
		"no name":           {yaml("- {addresses: [198.51.100.1]}"), []string{"item 1", "names no virtual machine"}},
		"bad name":          {yaml("- {name: Db_1}"), []string{"item 1", `"Db_1"`}},
		"bad namespace":     {yaml("- {name: a, namespace: T.A}"), []string{"item 1", `"T.A"`, "namespace"}},
		"bad interface":     {yaml("- {name: a, interface: a/b}"), []string{"item 1", `"a/b"`, "interface"}},
		"bad pool":          {yaml("- {name: a, pool: A}"), []string{"item 1", `"A"`, "pool"}},
		"bad address":       {yaml("- {name: a, addresses: [198.51.100]}"), []string{"item 1", "virtualmachine ns/a", `"198.51.100"`}},
		"bad MAC":           {yaml("- {name: a, mac: '02:00'}"), []string{"item 1", `"02:00"`, "MAC"}},
		"two of a family":   {yaml("- {name: a, addresses: [198.51.100.1, 198.51.100.2]}"), []string{"item 1", "two IPv4 addresses"}},
		"one address twice": {yaml("- {name: a, addresses: ['2001:db8::1']}\n- {name: b, addresses: ['2001:DB8:0::1']}"), []string{"item 1 gives 2001:db8::1 to virtualmachine ns/a, item 2 to virtualmachine ns/b"}},
		"one VM twice":      {yaml("- {name: a}\n- {name: a, namespace: ns}"), []string{"item 1 and item 2 are both for virtualmachine ns/a"}},
		"one MAC twice":     {yaml("- {name: a, mac: '02:00:00:00:00:0A'}\n- {name: b, mac: 02-00-00-00-00-0a}"), []string{"item 1 and item 2 have one MAC address, 02:00:00:00:00:0a"}},
		"one pool twice":    {"apiVersion: vmip.io/v1alpha1\nkind: ReservationPlan\npools: [{name: lab, cidrs: []}, {name: lab, cidrs: []}]\nitems: [{name: a}]\n", []string{"pool lab is there twice"}},
		"all at once":       {yaml("- {name: A}\n- {name: B}\n"), []string{`item 1: "A"`, `item 2: "B"`}},
		"CSV, unknown":      {"name,adress\na,198.51.100.1\n", []string{`unknown column "adress"`}},
		"CSV, twice":        {"name,vm\na,b\n", []string{`two columns "name"`}},
		"CSV, a line short": {"name,addresses\na\n", []string{"line 2", "wrong number of fields"}},
		"CSV, where":        {"name,addresses\n\na,198.51.100.1\nb,198.51.100.1\n", []string{"line 3 gives 198.51.100.1", "line 4"}},
		"not text":          {"\x00\x01", []string{"p: "}},
	} {
		_, err := Read(strings.NewReader(c.plan), "p", "ns")
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}

// The same number in two networks is two addresses; where the plan does not tell, it is one.
func TestNetworks(t *testing.T) {
	plan := func(a, b string) string {
		return `apiVersion: vmip.io/v1alpha1
kind: ReservationPlan
pools:
- {name: one, network: red, cidrs: [198.51.100.0/24]}
- {name: two, network: blue, cidrs: [198.51.100.0/24]}
- {name: three, network: blue, cidrs: [203.0.113.0/24]}
items:
- {name: a, pool: "` + a + `", addresses: [198.51.100.1]}
- {name: b, pool: "` + b + `", addresses: [198.51.100.1]}
`
	}
	for _, c := range []struct {
		a, b string
		ok   bool
	}{{"one", "two", true}, {"two", "three", false}, {"one", "", false}, {"x", "y", true}, {"x", "x", false}} {
		if _, err := Read(strings.NewReader(plan(c.a, c.b)), "p", "ns"); (err == nil) != c.ok {
			t.Errorf("pools %q and %q: %v", c.a, c.b, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{good, goodCSV, "", "name\na\n", "{}", "[]", "---\n---\n", "items: 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Read(strings.NewReader(s), "p", "ns")
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, i := range p.Items {
			if i.VM.Name == "" || i.VM.Namespace == "" || i.Where == "" || len(i.Addresses) > 2 {
				t.Fatalf("%+v", i)
			}
			key := i.VM.String() + "/" + i.Interface
			if seen[key] {
				t.Fatalf("%s twice", key)
			}
			seen[key] = true
		}
	})
}
