package audit_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	snapshotv1 "kubevirt.io/api/snapshot/v1beta1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

type clock struct{}

func (clock) Now() time.Time { return now }

// cluster is a world behind fake clients.
type cluster struct {
	*audit.Cluster
	core     *corefake.Clientset
	kubevirt *kubevirtfake.Clientset
}

func (w *world) cluster(t *testing.T) cluster {
	t.Helper()
	var core, kv []runtime.Object
	for _, o := range w.configMaps(t) {
		core = append(core, o)
	}
	for n := range w.Pods {
		core = append(core, &w.Pods[n])
	}
	for n := range w.Nodes {
		core = append(core, &w.Nodes[n])
	}
	core = append(core, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "c-1"}})
	for n := range w.VMs {
		kv = append(kv, &w.VMs[n])
	}
	for n := range w.VMIs {
		kv = append(kv, &w.VMIs[n])
	}
	for n := range w.Migrations {
		kv = append(kv, &w.Migrations[n])
	}
	c := cluster{core: corefake.NewClientset(core...), kubevirt: kubevirtfake.NewSimpleClientset(kv...)}
	c.Cluster = &audit.Cluster{
		Core: c.core, KubeVirt: c.kubevirt, Clock: clock{},
		Ledger:   &ledger.Store{ConfigMaps: c.core.CoreV1().ConfigMaps(ledger.DefaultNamespace), Namespace: ledger.DefaultNamespace, Clock: clock{}},
		Profiles: func(context.Context) (*profile.Cluster, error) { return &profile.Cluster{}, nil },
	}
	return c
}

// configMaps writes the world's ledger as it stands in a cluster.
func (w *world) configMaps(t *testing.T) []*corev1.ConfigMap {
	t.Helper()
	meta := func(name, kind, network string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: ledger.DefaultNamespace, Name: name,
			Labels: map[string]string{ledger.LabelKind: kind, ledger.LabelNetwork: network}, Annotations: map[string]string{ledger.AnnotationFormat: ledger.Format}}
	}
	blocks := map[netip.Prefix]*corev1.ConfigMap{}
	var all []*corev1.ConfigMap
	for _, e := range w.Ledger.Entries {
		prefix := address.BlockOf(e.Addr)
		if blocks[prefix] == nil {
			blocks[prefix] = &corev1.ConfigMap{ObjectMeta: meta("vmip-block-default-"+address.BlockKey(prefix), ledger.KindBlock, "default"), Data: map[string]string{}}
			all = append(all, blocks[prefix])
		}
		if !e.Unindexed {
			blocks[prefix].Labels[e.Row.Owner().Label()] = ""
		}
		blocks[prefix].Data[address.Key(e.Addr)] = fmt.Sprintf(`{"vm":%q,"uid":%q,"interface":%q,"state":%q,"op":%q,"since":%q}`,
			e.Row.VM, e.Row.UID, e.Row.Interface, e.Row.State, e.Row.Op, e.Row.Since.Format(time.RFC3339))
	}
	return all
}

func (c cluster) forbid(verb, resource, namespace string) {
	deny := func(a clienttesting.Action) (bool, runtime.Object, error) {
		if namespace != "*" && a.GetNamespace() != namespace {
			return false, nil, nil
		}
		gr := schema.GroupResource{Group: a.GetResource().Group, Resource: resource}
		return true, nil, apierrors.NewForbidden(gr, "", fmt.Errorf("user x cannot %s resource %q", verb, resource))
	}
	c.core.PrependReactor(verb, resource, deny)
	c.kubevirt.PrependReactor(verb, resource, deny)
}

func codes(r *audit.Report) []string {
	var list []string
	for _, f := range r.Findings {
		list = append(list, string(f.Code)+" "+f.Subject.String())
	}
	return list
}

func broken() *world {
	w := newWorld()
	delete(w.reserved("tenant-a/web", "198.51.100.21").Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
	w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
	w.row("198.51.100.40", "tenant-c/gone", "u-gone")
	w.Ledger.Pools, w.Ledger.Networks = nil, nil
	return w
}

func TestCheckFindsInACluster(t *testing.T) {
	c := broken().cluster(t)
	r, s, err := c.Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"TemplateMissing tenant-a/web", "OutsidePool tenant-a/web", "OutsidePool tenant-b/mail", "RestartPending tenant-b/mail", "OrphanReservation tenant-c/gone", "OutsidePool tenant-c/gone"}
	if got := codes(r); !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
	if r.VMs != 2 || s.Cluster != "c-1" {
		t.Errorf("%d VMs in cluster %q", r.VMs, s.Cluster)
	}
}

func TestCheckReadsTheLedgerFirst(t *testing.T) {
	c := broken().cluster(t)
	if _, err := c.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range c.core.Actions() {
		if a.GetVerb() == "list" {
			if a.GetResource().Resource != "configmaps" || a.GetNamespace() != ledger.DefaultNamespace {
				t.Errorf("the first list was of %s", a.GetResource().Resource)
			}
			return
		}
	}
}

