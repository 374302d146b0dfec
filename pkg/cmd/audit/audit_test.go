package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	corefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

type clock struct{}

func (clock) Now() time.Time { return time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC) }

// setup is a command with a cluster of fake clients.
type setup struct {
	core     *corefake.Clientset
	kubevirt *kubevirtfake.Clientset
	env      *cli.Env
	out, err bytes.Buffer
}

func newSetup(objects ...runtime.Object) *setup {
	s := &setup{}
	var core, kv []runtime.Object
	for _, o := range objects {
		switch o.(type) {
		case *kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance:
			kv = append(kv, o)
		default:
			core = append(core, o)
		}
	}
	core = append(core, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-ovn-controller"}})
	s.core, s.kubevirt = corefake.NewClientset(core...), kubevirtfake.NewSimpleClientset(kv...)
	s.core.Resources = []*metav1.APIResourceList{{GroupVersion: "kubeovn.io/v1"}}
	s.env = cli.NewEnv(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &s.out, ErrOut: &s.err})
	s.env.Connect = func() (*cli.Clients, error) {
		return &cli.Clients{
			Core: s.core, KubeVirt: s.kubevirt, Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{{Group: "kubeovn.io", Version: "v1", Resource: "subnets"}: "SubnetList"}), Clock: clock{}, Namespace: "tenant-a",
			Ledger: &ledger.Store{ConfigMaps: s.core.CoreV1().ConfigMaps(ledger.DefaultNamespace), Namespace: ledger.DefaultNamespace, Clock: clock{}},
		}, nil
	}
	return s
}

// run runs the command and returns its exit status; an error that Report would print is in err.
func (s *setup) run(t *testing.T, args ...string) int {
	t.Helper()
	s.out.Reset()
	s.err.Reset()
	cmd := (&options{env: s.env, now: clock{}.Now}).command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&s.out)
	cmd.SetErr(&s.err)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	if err != nil && err.Error() != "" {
		fmt.Fprintf(&s.err, "error: %v\n", err)
	}
	return cli.ExitCode(err)
}

const key = "ovn.kubernetes.io/ip_address"

// vm is a stopped machine that names a reservation; asks is what its template asks for.
func vm(ref, addr, asks string) *kubevirtv1.VirtualMachine {
	ns, name, _ := strings.Cut(ref, "/")
	said := ledger.Reservations{Ledger: ledger.DefaultNamespace, UID: "u-1", Interfaces: map[string]ledger.Reservation{
		"default": {Pool: "p1", Network: "default", Addresses: []string{addr}, Annotations: map[string]string{key: addr}},
	}}
	text, err := said.Encode()
	if err != nil {
		panic(err)
	}
	v := &kubevirtv1.VirtualMachine{
		TypeMeta:   metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: "u-1", Annotations: map[string]string{ledger.AnnotationReservations: text}},
		Spec:       kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{}},
	}
	if asks != "" {
		v.Spec.Template.ObjectMeta.Annotations = map[string]string{key: asks}
	}
	return v
}

// pool and block are the ledger's objects.
func pool() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ledger.DefaultNamespace, Name: "vmip-pool-p1",
			Labels: map[string]string{ledger.LabelKind: ledger.KindPool, ledger.LabelPool: "p1", ledger.LabelNetwork: "default"}, Annotations: map[string]string{ledger.AnnotationFormat: ledger.Format}},
		Data: map[string]string{"spec": "network: default\ncidrs: [198.51.100.0/24]\nprofile: auto\n"},
	}
}

// registry is the registry that has the pool.
func registry() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ledger.DefaultNamespace, Name: "vmip-network-default",
			Labels: map[string]string{ledger.LabelKind: ledger.KindNetwork, ledger.LabelNetwork: "default"}, Annotations: map[string]string{ledger.AnnotationFormat: ledger.Format}},
		Data: map[string]string{"pools": "p1: [198.51.100.0/24]\n"},
	}
}

func block(rows map[string]string) *corev1.ConfigMap {
	data, labels := map[string]string{}, map[string]string{ledger.LabelKind: ledger.KindBlock, ledger.LabelNetwork: "default"}
	for addr, ref := range rows {
		ns, name, _ := strings.Cut(ref, "/")
		labels[ledger.Owner{Namespace: ns, Name: name, Interface: "default"}.Label()] = ""
		data[addr] = fmt.Sprintf(`{"vm":%q,"uid":"u-1","interface":"default","state":"reserved","op":"x","since":"2026-11-28T10:00:00Z"}`, ref)
	}
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ledger.DefaultNamespace, Name: "vmip-block-default-198.51.100.0-24",
			Labels: labels, Annotations: map[string]string{ledger.AnnotationFormat: ledger.Format}},
		Data: data,
	}
}

