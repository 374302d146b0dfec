package audit_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// objects are the world as kubectl prints it.
func (w *world) objects(t *testing.T) []any {
	t.Helper()
	var all []any
	add := func(o any, apiVersion, kind string) {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		m["apiVersion"], m["kind"] = apiVersion, kind
		all = append(all, m)
	}
	for _, cm := range w.configMaps(t) {
		add(cm, "v1", "ConfigMap")
	}
	for n := range w.VMs {
		add(&w.VMs[n], "kubevirt.io/v1", "VirtualMachine")
	}
	for n := range w.VMIs {
		add(&w.VMIs[n], "kubevirt.io/v1", "VirtualMachineInstance")
	}
	for n := range w.Pods {
		add(&w.Pods[n], "v1", "Pod")
	}
	for n := range w.Nodes {
		add(&w.Nodes[n], "v1", "Node")
	}
	return all
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func jsonList(t *testing.T, items []any) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func dump(paths ...string) audit.Dump {
	return audit.Dump{Paths: paths, LedgerNamespace: ledger.DefaultNamespace, Now: time.Now().Add(time.Hour), Whole: true}
}

func judge(t *testing.T, d audit.Dump) []string {
	t.Helper()
	s, err := d.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return codes(audit.Run(s, audit.Options{Namespace: d.Namespace}))
}

// A dump in whatever form says what the cluster says.
func TestDumpForms(t *testing.T) {
	w := broken()
	items := w.objects(t)
	want := []string{"TemplateMissing tenant-a/web", "OutsidePool tenant-a/web", "OutsidePool tenant-b/mail", "RestartPending tenant-b/mail", "OrphanReservation tenant-c/gone", "OutsidePool tenant-c/gone"}
	var documents, concatenated [][]byte
	for _, o := range items {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			t.Fatal(err)
		}
		documents, concatenated = append(documents, text), append(concatenated, raw)
	}
	asYAML, err := yaml.JSONToYAML(jsonList(t, items))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	forms := map[string]string{
		"JSON list":       write(t, filepath.Join(dir, "list.json"), jsonList(t, items)),
		"YAML list":       write(t, filepath.Join(dir, "list.yaml"), asYAML),
		"YAML documents":  write(t, filepath.Join(dir, "documents.yaml"), []byte("---\n"+string(slices.Concat(join(documents, "---\n")...))+"---\n")),
		"JSON documents":  write(t, filepath.Join(dir, "documents.json"), slices.Concat(join(concatenated, "\n")...)),
		"leading newline": write(t, filepath.Join(dir, "newline.json"), append([]byte("\n \n"), jsonList(t, items)...)),
	}
	for n, o := range documents {
		write(t, filepath.Join(dir, "tree", "namespaces", string(rune('a'+n)), "object.yaml"), o)
	}
	write(t, filepath.Join(dir, "tree", "again.yml"), documents[0])
	write(t, filepath.Join(dir, "tree", "etcd.json"), []byte(`[{"endpoint": "x"}]`))
	write(t, filepath.Join(dir, "tree", "values.yaml"), []byte("a: b\n"))
	write(t, filepath.Join(dir, "tree", "empty.yaml"), nil)
	write(t, filepath.Join(dir, "tree", "pod.log"), []byte("{{{"))
	forms["directory"] = filepath.Join(dir, "tree")
	for name, path := range forms {
		t.Run(name, func(t *testing.T) {
			if got := judge(t, dump(path)); !slices.Equal(got, want) {
				t.Errorf("findings %q, want %q", got, want)
			}
		})
	}
	t.Run("standard input", func(t *testing.T) {
		d := dump("-")
		d.Stdin = strings.NewReader(string(asYAML))
		if got := judge(t, d); !slices.Equal(got, want) {
			t.Errorf("findings %q, want %q", got, want)
		}
	})
}

func join(parts [][]byte, between string) [][]byte {
	var all [][]byte
	for _, p := range parts {
		all = append(all, p, []byte(between))
	}
	return all
}