func TestCheckListsEachKindOnce(t *testing.T) {
	w := newWorld()
	w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
	c := w.cluster(t)
	if _, err := c.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, a := range append(c.core.Actions(), c.kubevirt.Actions()...) {
		if a.GetVerb() != "list" && a.GetVerb() != "get" {
			t.Errorf("audit did %s %s", a.GetVerb(), a.GetResource().Resource)
		}
		if l, ok := a.(clienttesting.ListAction); ok {
			seen[a.GetResource().Resource+" "+a.GetNamespace()+" "+l.GetListRestrictions().Labels.String()]++
		}
	}
	for what, n := range seen {
		if n != 1 {
			t.Errorf("%s was listed %d times", what, n)
		}
	}
}

// What comes right while audit looks is no finding.
func TestCheckReadsAgain(t *testing.T) {
	c := broken().cluster(t)
	first := true
	c.core.PrependReactor("list", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() != ledger.DefaultNamespace {
			return false, nil, nil
		}
		if first {
			first = false
			return false, nil, nil
		}
		return true, &corev1.ConfigMapList{}, nil
	})
	r, _, err := c.Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := codes(r); slices.ContainsFunc(got, func(s string) bool { return !strings.HasPrefix(s, "RestartPending") }) {
		t.Errorf("findings %q although the rows are gone", got)
	}

	w := newWorld()
	w.row("198.51.100.40", "tenant-c/back", "u-back")
	c = w.cluster(t)
	back := *newWorld().vm("tenant-c/back")
	listed := false
	c.kubevirt.PrependReactor("list", "virtualmachineinstances", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !listed {
			listed = true // created right after the first lists
			if err := c.kubevirt.Tracker().Add(&back); err != nil {
				t.Error(err)
			}
		}
		return false, nil, nil
	})
	c.kubevirt.PrependReactor("list", "virtualmachines", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, emptyVMs(), nil
	})
	if r, _, err = c.Check(t.Context(), audit.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := codes(r); slices.Contains(got, "OrphanReservation tenant-c/back") {
		t.Errorf("findings %q although the machine exists", got)
	}
}

// What shows at the second look only may pass as well: the next audit sees it.
func TestCheckReportsWhatItSawTwice(t *testing.T) {
	c := broken().cluster(t)
	later := newWorld()
	later.row("198.51.100.40", "tenant-c/gone", "u-gone")
	later.row("198.51.100.41", "tenant-c/gone-too", "u-gone-too")
	looks := 0
	c.core.PrependReactor("list", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() != ledger.DefaultNamespace {
			return false, nil, nil
		}
		looks++
		if looks == 1 {
			return false, nil, nil
		}
		list := &corev1.ConfigMapList{}
		for _, cm := range later.configMaps(t) {
			list.Items = append(list.Items, *cm)
		}
		return true, list, nil
	})
	r, _, err := c.Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := codes(r)
	if !slices.Contains(got, "OrphanReservation tenant-c/gone") || slices.Contains(got, "OrphanReservation tenant-c/gone-too") {
		t.Errorf("findings %q", got)
	}
}

// A finding whose objects can't be read again is neither kept nor dropped silently.
func TestCheckSaysWhatItCouldNotConfirm(t *testing.T) {
	w := newWorld()
	w.row("198.51.100.40", "tenant-c/gone", "u-gone")
	c := w.cluster(t)
	c.kubevirt.PrependReactor("get", "virtualmachines", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTimeoutError("slow", 1)
	})
	r, _, err := c.Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(codes(r), "OrphanReservation tenant-c/gone") || !skips(r, audit.OrphanReservation, "could not be confirmed") {
		t.Errorf("findings %q, skipped %v", codes(r), r.Skipped)
	}
}

func TestCheckReadsAllAgainWhereMuchIsWrong(t *testing.T) {
	w := newWorld()
	for n := range 60 {
		w.row(fmt.Sprintf("198.51.100.%d", 20+n), fmt.Sprintf("tenant-a/gone-%d", n), types.UID(fmt.Sprint("u", n)))
	}
	c := w.cluster(t)
	r, _, err := c.Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	orphans := 0
	for _, f := range r.Findings {
		if f.Code == audit.OrphanReservation {
			orphans++
		}
	}
	gets := 0
	for _, a := range c.kubevirt.Actions() {
		if a.GetVerb() == "get" {
			gets++
		}
	}
	if orphans != 60 || gets > 0 {
		t.Errorf("%d orphans, %d reads one by one", orphans, gets)
	}
}