func clean() []runtime.Object {
	return []runtime.Object{pool(), block(map[string]string{"198.51.100.21": "tenant-a/web"}), vm("tenant-a/web", "198.51.100.21", "198.51.100.21"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, registry()}
}

func broken() []runtime.Object {
	return []runtime.Object{pool(), block(map[string]string{"198.51.100.21": "tenant-a/web"}), vm("tenant-a/web", "198.51.100.21", ""),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, registry()}
}

const header = "SEVERITY   CODE              OBJECT         ADDRESS         EVIDENCE"

func TestFindings(t *testing.T) {
	s := newSetup(broken()...)
	if status := s.run(t, "-A"); status != 1 {
		t.Errorf("status %d", status)
	}
	want := header + "\n" +
		"error      TemplateMissing   tenant-a/web   198.51.100.21   reserved since 2026-11-28, template lacks ovn.kubernetes.io/ip_address\n"
	if got := s.out.String(); got != want {
		t.Errorf("output:\n%swant:\n%s", got, want)
	}
	if got, want := lastLine(s.err.String()), "1 finding (1 error) in 1 VM, 0 checks skipped. Remedies: -o wide"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func TestClean(t *testing.T) {
	s := newSetup(clean()...)
	if status := s.run(t); status != 0 {
		t.Errorf("status %d: %s", status, s.err.String())
	}
	if s.out.Len() > 0 {
		t.Errorf("output %q", s.out.String())
	}
	if got, want := lastLine(s.err.String()), "0 findings in 1 VM of namespace tenant-a, 0 checks skipped"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}

func TestFailOn(t *testing.T) {
	warning := append(clean()[:1], registry(), block(map[string]string{"198.51.100.21": "tenant-a/gone"}), vm("tenant-b/x", "203.0.113.1", "203.0.113.1"))
	warning[3].(*kubevirtv1.VirtualMachine).Annotations = nil
	warning[3].(*kubevirtv1.VirtualMachine).UID = "u-2"
	for _, c := range []struct {
		objects []runtime.Object
		args    []string
		want    int
	}{
		{broken(), []string{"-A"}, 1},
		{broken(), []string{"-A", "--fail-on=error"}, 1},
		{broken(), []string{"-A", "--fail-on=none"}, 0},
		{warning, []string{"-A"}, 1},
		{warning, []string{"-A", "--fail-on=warning"}, 1},
		{warning, []string{"-A", "--fail-on=error"}, 0},
	} {
		s := newSetup(c.objects...)
		if status := s.run(t, c.args...); status != c.want {
			t.Errorf("%v: status %d, want %d\n%s%s", c.args, status, c.want, s.out.String(), s.err.String())
		}
	}
}

func TestFormats(t *testing.T) {
	s := newSetup(broken()...)
	decode := func(unmarshal func([]byte, any) error) v1alpha1.AuditReport {
		t.Helper()
		var r v1alpha1.AuditReport
		if err := unmarshal(s.out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if s.err.Len() > 0 {
			t.Errorf("standard error %q", s.err.String())
		}
		return r
	}
	s.run(t, "-A", "-o", "json")
	r := decode(json.Unmarshal)
	f := r.Findings[0]
	if r.APIVersion != "vmip.io/v1alpha1" || r.Kind != "AuditReport" || r.Summary.Errors != 1 || r.Summary.VirtualMachines != 1 || r.Summary.Rows != 1 || r.LedgerNamespace != "vmip-system" {
		t.Errorf("report %+v", r)
	}
	if f.Code != "TemplateMissing" || f.Severity != "error" || f.Object.Kind != "VirtualMachine" || f.Object.Name != "web" || f.Interface != "default" || f.Network != "default" || f.Address != "198.51.100.21" || f.Remedy != "kubectl vmip reserve web -n tenant-a" {
		t.Errorf("finding %+v", f)
	}
	if strings.Contains(s.out.String(), `"skipped": null`) {
		t.Errorf("lists must not be null: %s", s.out.String())
	}
	s.run(t, "-A", "-o", "yaml")
	if r := decode(func(b []byte, o any) error { return yaml.Unmarshal(b, o) }); len(r.Findings) != 1 {
		t.Errorf("report %+v", r)
	}
	s.run(t, "-A", "-o", "jsonpath={.findings[*].code}")
	if s.out.String() != "TemplateMissing" {
		t.Errorf("output %q", s.out.String())
	}
	s.run(t, "-A", "-o", "wide")
	if !strings.Contains(s.out.String(), "REMEDY") || !strings.Contains(s.out.String(), "kubectl vmip reserve web -n tenant-a") {
		t.Errorf("output %q", s.out.String())
	}
	s.run(t, "-A", "--no-headers")
	if strings.Contains(s.out.String(), "SEVERITY") {
		t.Errorf("output %q", s.out.String())
	}
	s.run(t, "-A", "-o", "markdown")
	if !strings.HasPrefix(s.out.String(), "| Severity") || !strings.Contains(s.out.String(), "kubectl vmip reserve web -n tenant-a") {
		t.Errorf("output %q", s.out.String())
	}
	if status := s.run(t, "-A", "-o", "name"); status == 0 || status == 1 && s.out.Len() > 0 {
		t.Errorf("-o name: status %d", status)
	}
}

func TestCouldNotLook(t *testing.T) {
	forbid := func(resource string) *setup {
		s := newSetup(broken()...)
		deny := func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
		}
		s.core.PrependReactor("list", resource, deny)
		s.kubevirt.PrependReactor("list", resource, deny)
		return s
	}
	unconnected := newSetup()
	unconnected.env.Connect = func() (*cli.Clients, error) { return nil, errors.New("no cluster") }
	for name, c := range map[string]struct {
		s    *setup
		args []string
		want string
	}{
		"no cluster":               {unconnected, nil, "no cluster"},
		"ledger forbidden":         {forbid("configmaps"), nil, "forbidden"},
		"machines forbidden":       {forbid("virtualmachines"), []string{"-A"}, "forbidden"},
		"unreadable dump":          {newSetup(), []string{"-f", "none.yaml"}, "none.yaml"},
		"grace that is no time":    {newSetup(), []string{"--grace", "0s"}, "--grace 0s: give a positive duration"},
		"dump and another without": {newSetup(), []string{"-f", t.TempDir()}, "no Kubernetes object"},
	} {
		t.Run(name, func(t *testing.T) {
			if status := c.s.run(t, c.args...); status != 2 {
				t.Errorf("status %d", status)
			}
			if c.s.out.Len() > 0 || !strings.Contains(c.s.err.String(), c.want) {
				t.Errorf("output %q, error %q", c.s.out.String(), c.s.err.String())
			}
		})
	}
}

func TestSkippedChecksAreListed(t *testing.T) {
	s := newSetup(clean()...)
	s.core.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
	})
	if status := s.run(t, "-A"); status != 0 {
		t.Errorf("status %d", status)
	}
	if got := s.err.String(); !strings.Contains(got, "Skipped PoolOverlapsNode, AddressInUseByOther, NodeUnreachable: nodes can't be listed: ") || !strings.HasSuffix(got, "0 findings in 1 VM, 3 checks skipped\n") {
		t.Errorf("standard error %q", got)
	}
}

