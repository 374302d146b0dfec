package audit

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// rereadMost is the number of machines up to which they are read again one by one; above it,
// listing everything again costs less.
const rereadMost = 50

// reread returns the snapshot with everything that the findings depend on read again, the ledger
// first as before. Machines that can't be read again are returned with the reason: findings about
// them can't be confirmed.
func (c *Cluster) reread(ctx context.Context, old *Snapshot, findings []Finding) (*Snapshot, map[machine.Ref]error, error) {
	machines, pods, nodes := involved(findings)
	if len(machines)+len(pods)+len(nodes) > rereadMost {
		s, err := c.Load(ctx)
		return s, nil, err
	}
	s := *old
	var err error
	if s.Ledger, err = c.Ledger.Snapshot(ctx); err != nil {
		return nil, nil, err
	}
	f := &fresh{machines: machines, pods: pods, nodes: nodes, unread: map[machine.Ref]error{}}
	for _, ref := range machines {
		if (old.Gaps[VMs].Partial || old.Gaps[VMIs].Partial) && ref.Namespace != c.Namespace {
			continue // it was not read the first time either
		}
		if err := f.machine(ctx, c, ref); err != nil {
			f.unread[ref] = err
		}
	}
	for _, ref := range pods {
		switch p, err := c.Core.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}); {
		case err == nil:
			f.addPod(*p)
		case !apierrors.IsNotFound(err):
			f.unread[ref] = fmt.Errorf("pod %s: %w", ref, err)
		}
	}
	for _, name := range nodes {
		switch node, err := c.Core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); {
		case err == nil:
			f.Nodes = append(f.Nodes, *node)
		case !apierrors.IsNotFound(err):
			return nil, nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	f.into(&s)
	s.Now = c.Clock.Now()
	return &s, f.unread, nil
}

// involved are the objects that findings depend on, each once.
func involved(findings []Finding) (machines, pods []machine.Ref, nodes []string) {
	add := func(list *[]machine.Ref, refs []machine.Ref) {
		for _, r := range refs {
			if !slices.Contains(*list, r) {
				*list = append(*list, r)
			}
		}
	}
	for _, f := range findings {
		add(&machines, f.machines)
		add(&pods, f.pods)
		for _, n := range f.nodes {
			if !slices.Contains(nodes, n) {
				nodes = append(nodes, n)
			}
		}
		if len(machines)+len(pods)+len(nodes) > rereadMost {
			break // enough to know that all is listed again
		}
	}
	return machines, pods, nodes
}

// fresh are objects that were read again.
type fresh struct {
	Snapshot
	machines, pods []machine.Ref
	nodes          []string
	unread         map[machine.Ref]error
}

// machine reads a virtual machine, its instance, and the instance's pods and migrations. Labels
// only narrow the lists: the rules go by owner references.
func (f *fresh) machine(ctx context.Context, c *Cluster, ref machine.Ref) error {
	kv := c.KubeVirt.KubevirtV1()
	vm, err := kv.VirtualMachines(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		f.VMs = append(f.VMs, *vm)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("virtualmachine %s: %w", ref, err)
	}
	vmi, err := kv.VirtualMachineInstances(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("virtualmachineinstance %s: %w", ref, err)
	}
	f.VMIs = append(f.VMIs, *vmi)
	pods, err := c.Core.CoreV1().Pods(ref.Namespace).List(ctx, metav1.ListOptions{LabelSelector: kubevirtv1.CreatedByLabel + "=" + string(vmi.UID)})
	if err != nil {
		return fmt.Errorf("pods of virtualmachineinstance %s: %w", ref, err)
	}
	for _, p := range pods.Items {
		f.addPod(p)
	}
	migrations, err := kv.VirtualMachineInstanceMigrations(ref.Namespace).List(ctx, metav1.ListOptions{LabelSelector: kubevirtv1.MigrationSelectorLabel + "=" + ref.Name})
	if err != nil {
		return fmt.Errorf("migrations of virtualmachineinstance %s: %w", ref, err)
	}
	f.Migrations = append(f.Migrations, migrations.Items...)
	return nil
}

func (f *fresh) addPod(p corev1.Pod) {
	if !slices.ContainsFunc(f.Pods, func(q corev1.Pod) bool { return podRef(&q) == podRef(&p) }) {
		trimPod(&p)
		f.Pods = append(f.Pods, p)
	}
}

// into replaces in a snapshot what was read again. Objects of machines that could not be read
// stay as they were.
func (f *fresh) into(s *Snapshot) {
	again := func(namespace, name string) bool {
		ref := machine.Ref{Namespace: namespace, Name: name}
		return slices.Contains(f.machines, ref) && f.unread[ref] == nil
	}
	s.VMs = append(without(s.VMs, func(o *kubevirtv1.VirtualMachine) bool { return again(o.Namespace, o.Name) }), f.VMs...)
	s.VMIs = append(without(s.VMIs, func(o *kubevirtv1.VirtualMachineInstance) bool { return again(o.Namespace, o.Name) }), f.VMIs...)
	s.Migrations = append(without(s.Migrations, func(o *kubevirtv1.VirtualMachineInstanceMigration) bool {
		return again(o.Namespace, o.Spec.VMIName)
	}), f.Migrations...)
	s.Pods = append(without(s.Pods, func(o *corev1.Pod) bool {
		if slices.Contains(f.pods, podRef(o)) {
			return f.unread[podRef(o)] == nil
		}
		owner := metav1.GetControllerOf(o)
		return owner != nil && owner.Kind == "VirtualMachineInstance" && again(o.Namespace, owner.Name)
	}), f.Pods...)
	s.Nodes = append(without(s.Nodes, func(o *corev1.Node) bool { return slices.Contains(f.nodes, o.Name) }), f.Nodes...)
}

// without returns a new slice: the old snapshot is not changed.
func without[T any](all []T, drop func(*T) bool) []T {
	kept := make([]T, 0, len(all))
	for n := range all {
		if !drop(&all[n]) {
			kept = append(kept, all[n])
		}
	}
	return kept
}

// confirm keeps of the second report what the first one had too. What could not be read again is
// neither confirmed nor refuted, and said to be so.
func confirm(first, second *Report, unread map[machine.Ref]error) *Report {
	before := map[identity]bool{}
	for _, f := range first.Findings {
		before[f.identity()] = true
	}
	kept := second.Findings[:0]
	for _, f := range second.Findings {
		if !before[f.identity()] {
			continue // it may be one that passes: the next audit sees it
		}
		doubt := slices.IndexFunc(slices.Concat(f.machines, f.pods), func(r machine.Ref) bool { return unread[r] != nil })
		if doubt >= 0 {
			ref := slices.Concat(f.machines, f.pods)[doubt]
			second.skip([]Code{f.Code}, fmt.Sprintf("%s of %s could not be confirmed: %v", f.Code, f.Subject, unread[ref]))
			continue
		}
		kept = append(kept, f)
	}
	second.Findings = kept
	second.sort()
	return second
}