func TestLoadFailsWithoutEssentials(t *testing.T) {
	for _, resource := range []string{"configmaps", "virtualmachines"} {
		c := broken().cluster(t)
		c.forbid("list", resource, "*")
		if _, err := c.Load(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("%s: error %v", resource, err)
		}
	}
}

func TestGapsAreReported(t *testing.T) {
	for resource, code := range map[string]audit.Code{
		"pods":                             audit.DuplicateAddress,
		"nodes":                            audit.NodeUnreachable,
		"virtualmachineinstances":          audit.RestartPending,
		"virtualmachineinstancemigrations": audit.SourcePodLingers,
		"virtualmachinerestores":           audit.OrphanReservation,
	} {
		t.Run(resource, func(t *testing.T) {
			c := broken().cluster(t)
			c.forbid("list", resource, "*")
			r, _, err := c.Check(t.Context(), audit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !skips(r, code, resource) {
				t.Errorf("skipped %v, want %s", r.Skipped, code)
			}
			if slices.ContainsFunc(r.Findings, func(f audit.Finding) bool { return f.Code == code }) {
				t.Errorf("%s was found without %s", code, resource)
			}
		})
	}
}

// A KubeVirt without snapshots restores nothing.
func TestClusterWithoutRestores(t *testing.T) {
	c := broken().cluster(t)
	c.kubevirt.PrependReactor("list", "virtualmachinerestores", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "virtualmachinerestores"}, "")
	})
	r, _, err := c.Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(codes(r), "OrphanReservation tenant-c/gone") {
		t.Errorf("findings %q, skipped %v", codes(r), r.Skipped)
	}
}

func TestMachinesBeingRestored(t *testing.T) {
	restore := func(complete bool) *snapshotv1.VirtualMachineRestore {
		return &snapshotv1.VirtualMachineRestore{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-c", Name: "r"},
			Spec:       snapshotv1.VirtualMachineRestoreSpec{Target: corev1.TypedLocalObjectReference{Kind: "VirtualMachine", Name: "gone"}},
			Status:     &snapshotv1.VirtualMachineRestoreStatus{Complete: &complete},
		}
	}
	for _, complete := range []bool{true, false} {
		c := broken().cluster(t)
		if err := c.kubevirt.Tracker().Add(restore(complete)); err != nil {
			t.Fatal(err)
		}
		r, _, err := c.Check(t.Context(), audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(codes(r), "OrphanReservation tenant-c/gone"); got != complete {
			t.Errorf("restore complete %t: findings %q", complete, codes(r))
		}
	}
}

func TestInterruptedAudit(t *testing.T) {
	cause := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	c := broken().cluster(t)
	c.core.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel(cause)
		return true, nil, ctx.Err()
	})
	if _, _, err := c.Check(ctx, audit.Options{}); !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
}

func TestOneNamespace(t *testing.T) {
	w := newWorld()
	w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
	w.start(w.vm("tenant-b/web"), "n2", "198.51.100.20")
	w.before("tenant-b/mail", "198.51.100.77", "198.51.100.30")
	w.row("198.51.100.40", "tenant-c/gone", "u-gone")
	w.Ledger.Pools, w.Ledger.Networks = nil, nil

	t.Run("sees who else has its addresses", func(t *testing.T) {
		c := w.cluster(t)
		c.Namespace = "tenant-a"
		r, _, err := c.Check(t.Context(), audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := codes(r), []string{"OutsidePool tenant-a/db-1", "DuplicateAddress tenant-b/web"}; !slices.Equal(sorted(got), sorted(want)) {
			t.Errorf("findings %q, want %q", got, want)
		}
		if r.VMs != 1 {
			t.Errorf("%d VMs judged", r.VMs)
		}
	})
	t.Run("says what it may not see", func(t *testing.T) {
		c := w.cluster(t)
		c.Namespace = "tenant-a"
		for _, resource := range []string{"pods", "virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations", "virtualmachinerestores"} {
			c.forbid("list", resource, "")
		}
		r, _, err := c.Check(t.Context(), audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := codes(r), []string{"OutsidePool tenant-a/db-1"}; !slices.Equal(got, want) {
			t.Errorf("findings %q, want %q", got, want)
		}
		if !skips(r, audit.DuplicateAddress, "pods outside namespace tenant-a") || skips(r, audit.RestartPending, "") {
			t.Errorf("skipped %v", r.Skipped)
		}
	})
}

func TestNoLedger(t *testing.T) {
	w := newWorld()
	w.Ledger = &ledger.Snapshot{}
	w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.5")
	w.start(w.vm("tenant-b/web"), "n2", "203.0.113.5")
	r, _, err := w.cluster(t).Check(t.Context(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := codes(r), []string{"DuplicateAddress tenant-a/db-1"}; !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
	if !skips(r, audit.TemplateMissing, "there is no ledger in namespace vmip-system") {
		t.Errorf("skipped %v", r.Skipped)
	}
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }
