package reservation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"
	kubevirtv1 "kubevirt.io/api/core/v1"
	snapshotv1 "kubevirt.io/api/snapshot/v1beta1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Todo is what a sweep does with a row.
type Todo string

// What a sweep does. The words are printed.
const (
	Keep     Todo = ""
	Complete Todo = "completed" // a reserve that died goes forward
	Orphan   Todo = "released"  // the machine is gone: its address cools down
	MoveOn   Todo = "moved on"  // a row on the way out that nothing uses any more
	Free     Todo = "freed"     // a cool-down that is over
)

// SweepOptions limit a sweep.
type SweepOptions struct {
	// Grace is how old a row must be before it counts as left behind: a command may be at work.
	Grace time.Duration
	// Orphans says since when a machine is known to be gone, and whether that is long enough.
	Orphans func(ledger.Entry) bool
}

// Swept is what a sweep did with one row.
type Swept struct {
	VM        machine.Ref
	Interface string
	Addr      netip.Addr
	Did       Todo
	Err       error
}

// Sweep moves on what commands and machines have left behind in the ledger: reserves and releases
// that died, addresses of machines that are gone, cool-downs that are over. It looks at the whole
// ledger, and does nothing at all where the cluster can't be read whole. Every step is one that a
// command might take too, so that any number of sweeps and commands may run at once.
func (s *Service) Sweep(ctx context.Context, o SweepOptions) ([]Swept, error) {
	snap, err := s.Ledger.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	vms, err := s.listVMs(ctx)
	if err != nil {
		return nil, fmt.Errorf("virtualmachines: %w; nothing was changed", err)
	}
	foreign, err := s.foreignNetworks(ctx, snap)
	if err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	now := s.Ledger.Clock.Now()
	var work []ledger.Entry
	for _, e := range snap.Entries {
		if foreign[e.Network] != "" {
			continue
		}
		if sweepable(e, vms[refOf(e)], now, o.Grace) != Keep {
			work = append(work, e)
		}
	}
	for _, network := range slices.Sorted(maps.Keys(foreign)) {
		s.warn("%s", foreign[network])
	}
	return each(work, func(_ int, e ledger.Entry) Swept {
		w := Swept{VM: refOf(e), Interface: e.Row.Interface, Addr: e.Addr}
		w.Did, w.Err = s.sweep(ctx, e, sweepable(e, vms[refOf(e)], now, o.Grace), o)
		if ledger.IsChanged(w.Err) || errors.Is(w.Err, errLost) {
			w.Did, w.Err = Keep, nil // somebody else is at it
		}
		return w
	}), nil
}

func refOf(e ledger.Entry) machine.Ref {
	o := e.Row.Owner()
	return machine.Ref{Namespace: o.Namespace, Name: o.Name}
}

// sweepable decides, by what was listed, which rows to look at more closely. It is pure; vm is nil
// where the list has no machine of the row's name.
func sweepable(e ledger.Entry, vm *kubevirtv1.VirtualMachine, now time.Time, grace time.Duration) Todo {
	r := e.Row
	switch {
	case e.Err != nil || r.State == ledger.Foreign:
		return Keep
	case r.State == ledger.Held:
		if r.Until.Before(now) {
			return Free
		}
		return Keep
	case now.Sub(r.Since) < grace:
		return Keep
	case r.State == ledger.Leaving || r.State == ledger.Releasing:
		return MoveOn
	case r.UID == "":
		return Keep // written before its machine, which may come at any time
	case vm == nil:
		return Orphan
	case vm.DeletionTimestamp != nil:
		return Keep
	}
	said, err := ledger.ReservationsOf(vm.Annotations)
	if vm.UID != r.UID {
		if err != nil || said.Names(r.Interface, e.Addr) {
			return Keep // made again from its manifest: a person decides (audit: RecreatedVM)
		}
		return Orphan
	}
	if err != nil || said != nil && said.UID == vm.UID && said.Names(r.Interface, e.Addr) {
		return Keep
	}
	return Complete
}

