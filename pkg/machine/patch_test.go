package machine

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// patched applies a patch to raw YAML as the API server does, and checks what must always hold.
func patched(t *testing.T, raw string, patch []byte) map[string]any {
	t.Helper()
	before, err := yaml.YAMLToJSON([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	path, _ := p[0].Path()
	value, _ := p[0].ValueInterface()
	if p[0].Kind() != "replace" || path != "/metadata/resourceVersion" || value != "7" {
		t.Errorf("the first operation is %s %s %v and guards nothing", p[0].Kind(), path, value)
	}
	after, err := p.Apply(before)
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	var o map[string]any
	if err := json.Unmarshal(after, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func parsedVM(t *testing.T, raw string) *kubevirtv1.VirtualMachine {
	t.Helper()
	vm := &kubevirtv1.VirtualMachine{}
	if err := yaml.Unmarshal([]byte(raw), vm); err != nil {
		t.Fatal(err)
	}
	return vm
}

func parsed(t *testing.T, raw string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(raw), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// head is a machine with fields of a later KubeVirt; %s is the template's metadata, indented.
const head = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {namespace: tenant-a, name: db-1, uid: u-db1, resourceVersion: "7", labels: {x: y}%s}
spec:
  runStrategy: Always
  fieldOfTomorrow: {a: [1, 2]}
  template:
%s
    specOfTomorrow: true
    spec:
      networks: [{name: default, pod: {}}, {name: lan, multus: {networkName: lan}}]
      domain:
        devices:
          interfaces:
          - {name: default, bridge: {}, speedOfTomorrow: 100}
          - {name: lan, bridge: {}, macAddress: "02-AA-00-00-00-07"}
status: {printableStatus: Running, statusOfTomorrow: 1}
`

func TestPatchKeepsEverythingElse(t *testing.T) {
	const ip, odd = "ovn.kubernetes.io/ip_address", "a~b/c/d~1"
	change := Patch{
		SetTemplate: map[string]string{ip: "198.51.100.20", odd: "x"}, RemoveTemplate: []string{"old/key", "never/there"},
		Set: map[string]string{"vmip.io/reservations": "{}"}, Remove: []string{"vmip.io/restart"},
		MACs: map[string]string{"default": "02:00:00:00:00:20", "lan": "02:aa:00:00:00:07"},
	}
	for name, c := range map[string]struct{ vm, template, wantVM, wantTemplate string }{
		"with annotations": {
			vm:           `, annotations: {other: "1", vmip.io/restart: "x"}`,
			template:     `    metadata: {labels: {l: m}, annotations: {old/key: "1", keep/me: "2"}, metaOfTomorrow: 3}`,
			wantVM:       `, annotations: {other: "1", vmip.io/reservations: "{}"}`,
			wantTemplate: `    metadata: {labels: {l: m}, annotations: {keep/me: "2", "` + ip + `": 198.51.100.20, "a~b/c/d~1": x}, metaOfTomorrow: 3}`,
		},
		"without annotations": {
			template:     `    metadata: {labels: {l: m}, metaOfTomorrow: 3}`,
			wantVM:       `, annotations: {vmip.io/reservations: "{}"}`,
			wantTemplate: `    metadata: {labels: {l: m}, annotations: {"` + ip + `": 198.51.100.20, "a~b/c/d~1": x}, metaOfTomorrow: 3}`,
		},
		"null annotations": {
			vm:           `, annotations: null`,
			template:     `    metadata: {labels: {l: m}, annotations: null}`,
			wantVM:       `, annotations: {vmip.io/reservations: "{}"}`,
			wantTemplate: `    metadata: {labels: {l: m}, annotations: {"` + ip + `": 198.51.100.20, "a~b/c/d~1": x}}`,
		},
		"empty annotations": {
			vm:           `, annotations: {}`,
			template:     `    metadata: {annotations: {}}`,
			wantVM:       `, annotations: {vmip.io/reservations: "{}"}`,
			wantTemplate: `    metadata: {annotations: {"` + ip + `": 198.51.100.20, "a~b/c/d~1": x}}`,
		},
		"no metadata": {
			wantVM:       `, annotations: {vmip.io/reservations: "{}"}`,
			wantTemplate: `    metadata: {annotations: {"` + ip + `": 198.51.100.20, "a~b/c/d~1": x}}`,
		},
		"metadata as KubeVirt's webhook leaves it": {
			template:     `    metadata: {creationTimestamp: null}`,
			wantVM:       `, annotations: {vmip.io/reservations: "{}"}`,
			wantTemplate: `    metadata: {annotations: {"` + ip + `": 198.51.100.20, "a~b/c/d~1": x}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			raw := fmt.Sprintf(head, c.vm, c.template)
			patch, err := change.For(parsedVM(t, raw))
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Replace(fmt.Sprintf(head, c.wantVM, c.wantTemplate), "speedOfTomorrow: 100", `speedOfTomorrow: 100, macAddress: "02:00:00:00:00:20"`, 1)
			if got := patched(t, raw, patch); !reflect.DeepEqual(got, parsed(t, want)) {
				t.Errorf("got  %v\nwant %v\npatch %s", got, parsed(t, want), patch)
			}
		})
	}
}

func TestPatchIsMinimal(t *testing.T) {
	raw := fmt.Sprintf(head, `, annotations: {a: "1"}`, `    metadata: {annotations: {k: v}}`)
	vm := parsedVM(t, raw)
	for name, p := range map[string]Patch{
		"empty":             {},
		"already there":     {SetTemplate: map[string]string{"k": "v"}, Set: map[string]string{"a": "1"}},
		"already gone":      {RemoveTemplate: []string{"x"}, Remove: []string{"y"}},
		"the MAC as it is":  {MACs: map[string]string{"lan": "02:AA:00:00:00:07"}},
		"set beats removed": {SetTemplate: map[string]string{"k": "v"}, RemoveTemplate: []string{"k"}},
	} {
		if got, err := p.For(vm); got != nil || err != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	got, err := Patch{RemoveTemplate: []string{"k", "k"}}.For(vm)
	want := `[{"op":"replace","path":"/metadata/resourceVersion","value":"7"},{"op":"remove","path":"/spec/template/metadata/annotations/k"}]`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
	got, err = Patch{SetTemplate: map[string]string{"k": ""}}.For(vm)
	want = `[{"op":"replace","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/spec/template/metadata/annotations/k","value":""}]`
	if err != nil || string(got) != want {
		t.Errorf("an empty value: %s, %v", got, err)
	}
}

func TestPatchGuardsTheInterface(t *testing.T) {
	raw := fmt.Sprintf(head, "", "")
	patch, err := Patch{MACs: map[string]string{"default": "02:00:00:00:00:20"}}.For(parsedVM(t, raw))
	if err != nil {
		t.Fatal(err)
	}
	reordered := strings.Replace(raw, "name: default, bridge", "name: other, bridge", 1)
	b, err := yaml.YAMLToJSON([]byte(reordered))
	if err != nil {
		t.Fatal(err)
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Apply(b); err == nil {
		t.Error("the MAC went to another interface")
	}
	for macs, want := range map[string]string{
		"dmz=02:00:00:00:00:20":           `virtualmachine tenant-a/db-1 has no interface "dmz" in spec.template`,
		"default=20":                      `virtualmachine tenant-a/db-1 interface default: "20" is not a MAC address`,
		"default=02:00:00:00:00:00:00:20": "is not a MAC address",
	} {
		name, mac, _ := strings.Cut(macs, "=")
		if _, err := (Patch{MACs: map[string]string{name: mac}}).For(parsedVM(t, raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", macs, err)
		}
	}
}

func TestPatchNeedsWhatWasRead(t *testing.T) {
	vm := newVM(nil, nil)
	vm.ResourceVersion = ""
	if _, err := (Patch{Set: map[string]string{"a": "b"}}).For(vm); err == nil || !strings.Contains(err.Error(), "virtualmachine tenant-a/db-1 has no resourceVersion") {
		t.Errorf("error %v", err)
	}
	vm.Spec.Template = nil
	if _, err := (Patch{Set: map[string]string{"a": "b"}}).For(vm); err == nil || !strings.Contains(err.Error(), "no spec.template") {
		t.Errorf("error %v", err)
	}
}

func TestPatchVMI(t *testing.T) {
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "db-1", ResourceVersion: "7"}}
	got, err := PatchVMI(vmi, map[string]string{"a/b": "c"}, []string{"x"})
	want := `[{"op":"replace","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/a~1b","value":"c"}]`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
	vmi.Annotations = map[string]string{"a/b": "c"}
	if got, err := PatchVMI(vmi, map[string]string{"a/b": "c"}, nil); got != nil || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}
