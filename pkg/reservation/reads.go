package reservation

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// fewMachines is how many machines are read one by one; a larger batch is read in lists.
const fewMachines = 8

// reads is what a batch has read at its start. A decision may be based on it: whatever is written
// later carries a resourceVersion, or is checked again under one. nil reads nothing ahead.
type reads struct {
	vms   map[machine.Ref]*kubevirtv1.VirtualMachine
	vmis  map[machine.Ref]*kubevirtv1.VirtualMachineInstance
	rows  map[string][]ledger.Entry
	pools []ledger.Pool
	pods  map[netip.Addr][]corev1.Pod
	// launchers are the pods of machines, by the machine's name.
	launchers map[machine.Ref][]corev1.Pod
	// cluster asks the network plugins for their records in lists too.
	cluster *profile.Cluster
	// mayPods is false where the caller may not list pods.
	mayPods bool
}

// readAhead reads a large batch in lists. Where one of them fails nothing is read ahead: the
// single requests then tell what is wrong, and with which machine.
func (s *Service) readAhead(ctx context.Context, reqs []Request) *reads {
	if len(reqs) <= fewMachines {
		return nil
	}
	r := &reads{vms: map[machine.Ref]*kubevirtv1.VirtualMachine{}, vmis: map[machine.Ref]*kubevirtv1.VirtualMachineInstance{}, rows: map[string][]ledger.Entry{}, pods: map[netip.Addr][]corev1.Pod{}, launchers: map[machine.Ref][]corev1.Pod{}, mayPods: true}
	namespaces := map[string]bool{}
	for _, req := range reqs {
		namespaces[req.VM.Namespace] = true
	}
	for ns := range namespaces {
		if r.listMachines(ctx, s, ns) != nil {
			return nil
		}
	}
	snap, err := s.Ledger.Snapshot(ctx)
	if err != nil || len(snap.Damaged) > 0 {
		return nil
	}
	for _, e := range snap.Entries {
		if e.Err != nil {
			return nil // whose it is has to be asked with the index
		}
		if e.Row.State != ledger.Foreign {
			label := e.Row.Owner().Label()
			r.rows[label] = append(r.rows[label], e)
		}
	}
	r.pools = snap.Pools
	if r.listPods(ctx, s) != nil {
		return nil
	}
	cluster, err := s.profiles(ctx)
	if err != nil {
		return nil
	}
	r.cluster = cluster.Batch()
	return r
}

func (r *reads) listMachines(ctx context.Context, s *Service, ns string) error {
	vms := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return s.KubeVirt.KubevirtV1().VirtualMachines(ns).List(ctx, opts)
	})
	err := vms.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		vm := o.(*kubevirtv1.VirtualMachine)
		r.vms[machine.RefOf(vm)] = vm
		return nil
	})
	if err != nil {
		return err
	}
	vmis := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return s.KubeVirt.KubevirtV1().VirtualMachineInstances(ns).List(ctx, opts)
	})
	return vmis.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		vmi := o.(*kubevirtv1.VirtualMachineInstance)
		r.vmis[machine.Ref{Namespace: vmi.Namespace, Name: vmi.Name}] = vmi
		return nil
	})
}

func (r *reads) listPods(ctx context.Context, s *Service) error {
	pods := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return s.Core.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
	})
	err := pods.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		p := o.(*corev1.Pod)
		if machine.Finished(p) {
			return nil
		}
		if a, err := address.Parse(p.Status.PodIP); err == nil {
			r.pods[a] = append(r.pods[a], *p)
		}
		if p.Labels[kubevirtv1.AppLabel] == launcher {
			ref := machine.Ref{Namespace: p.Namespace, Name: p.Annotations[kubevirtv1.DomainAnnotation]}
			r.launchers[ref] = append(r.launchers[ref], *p)
		}
		return nil
	})
	if apierrors.IsForbidden(err) {
		r.mayPods = false
		return nil
	}
	return err
}

// firstVM is the VM that a request begins with.
func (s *Service) firstVM(ctx context.Context, in *intent) (*kubevirtv1.VirtualMachine, error) {
	if in.reads != nil {
		if vm := in.reads.vms[in.ref]; vm != nil {
			return vm, nil
		}
	}
	return s.getVM(ctx, in.ref) // one that the list lacks gets its own answer
}

func (s *Service) firstVMI(ctx context.Context, in *intent) (*kubevirtv1.VirtualMachineInstance, error) {
	if in.reads != nil {
		return in.reads.vmis[in.ref], nil
	}
	return s.getVMI(ctx, in.ref)
}

func (s *Service) firstRows(ctx context.Context, in *intent) ([]ledger.Entry, error) {
	if in.reads != nil {
		return in.reads.rows[in.owner.Label()], nil
	}
	return s.Ledger.RowsOf(ctx, in.owner)
}

func (s *Service) firstPodsOf(ctx context.Context, in *intent) ([]corev1.Pod, error) {
	if in.reads != nil && in.reads.mayPods {
		return in.reads.launchers[in.ref], nil
	}
	return s.podsOf(ctx, in.ref)
}

func (s *Service) firstProfiles(ctx context.Context, in *intent) (*profile.Cluster, error) {
	if in.reads != nil {
		return in.reads.cluster, nil
	}
	return s.profiles(ctx)
}

// pool is the pool of a name.
func (s *Service) pool(ctx context.Context, r *reads, name string) (ledger.Pool, error) {
	if r != nil {
		for _, p := range r.pools {
			if p.Name == name {
				return p, nil
			}
		}
	}
	p, err := s.Ledger.Pool(ctx, name)
	if err != nil {
		return ledger.Pool{}, err
	}
	return *p, nil
}

func (s *Service) pools(ctx context.Context, r *reads) ([]ledger.Pool, error) {
	if r != nil {
		return r.pools, nil
	}
	return s.Ledger.Pools(ctx)
}