func TestTypedListsLeaveTheKindOut(t *testing.T) {
	w := newWorld()
	vm := w.vm("tenant-a/db-1")
	raw, err := json.Marshal(map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineList", "items": []any{vm}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := dump(write(t, filepath.Join(t.TempDir(), "x.json"), raw)).Load(t.Context())
	if err != nil || len(s.VMs) != 1 {
		t.Errorf("%d machines, error %v", len(s.VMs), err)
	}
}

func TestTheNewestVersionOfAnObjectCounts(t *testing.T) {
	w := newWorld()
	version := func(resourceVersion, value string) map[string]any {
		vm := newWorld().vm("tenant-a/db-1")
		vm.ResourceVersion = resourceVersion
		vm.Annotations["x"] = value
		w.VMs = []kubevirtv1.VirtualMachine{*vm}
		return w.objects(t)[0].(map[string]any)
	}
	for _, order := range [][]any{{version("9", "old"), version("10", "new")}, {version("10", "new"), version("9", "old")}} {
		s, err := dump(write(t, filepath.Join(t.TempDir(), "x.json"), jsonList(t, order))).Load(t.Context())
		if err != nil || len(s.VMs) != 1 || s.VMs[0].Annotations["x"] != "new" {
			t.Errorf("%d machines, %v, error %v", len(s.VMs), s.VMs[0].Annotations, err)
		}
	}
}

func TestDumpErrors(t *testing.T) {
	dir := t.TempDir()
	namespaces := func(uids ...string) []byte {
		var items []any
		for n, uid := range uids {
			items = append(items, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": metav1.NamespaceSystem, "uid": uid, "resourceVersion": string(rune('9' - n))}})
		}
		return jsonList(t, items)
	}
	for name, c := range map[string]struct{ path, want string }{
		"missing":          {filepath.Join(dir, "none.yaml"), "none.yaml: no such file or directory"},
		"cut off JSON":     {write(t, filepath.Join(dir, "cut.json"), []byte(`{"kind": "List", "items": [`)), "cut.json, document 1: unexpected EOF"},
		"no YAML":          {write(t, filepath.Join(dir, "bad.yaml"), []byte("a: [b\n")), "bad.yaml, document 1: "},
		"second document":  {write(t, filepath.Join(dir, "second.yaml"), []byte("kind: Secret\napiVersion: v1\n---\na: [b\n")), "second.yaml, document 2: "},
		"not an object":    {write(t, filepath.Join(dir, "list.json"), []byte(`["x"]`)), "list.json, document 1: it is no Kubernetes object"},
		"without a kind":   {write(t, filepath.Join(dir, "values.yaml"), []byte("a: b\n")), "values.yaml, document 1: it is no Kubernetes object"},
		"a wrong field":    {write(t, filepath.Join(dir, "vm.yaml"), []byte("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a, namespace: b}\nspec: 1\n")), "vm.yaml, document 1: virtualmachine b/a: "},
		"nothing":          {write(t, filepath.Join(dir, "empty.yaml"), nil), "no Kubernetes object in "},
		"two clusters":     {write(t, filepath.Join(dir, "two.json"), namespaces("c-1", "c-2")), "two.json, document 1: item 1: the dump is of two clusters"},
		"in a directory":   {filepath.Dir(write(t, filepath.Join(dir, "tree", "x", "cut.yaml"), []byte("a: [b\n"))), filepath.Join("tree", "x", "cut.yaml") + ", document 1"},
		"a binary as YAML": {write(t, filepath.Join(dir, "x.yaml"), []byte{0, 1, 2, 255}), "x.yaml, document 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := dump(c.path).Load(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// An object without a namespace is no ledger of another one: no remedy has an empty flag.
func TestDumpWithoutNamespaces(t *testing.T) {
	w := newWorld()
	w.row("198.51.100.20", "tenant-a/db-1", "")
	w.Ledger.Pools, w.Ledger.Networks = nil, nil
	items := w.objects(t)
	other := w.configMaps(t)[0]
	other.Name, other.Namespace = "vmip-block-default-203.0.113.0-24", ""
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(other)
	if err != nil {
		t.Fatal(err)
	}
	m["apiVersion"], m["kind"] = "v1", "ConfigMap"
	if got := judge(t, dump(write(t, filepath.Join(t.TempDir(), "x.json"), jsonList(t, append(items, m))))); !slices.Equal(got, []string{"OutsidePool tenant-a/db-1"}) {
		t.Errorf("findings %q", got)
	}
}

// What a dump does not have is unknown, not gone.
func TestDumpGaps(t *testing.T) {
	judge := func(w *world, edit func(*audit.Dump)) *audit.Report {
		d := dump(write(t, filepath.Join(t.TempDir(), "x.json"), jsonList(t, w.objects(t))))
		d.Whole = false
		edit(&d)
		s, err := d.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return audit.Run(s, audit.Options{Namespace: d.Namespace})
	}
	none := func(*audit.Dump) {}
	w := broken()
	if r := judge(w, none); !skips(r, audit.OrphanReservation, "namespace tenant-c") {
		t.Errorf("skipped %v", r.Skipped)
	}
	if r := judge(w, func(d *audit.Dump) { d.Namespace = "tenant-c" }); !slices.Contains(codes(r), "OrphanReservation tenant-c/gone") {
		t.Errorf("findings %q", codes(r))
	}
	w.Pods = nil
	if r := judge(w, none); !skips(r, audit.RestartPending, "no pods") {
		t.Errorf("skipped %v", r.Skipped)
	}
	w = broken()
	w.Nodes = nil
	if r := judge(w, none); !skips(r, audit.NodeUnreachable, "no nodes") {
		t.Errorf("skipped %v", r.Skipped)
	}
	w = broken()
	w.VMs = nil
	if r := judge(w, none); !skips(r, audit.TemplateMissing, "no virtualmachines") {
		t.Errorf("skipped %v", r.Skipped)
	}
	if r := judge(broken(), func(d *audit.Dump) { d.LedgerNamespace = "ipam" }); !skips(r, audit.TemplateMissing, "there is one in vmip-system") {
		t.Errorf("skipped %v", r.Skipped)
	}
}

// Which plugin the cluster has is told by what the dump has of it.
func TestDumpPlugins(t *testing.T) {
	object := func(apiVersion, kind, namespace, name string, more map[string]any) map[string]any {
		o := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"namespace": namespace, "name": name}}
		for k, v := range more {
			o[k] = v
		}
		return o
	}
	crd := func(group string) map[string]any {
		return object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ips."+group, map[string]any{"spec": map[string]any{"group": group}})
	}
	workload := func(kind, name string) map[string]any {
		return object("apps/v1", kind, "kube-system", name, map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": name, "image": "example.com/" + name + ":v1.14.6"}}}}}})
	}
	const calico = "cni.projectcalico.org/ipAddrs"
	for name, c := range map[string]struct {
		objects []any
		plugin  string
		want    []string
		skipped bool
	}{
		"nothing":                         {nil, "", nil, true},
		"Kube-OVN":                        {[]any{workload("Deployment", "kube-ovn-controller")}, profile.KubeOVN, nil, true},
		"Kube-OVN and all definitions":    {[]any{workload("Deployment", "kube-ovn-controller"), workload("DaemonSet", "x"), crd("kubeovn.io")}, profile.KubeOVN, []string{"IneffectiveAnnotation tenant-a/db-1"}, false},
		"Calico":                          {[]any{workload("DaemonSet", "calico-node"), crd("crd.projectcalico.org")}, profile.Calico, nil, false},
		"an attachment":                   {[]any{workload("Deployment", "kube-ovn-controller"), object("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", "tenant-a", "lan", map[string]any{"spec": map[string]any{"config": `{"type":"kube-ovn","provider":"lan.tenant-a.ovn"}`}})}, profile.KubeOVN, nil, true},
		"definitions and no known plugin": {[]any{crd("example.com"), workload("DaemonSet", "x")}, profile.None, []string{"IneffectiveAnnotation tenant-a/db-1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			vm := w.vm("tenant-a/db-1")
			secondary(vm, "lan", "tenant-a/lan")
			vm.Spec.Template.ObjectMeta.Annotations[calico] = `["203.0.113.5"]`
			s, err := dump(write(t, filepath.Join(t.TempDir(), "x.json"), jsonList(t, append(w.objects(t), c.objects...)))).Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			plugin := ""
			if s.Networks.Primary != nil {
				plugin = s.Networks.Primary.Name()
			}
			r := audit.Run(s, audit.Options{})
			if plugin != c.plugin || !slices.Equal(codes(r), c.want) || skips(r, audit.IneffectiveAnnotation, "") != c.skipped {
				t.Errorf("plugin %q, findings %q, skipped %v", plugin, codes(r), r.Skipped)
			}
			if lan := s.Networks.Attachments["tenant-a/lan"]; (lan != nil) != (name == "an attachment") {
				t.Errorf("plugin of the attachment: %v", lan)
			}
		})
	}
}

func TestADumpIsAsOldAsItsFile(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "x.json"), jsonList(t, newWorld().objects(t)))
	made := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	if err := os.Chtimes(path, made, made); err != nil {
		t.Fatal(err)
	}
	s, err := dump(path).Load(t.Context())
	if err != nil || !s.Now.Equal(made) {
		t.Errorf("now %s, error %v", s.Now, err)
	}
}
