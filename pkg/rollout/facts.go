package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// facts reads what both operations look at.
func (pl *Planner) facts(ctx context.Context, verb Verb, ref machine.Ref, o Options) (Plan, *preflight.Facts, error) {
	d := pl.Deps
	p := Plan{Verb: verb, Ref: ref, Made: d.now()}
	v, err := machine.Reader{KubeVirt: d.KubeVirt, Core: d.Core}.View(ctx, ref)
	if err != nil {
		return p, nil, err
	}
	p.VM = v.VM.UID
	if v.VMI != nil {
		p.Instance, p.Node = v.VMI.UID, v.VMI.Status.NodeName
		p.Agent = machine.Condition(v.VMI, kubevirtv1.VirtualMachineInstanceAgentConnected).Status == corev1.ConditionTrue
	}
	pod := v.CurrentPod()
	if pod != nil {
		p.Pod = pod.Name
	}
	f := &preflight.Facts{View: v, NodeFenced: o.NodeFenced, ToNode: o.ToNode}
	// A restart makes the machine of its template, a migration a copy of what runs.
	interfaces := v.Interfaces()
	if verb == VerbMigrate {
		interfaces = v.RunningInterfaces()
	}
	said, err := ledger.ReservationsOf(v.VM.Annotations)
	if err != nil {
		return p, nil, fmt.Errorf("virtualmachine %s: %w", ref, err)
	}
	if err := d.sameLedger(ref, said); err != nil {
		return p, nil, err
	}
	var free []machine.Interface
	for _, i := range interfaces {
		fact, err := pl.reserved(ctx, v, i, said)
		if err != nil {
			return p, nil, fmt.Errorf("virtualmachine %s: interface %s: %w", ref, i.Name, err)
		}
		if fact == nil {
			free = append(free, i)
			continue
		}
		f.Interfaces = append(f.Interfaces, *fact)
		e := expectationOf(verb, *fact)
		if len(e.Addresses) == 0 {
			continue
		}
		p.Expect = append(p.Expect, e)
		if pod != nil {
			have, _ := machine.PodAddresses(pod, i)
			for _, want := range e.Addresses {
				p.Before = append(p.Before, family(have, want)...)
			}
		}
	}
	if len(f.Interfaces) > 0 {
		f.Neighbours = pl.neighbours(ctx, v, free)
	}
	return p, f, nil
}

// neighbours are the interfaces without reservation: annotations that they obey too matter.
func (pl *Planner) neighbours(ctx context.Context, v *machine.View, free []machine.Interface) []preflight.Interface {
	var out []preflight.Interface
	for _, i := range free {
		cluster, err := pl.Deps.Profiles(ctx)
		if err != nil {
			return nil
		}
		if prof, err := cluster.For(ctx, i); err == nil {
			out = append(out, preflight.NewInterface(v, i, prof))
		}
	}
	return out
}

// sameLedger refuses a machine whose addresses are in another ledger than the one that was read:
// what is verified against the wrong ledger is not verified.
func (d Deps) sameLedger(ref machine.Ref, said *ledger.Reservations) error {
	if said == nil || said.Ledger == "" || said.Ledger == d.Ledger.Namespace {
		return nil
	}
	return fmt.Errorf("virtualmachine %s has its reservations in the ledger of namespace %s, not %s: name it with --ledger-namespace %s", ref, said.Ledger, d.Ledger.Namespace, said.Ledger)
}