func TestDump(t *testing.T) {
	raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": broken()})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSetup()
	s.env.Connect = func() (*cli.Clients, error) { return nil, errors.New("a dump needs no cluster") }
	if status := s.run(t, "-f", path); status != 1 || !strings.Contains(s.out.String(), "TemplateMissing") {
		t.Errorf("status %d, output %q, error %q", status, s.out.String(), s.err.String())
	}
	s.run(t, "-f", path, "-o", "json")
	var r v1alpha1.AuditReport
	if err := json.Unmarshal(s.out.Bytes(), &r); err != nil || len(r.Files) != 1 || r.Files[0] != path {
		t.Errorf("report %+v, error %v", r, err)
	}
	*s.env.Flags.Namespace = "tenant-b"
	if status := s.run(t, "-f", path); status != 0 || !strings.Contains(s.err.String(), "in 0 VMs of namespace tenant-b") {
		t.Errorf("status %d, error %q", status, s.err.String())
	}
}

func TestHelp(t *testing.T) {
	s := newSetup()
	cmd := New(s.env)
	for _, part := range []string{"Exit status:", "TemplateMissing", "skipped"} {
		if !strings.Contains(cmd.Long, part) {
			t.Errorf("help lacks %q", part)
		}
	}
	for _, line := range strings.Split(cmd.Long, "\n") {
		if len(line) > 110 {
			t.Errorf("a line of %d characters: %q", len(line), line)
		}
	}
}

// What somebody wrote into an annotation must not reach the terminal as it stands.
func TestEvidenceIsEscaped(t *testing.T) {
	objects := broken()
	objects[2].(*kubevirtv1.VirtualMachine).Spec.Template.ObjectMeta.Annotations = map[string]string{key: "\x1b[31mred\n\x07"}
	s := newSetup(objects...)
	s.run(t, "-A")
	if strings.ContainsAny(s.out.String(), "\x1b\x07") {
		t.Errorf("output %q", s.out.String())
	}
}
