package audit

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	kubevirtv1 "kubevirt.io/api/core/v1"
	snapshotv1 "kubevirt.io/api/snapshot/v1beta1"
	"kubevirt.io/client-go/kubevirt"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Cluster is where snapshots are read from. Every kind of object is listed once, in pages.
type Cluster struct {
	Core     kubernetes.Interface
	KubeVirt kubevirt.Interface
	Ledger   *ledger.Store
	Clock    ledger.Clock
	// Profiles detects the network plugins.
	Profiles func(context.Context) (*profile.Cluster, error)
	// Namespace bounds the virtual machines that are judged; "" judges all. Objects of all
	// namespaces are read all the same where that is allowed: who else has an address is to be
	// found in any of them.
	Namespace string
	// Settle is how long Check waits before it looks again at what looks bad: reports of addresses
	// flap for a moment (KubeVirt issue 12697).
	Settle time.Duration
	// claims lets Load read what only claims of others are found in.
	claims bool
}

// Load reads a snapshot: the ledger first, then everything else at once. It fails where the ledger
// or the virtual machines can't be read, without which there is nothing to judge; what else can't
// be read is a gap.
func (c *Cluster) Load(ctx context.Context) (*Snapshot, error) {
	rows, err := c.Ledger.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	l := &loader{Cluster: c, snapshot: &Snapshot{
		Ledger: rows, LedgerNamespace: c.Ledger.Namespace, Gaps: map[Resource]Gap{},
	}}
	s := l.snapshot
	var found *profile.Cluster
	var detected error
	var wg sync.WaitGroup
	kv := c.KubeVirt.KubevirtV1()
	wg.Go(func() {
		list(ctx, l, VMs, &s.VMs, trimVM, func(ns string, o metav1.ListOptions) (runtime.Object, error) {
			return kv.VirtualMachines(ns).List(ctx, o)
		})
	})
	wg.Go(func() {
		list(ctx, l, VMIs, &s.VMIs, trimVMI, func(ns string, o metav1.ListOptions) (runtime.Object, error) {
			return kv.VirtualMachineInstances(ns).List(ctx, o)
		})
	})
	wg.Go(func() {
		list(ctx, l, Migrations, &s.Migrations, nil, func(ns string, o metav1.ListOptions) (runtime.Object, error) {
			return kv.VirtualMachineInstanceMigrations(ns).List(ctx, o)
		})
	})
	wg.Go(func() {
		list(ctx, l, Pods, &s.Pods, trimPod, func(ns string, o metav1.ListOptions) (runtime.Object, error) {
			return c.Core.CoreV1().Pods(ns).List(ctx, o)
		})
	})
	wg.Go(func() { l.restores(ctx) })
	if c.claims {
		wg.Go(func() { l.services(ctx) })
	}
	wg.Go(func() { l.others(ctx) })
	wg.Go(func() { found, detected = c.Profiles(ctx) })
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if l.essential != nil {
		return nil, l.essential
	}
	if detected != nil {
		l.gap(Plugins, Gap{Partial: true, Reason: fmt.Sprintf("the network plugins can't be found out: %v", detected)})
		s.Networks = Unestablished()
	} else if err := l.networks(ctx, found); err != nil {
		return nil, err
	} else if c.claims {
		if err := l.records(ctx, found); err != nil {
			return nil, err
		}
	}
	if len(rows.Pools)+len(rows.Entries)+len(rows.Networks)+len(rows.Damaged) == 0 {
		l.gap(Ledger, Gap{Reason: noLedger(c.Ledger.Namespace, s.OtherLedgers)})
	}
	s.Now = c.Clock.Now()
	return s, nil
}

func noLedger(namespace string, others []string) string {
	text := fmt.Sprintf("there is no ledger in namespace %s", namespace)
	if len(others) > 0 {
		return fmt.Sprintf("%s, but there is one in %s: name it with --ledger-namespace", text, others[0])
	}
	return text + ": nothing is reserved there"
}

// loader is one reading of a snapshot.
type loader struct {
	*Cluster
	mu        sync.Mutex
	snapshot  *Snapshot
	essential error
}

func (l *loader) gap(r Resource, g Gap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snapshot.Gaps[r] = g
}

