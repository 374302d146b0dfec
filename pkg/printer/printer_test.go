package printer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

var (
	now   = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	items = []v1alpha1.Reservation{
		{Namespace: "tenant-a", Name: "db-1", Address: "198.51.100.20", State: "Restart-Pending", Since: metav1.NewTime(now.Add(-5 * time.Second)), Node: "n1\x1b[2J\u009b1m"},
		{Namespace: "tenant-a", Name: "web", Address: "198.51.100.21", PodAddress: "198.51.100.21", State: "In-Use", Since: metav1.NewTime(now.Add(-72 * time.Hour)), Node: "n2\nsecond line"},
		{Namespace: "tenant-b", Name: "mail", Address: "2001:db8::1", State: "In-Use"},
	}
	list = printer.List[v1alpha1.Reservation]{
		Columns: []printer.Column[v1alpha1.Reservation]{
			{Name: "Name", Value: func(r v1alpha1.Reservation) string { return r.Name }},
			{Name: "Address", Value: func(r v1alpha1.Reservation) string { return r.Address }},
			{Name: "Pod", Value: func(r v1alpha1.Reservation) string { return printer.None(r.PodAddress) }},
			{Name: "State", Value: func(r v1alpha1.Reservation) string { return r.State }},
			{Name: "Node", Wide: true, Value: func(r v1alpha1.Reservation) string { return printer.Unknown(r.Node) }},
			{Name: "Age", Value: func(r v1alpha1.Reservation) string { return printer.Age(now, r.Since.Time) }},
		},
		Namespace: func(r v1alpha1.Reservation) string { return r.Namespace },
		Resource:  func(r v1alpha1.Reservation) string { return "virtualmachine.kubevirt.io/" + r.Name },
	}
)

func parse(t *testing.T, args ...string) printer.Flags {
	t.Helper()
	var f printer.Flags
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.AddListFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestList(t *testing.T) {
	for _, tc := range []struct {
		line  string
		all   bool
		items []v1alpha1.Reservation
		want  string
	}{
		{line: "", items: items, want: `
NAME   ADDRESS         POD             STATE             AGE
db-1   198.51.100.20   <none>          Restart-Pending   5s
web    198.51.100.21   198.51.100.21   In-Use            3d
mail   2001:db8::1     <none>          In-Use            <unknown>
`},
		{line: "-owide", all: true, items: items, want: `
NAMESPACE   NAME   ADDRESS         POD             STATE             NODE            AGE
tenant-a    db-1   198.51.100.20   <none>          Restart-Pending   n1^[[2J\x9b1m   5s
tenant-a    web    198.51.100.21   198.51.100.21   In-Use            n2...           3d
tenant-b    mail   2001:db8::1     <none>          In-Use            <unknown>       <unknown>
`},
		{line: "--no-headers", items: items[:1], want: `
db-1   198.51.100.20   <none>   Restart-Pending   5s
`},
		{line: "", want: "\n"},
		{line: "-oname", want: "\n"},
		{line: "-o name", items: items[:2], want: `
virtualmachine.kubevirt.io/db-1
virtualmachine.kubevirt.io/web
`},
		{line: "-o jsonpath={.items[*].address}", items: items, want: "\n198.51.100.20 198.51.100.21 2001:db8::1"},
		{line: "-o go-template={{range.items}}{{.name}};{{end}}", items: items, want: "\ndb-1;web;mail;"},
		{line: "-o json", items: items[2:], want: `
{
    "kind": "ReservationList",
    "apiVersion": "vmip.io/v1alpha1",
    "items": [
        {
            "namespace": "tenant-b",
            "name": "mail",
            "interface": "",
            "network": "",
            "address": "2001:db8::1",
            "row": "",
            "state": "In-Use",
            "since": null
        }
    ]
}
`},
		{line: "-o yaml", items: items[2:], want: `
apiVersion: vmip.io/v1alpha1
items:
- address: 2001:db8::1
  interface: ""
  name: mail
  namespace: tenant-b
  network: ""
  row: ""
  since: null
  state: In-Use
kind: ReservationList
`},
	} {
		t.Run(tc.line, func(t *testing.T) {
			l := list
			l.AllNamespaces = tc.all
			var b strings.Builder
			object := &v1alpha1.ReservationList{TypeMeta: v1alpha1.Type("ReservationList"), Items: tc.items}
			if err := l.Print(&b, parse(t, strings.Fields(tc.line)...), object, tc.items); err != nil {
				t.Fatal(err)
			}
			if "\n"+b.String() != tc.want {
				t.Errorf("printed\n%s\nwant\n%s", b.String(), tc.want)
			}
		})
	}
}

func TestFormats(t *testing.T) {
	for line, want := range map[string]string{
		"xml":              "unknown format; allowed are json, yaml, name, wide, jsonpath=TEMPLATE, go-template=TEMPLATE",
		"markdown":         "unknown format; allowed are json, yaml, name, wide, jsonpath=TEMPLATE, go-template=TEMPLATE",
		"custom-columns=x": "unknown format; allowed are json, yaml, name, wide, jsonpath=TEMPLATE, go-template=TEMPLATE",
		"json=x":           "unknown format; allowed are json, yaml, name, wide, jsonpath=TEMPLATE, go-template=TEMPLATE",
		"jsonpath":         "the template is missing: write jsonpath=TEMPLATE",
		"jsonpath={.x":     "error parsing jsonpath {.x, unclosed action",
	} {
		var f printer.Flags
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.AddListFlags(fs)
		err := fs.Parse([]string{"-o", line})
		if want = `invalid argument "` + line + `" for "-o, --output" flag: ` + want; err == nil || err.Error() != want {
			t.Errorf("-o %s: error is %v, want %s", line, err, want)
		}
	}
}

func TestOperations(t *testing.T) {
	const vm = "virtualmachine.kubevirt.io/"
	ops := []v1alpha1.Operation{
		{Object: vm + "db-1", Verb: "reserved", Outcome: v1alpha1.Done, After: []string{"198.51.100.20"}, RestartPending: true, Message: "the running pod has 198.51.100.143"},
		{Object: vm + "two", Verb: "reserved", Outcome: v1alpha1.Done, After: []string{"198.51.100.21", "2001:db8::1"}, RestartPending: true, DryRun: "client"},
		{Object: vm + "same", Verb: "reserved", Outcome: v1alpha1.Unchanged, Before: []string{"198.51.100.22"}, After: []string{"198.51.100.22"}},
		{Object: vm + "gone", Verb: "released", Outcome: v1alpha1.Done, Before: []string{"198.51.100.23"}, DryRun: "server"},
		{Object: vm + "kept", Verb: "migrated", Outcome: v1alpha1.Done, Before: []string{"198.51.100.24"}, After: []string{"198.51.100.24"}},
		{Object: vm + "full", Verb: "reserved", Outcome: v1alpha1.Refused, Code: "PoolFull", Message: "pool lab is full"},
		{Object: "pool/lab", Verb: "added", Outcome: v1alpha1.Done, Message: "191 addresses,\nprofile \x1b[31mkube-ovn"},
	}
	for output, want := range map[string]string{
		"": `
virtualmachine.kubevirt.io/db-1 reserved 198.51.100.20 (restart pending: the running pod has 198.51.100.143)
virtualmachine.kubevirt.io/two reserved 198.51.100.21,2001:db8::1 (restart pending) (dry run)
virtualmachine.kubevirt.io/same unchanged 198.51.100.22
virtualmachine.kubevirt.io/gone released 198.51.100.23 (server dry run)
virtualmachine.kubevirt.io/kept migrated
pool/lab added (191 addresses, profile ^[[31mkube-ovn)
`,
		"name": `
virtualmachine.kubevirt.io/db-1
virtualmachine.kubevirt.io/two
virtualmachine.kubevirt.io/same
virtualmachine.kubevirt.io/gone
virtualmachine.kubevirt.io/kept
pool/lab
`,
		"jsonpath={.items[5].code} {.items[0].restartPending}": "\nPoolFull true",
	} {
		var b strings.Builder
		if err := printer.Operations(&b, printer.Flags{Output: output}, ops); err != nil {
			t.Fatal(err)
		}
		if "\n"+b.String() != want {
			t.Errorf("-o %q printed\n%s\nwant\n%s", output, b.String(), want)
		}
	}
	var b strings.Builder
	if err := printer.Operations(&b, printer.Flags{Output: "json"}, nil); err != nil {
		t.Fatal(err)
	}
	const empty = "{\n    \"kind\": \"OperationResult\",\n    \"apiVersion\": \"vmip.io/v1alpha1\",\n    \"items\": []\n}\n"
	if b.String() != empty {
		t.Errorf("no operations are\n%s\nwant\n%s", b.String(), empty)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{5 * time.Second: "5s", 3 * time.Minute: "3m", -time.Second: "0s", 50 * time.Hour: "2d2h"} {
		if got := printer.Age(now, now.Add(-d)); got != want {
			t.Errorf("age of %v is %s, want %s", d, got, want)
		}
	}
}