// reserved reads what the ledger and the network plugin say about one interface; nil where it has
// no reservation.
func (pl *Planner) reserved(ctx context.Context, v *machine.View, i machine.Interface, said *ledger.Reservations) (*preflight.Interface, error) {
	d, ref := pl.Deps, v.Ref()
	rows, err := d.Ledger.RowsOf(ctx, ledger.Owner{Namespace: ref.Namespace, Name: ref.Name, UID: v.VM.UID, Interface: i.Name})
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(e ledger.Entry) bool {
		return e.Row.UID != "" && e.Row.UID != v.VM.UID || e.Row.State == ledger.Held
	})
	if len(rows) == 0 {
		return nil, nil
	}
	cluster, err := d.Profiles(ctx)
	if err != nil {
		return nil, fmt.Errorf("which network plugin holds its address can't be found out: %w", err)
	}
	prof, err := cluster.For(ctx, i)
	if err != nil {
		return nil, err
	}
	f := preflight.NewInterface(v, i, prof)
	f.Rows = rows
	if said != nil && said.UID == v.VM.UID {
		f.Annotations = said.Interfaces[i.Name].Annotations
	}
	if addrs := f.Reserved(); len(addrs) > 0 {
		_, f.RenderErr = prof.Render(ref, i, addrs)
	}
	f.Records, f.RecordsErr = prof.Records(ctx, ref, i)
	f.Uses, err = pl.uses(ctx, v, f, prof)
	return &f, err
}

// uses finds who else has a reserved address.
func (pl *Planner) uses(ctx context.Context, v *machine.View, f preflight.Interface, prof profile.Profile) ([]preflight.Use, error) {
	var uses []preflight.Use
	for _, a := range f.Reserved() {
		by, err := prof.InUse(ctx, v.Ref(), a)
		if err != nil {
			return nil, err
		}
		if by != "" {
			uses = append(uses, preflight.Use{Addr: a, By: by})
		}
		if !f.Primary() {
			continue
		}
		other, err := pl.Deps.strangers(ctx, v, a)
		if err != nil {
			return nil, err
		}
		uses = append(uses, other...)
	}
	return uses, nil
}

func (d Deps) strangers(ctx context.Context, v *machine.View, a netip.Addr) ([]preflight.Use, error) {
	pods, err := d.podsWith(ctx, a)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pods with address %s: %w", a, err)
	}
	var uses []preflight.Use
	for _, p := range pods {
		if o := metav1.GetControllerOf(&p); v.VMI == nil || o == nil || o.UID != v.VMI.UID {
			uses = append(uses, preflight.Use{Addr: a, By: "pod " + p.Namespace + "/" + p.Name})
		}
	}
	return uses, nil
}

// carriers reads the nodes of the machine's live pods.
func (pl *Planner) carriers(ctx context.Context, v *machine.View) ([]corev1.Node, error) {
	nodes, read := []corev1.Node{}, map[string]bool{"": true}
	var errs []error
	var names []string
	if v.VMI != nil {
		names = append(names, v.VMI.Status.NodeName)
	}
	for _, p := range v.LivePods() {
		names = append(names, p.Spec.NodeName)
	}
	for _, name := range names {
		if read[name] {
			continue
		}
		read[name] = true
		n, err := pl.Deps.Core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			// Preflight sees that it is missing.
		case err != nil:
			errs = append(errs, fmt.Errorf("node %s: %w", name, err))
		default:
			nodes = append(nodes, *n)
		}
	}
	return nodes, errors.Join(errs...)
}

// expectationOf is what an operation on the interface has to end with. A migration makes the target
// pod of what the running instance asks for: while a change of address waits for a restart, that is
// the address that the machine is leaving.
func expectationOf(verb Verb, f preflight.Interface) Expectation {
	e := Expectation{Interface: f.Interface, Addresses: f.Reserved()}
	if held := append(f.Leaving(), e.Addresses...); verb == VerbMigrate && len(f.Asked) > 0 && len(f.Leaving()) > 0 && subset(f.Asked, held) {
		e.Addresses = f.Asked
	}
	for _, r := range f.Rows {
		if r.Err == nil && r.Row.State == ledger.Reserved && r.Row.MAC != "" {
			e.MAC = r.Row.MAC
		}
	}
	return e
}

func subset(some, all []netip.Addr) bool {
	return !slices.ContainsFunc(some, func(a netip.Addr) bool { return !slices.Contains(all, a) })
}