func (s *Service) sweep(ctx context.Context, e ledger.Entry, todo Todo, o SweepOptions) (Todo, error) {
	ref := refOf(e)
	switch todo {
	case Free:
		if gone, err := s.gone(ctx, e); err != nil || !gone {
			return Keep, err
		}
		return Free, s.Ledger.Transition(ctx, e, nil)
	case MoveOn:
		moved, err := s.moveOn(ctx, ref, []ledger.Entry{e})
		if !moved {
			return Keep, err
		}
		return MoveOn, err
	case Complete:
		out := s.Reserve(ctx, []Request{{VM: ref, Interface: e.Row.Interface}}, nil)
		return Complete, out[0].Err
	case Orphan:
		if o.Orphans != nil && !o.Orphans(e) {
			return Keep, nil
		}
		gone, err := s.provenGone(ctx, e)
		if err != nil || !gone {
			return Keep, err
		}
		_, err = s.takeBack(ctx, ref, e)
		return Orphan, err
	}
	return Keep, nil
}

// provenGone says whether a row's machine is gone for sure: a NotFound that names it while listing
// machines works, or another machine under its name; and neither an instance nor a pod of that
// name has the address, and nothing brings the machine back. A look that fails proves nothing.
func (s *Service) provenGone(ctx context.Context, e ledger.Entry) (bool, error) {
	ref := refOf(e)
	vm, err := s.getVM(ctx, ref)
	var status apierrors.APIStatus
	switch {
	case err == nil && vm.UID == e.Row.UID:
		return false, nil // restored meanwhile
	case err == nil:
		if said, err := ledger.ReservationsOf(vm.Annotations); err != nil || said.Names(e.Row.Interface, e.Addr) {
			return false, nil // a person decides
		}
	case !apierrors.IsNotFound(err) || !errors.As(err, &status):
		return false, err
	default:
		if d := status.Status().Details; d == nil || d.Name != ref.Name || !strings.HasPrefix(d.Kind, "virtualmachine") {
			return false, fmt.Errorf("%s: %w: the answer does not name it, so that it proves nothing", object(ref), err)
		}
		vmi, err := s.getVMI(ctx, ref)
		if err != nil || vmi != nil {
			return false, err
		}
	}
	restoring, err := s.restoring(ctx, ref)
	if err != nil || restoring {
		return false, err
	}
	why, err := s.look(ctx, ref, e.Row.Interface, e.Addr, true)
	return why == "", err
}

// restoring says whether a VirtualMachineRestore (snapshot.kubevirt.io) is bringing the machine back.
func (s *Service) restoring(ctx context.Context, ref machine.Ref) (bool, error) {
	list, err := s.KubeVirt.SnapshotV1beta1().VirtualMachineRestores(ref.Namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // a KubeVirt without snapshots restores nothing
	}
	if err != nil {
		return false, fmt.Errorf("virtualmachinerestores of namespace %s: %w", ref.Namespace, err)
	}
	return slices.ContainsFunc(list.Items, func(r snapshotv1.VirtualMachineRestore) bool {
		return r.Spec.Target.Name == ref.Name && (r.Status == nil || r.Status.Complete == nil || !*r.Status.Complete)
	}), nil
}

func (s *Service) listVMs(ctx context.Context) (map[machine.Ref]*kubevirtv1.VirtualMachine, error) {
	all := map[machine.Ref]*kubevirtv1.VirtualMachine{}
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return s.KubeVirt.KubevirtV1().VirtualMachines(metav1.NamespaceAll).List(ctx, opts)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		vm := o.(*kubevirtv1.VirtualMachine)
		all[machine.RefOf(vm)] = vm
		return nil
	})
	return all, err
}

// foreignNetworks are the networks whose registry is of another cluster, or says of none, with
// the reason why their rows are left alone: in a ledger that was copied no machine of this cluster
// proves anything.
func (s *Service) foreignNetworks(ctx context.Context, snap *ledger.Snapshot) (map[string]string, error) {
	ns, err := s.Core.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("namespace %s, which identifies the cluster: %w", metav1.NamespaceSystem, err)
	}
	registered := map[string]types.UID{}
	for _, n := range snap.Networks {
		registered[n.Name] = n.Cluster
	}
	out := map[string]string{}
	for _, e := range snap.Entries {
		switch uid, known := registered[e.Network]; {
		case !known:
			out[e.Network] = fmt.Sprintf("network %s has no registry in the ledger in namespace %s: its rows are left alone", e.Network, s.Ledger.Namespace)
		case uid == "":
			out[e.Network] = fmt.Sprintf("the registry of network %s does not say which cluster it is of: its rows are left alone; let somebody who may read namespace %s run: kubectl vmip pool add", e.Network, metav1.NamespaceSystem)
		case uid != ns.UID:
			out[e.Network] = fmt.Sprintf("the registry of network %s is of cluster %s, this is cluster %s: its rows are left alone", e.Network, uid, ns.UID)
		}
	}
	return out, nil
}