// list reads one kind of all namespaces, or of the audited one where only that is allowed. T is an
// element, P its pointer.
func list[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, l *loader, r Resource, into *[]T, trim func(P), page func(namespace string, o metav1.ListOptions) (runtime.Object, error)) {
	read := func(namespace string) error {
		*into = nil
		p := pager.New(func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) { return page(namespace, o) })
		// resourceVersion stays unset: what a cache remembers is no proof that something is gone.
		return p.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
			item, ok := o.(P)
			if !ok {
				return fmt.Errorf("a list of %s holds a %T", r, o)
			}
			if trim != nil {
				trim(item)
			}
			*into = append(*into, *item)
			return nil
		})
	}
	err := read(metav1.NamespaceAll)
	if apierrors.IsForbidden(err) && l.Namespace != metav1.NamespaceAll {
		everywhere := err
		if err = read(l.Namespace); err == nil {
			l.gap(r, Gap{Partial: true, Reason: fmt.Sprintf("%s outside namespace %s can't be listed: %v", r, l.Namespace, everywhere)})
			return
		}
	}
	switch {
	case err == nil:
	case r == Restores && apierrors.IsNotFound(err):
		*into = nil // a KubeVirt without snapshots restores nothing
	default:
		*into = nil
		err = fmt.Errorf("%s can't be listed: %w", r, err)
		l.gap(r, Gap{Reason: err.Error()})
		l.fail(r, err)
	}
}

// fail ends the audit where the resource is one without which there is nothing to judge.
func (l *loader) fail(r Resource, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r == VMs {
		l.essential = err
	}
}

// restores notes the machines that a restore is to bring back.
func (l *loader) restores(ctx context.Context) {
	var all []snapshotv1.VirtualMachineRestore
	list(ctx, l, Restores, &all, nil, func(ns string, o metav1.ListOptions) (runtime.Object, error) {
		return l.KubeVirt.SnapshotV1beta1().VirtualMachineRestores(ns).List(ctx, o)
	})
	l.snapshot.Restoring = restoring(all)
}

func restoring(all []snapshotv1.VirtualMachineRestore) (refs []machine.Ref) {
	for _, r := range all {
		if r.Status == nil || r.Status.Complete == nil || !*r.Status.Complete {
			refs = append(refs, machine.Ref{Namespace: r.Namespace, Name: r.Spec.Target.Name})
		}
	}
	return refs
}

// others reads what there is one of in a cluster, and what few may list.
func (l *loader) others(ctx context.Context) {
	s := l.snapshot
	if ns, err := l.Core.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
		s.Cluster = ns.UID
	}
	nodes, err := l.Core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		l.gap(Nodes, Gap{Reason: fmt.Sprintf("nodes can't be listed: %v", err)})
	} else {
		s.Nodes = nodes.Items
	}
	registries, err := l.Core.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: ledger.LabelKind + "=" + ledger.KindNetwork})
	if err != nil {
		l.gap(Ledgers, Gap{Partial: true, Reason: fmt.Sprintf("ledgers in other namespaces can't be looked for: %v", err)})
		return
	}
	for _, cm := range registries.Items {
		s.addLedger(cm.Namespace)
	}
}

func (s *Snapshot) addLedger(namespace string) {
	if namespace == s.LedgerNamespace || namespace == "" { // no object of a cluster has none
		return
	}
	for _, known := range s.OtherLedgers {
		if known == namespace {
			return
		}
	}
	s.OtherLedgers = append(s.OtherLedgers, namespace)
}

func (l *loader) networks(ctx context.Context, found *profile.Cluster) error {
	n, why, err := NetworksOf(ctx, found, l.snapshot)
	if err != nil {
		return err
	}
	l.snapshot.Networks = n
	if why != "" {
		l.gap(Plugins, Gap{Partial: true, Reason: "the network plugin of the pod network is not established: " + why})
	}
	return nil
}

// What the rules don't look at is dropped on arrival: 50,000 whole pods don't fit in a laptop.

func trimVM(vm *kubevirtv1.VirtualMachine) {
	for n := range vm.ManagedFields {
		vm.ManagedFields[n].FieldsV1 = nil
	}
}

func trimVMI(vmi *kubevirtv1.VirtualMachineInstance) { vmi.ManagedFields = nil }

func trimPod(p *corev1.Pod) {
	p.ManagedFields = nil
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
	containers := p.Status.ContainerStatuses
	if o := metav1.GetControllerOf(p); o == nil || o.Kind != "VirtualMachineInstance" {
		containers = nil
	}
	for n := range containers {
		containers[n] = corev1.ContainerStatus{Name: containers[n].Name, State: containers[n].State}
	}
	p.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs, ContainerStatuses: containers}
}

// Check audits the cluster: it takes a snapshot, judges it, and reads again what looks bad. A
// finding is kept only where it still holds.
func (c *Cluster) Check(ctx context.Context, opts Options) (*Report, *Snapshot, error) {
	opts.Namespace = c.Namespace
	s, err := c.Load(ctx)
	if err != nil {
		return nil, nil, err
	}
	r := Run(s, opts)
	if len(r.Findings) == 0 {
		return r, s, nil
	}
	select {
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-time.After(c.Settle):
	}
	again, unconfirmed, err := c.reread(ctx, s, r.Findings)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the findings' objects again: %w", err)
	}
	return confirm(r, Run(again, opts), unconfirmed), again, nil
}
