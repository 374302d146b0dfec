package reservation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/patch"
)

// ReleaseRequest takes back the addresses of one machine.
type ReleaseRequest struct {
	VM machine.Ref
	// Interface limits the release to one interface; "" is all of them.
	Interface string
	// AtShutdown marks an address that is in use: it is freed once the machine no longer has it.
	AtShutdown bool
}

// ContendedError is a release of an address that another command reserved, or released, at the
// same moment.
type ContendedError struct {
	VM   machine.Ref
	Addr netip.Addr
}

func (e *ContendedError) Error() string {
	return fmt.Sprintf("%s: another command changed the reservation of %s meanwhile: see kubectl vmip list %s -n %s, then run it again", object(e.VM), e.Addr, e.VM.Name, e.VM.Namespace)
}

// Release takes a machine's addresses back: the template is cleaned in the same operation, and
// the address cools down before anybody else gets it. It is refused while a pod may use one.
func (s *Service) Release(ctx context.Context, req ReleaseRequest) (Result, error) {
	rows, err := s.rowsOf(ctx, req.VM, req.Interface)
	if err != nil {
		return Result{}, err
	}
	var res Result
	var free, open []ledger.Entry
	for _, e := range rows {
		res.Addresses = append(res.Addresses, e.Addr)
		res.Interface = e.Row.Interface
		if e.Row.State == ledger.Held {
			free = append(free, e)
		} else {
			open = append(open, e)
		}
	}
	if len(open) == 0 {
		res.Unchanged = true
		if len(free) == 0 {
			return res, refuse(req.VM, codeNoReservation, "it has no reservation%s in the ledger in namespace %s", of(req.Interface), s.Ledger.Namespace)
		}
		res.Waiting = fmt.Sprintf("cooling down until %s", free[0].Row.Until.UTC().Format(time.RFC3339))
		return res, nil
	}
	if !req.AtShutdown {
		for _, e := range open {
			why, err := s.look(ctx, req.VM, e.Row.Interface, e.Addr, false)
			if err != nil {
				return res, fmt.Errorf("%s: whether %s is in use can't be found out: %w; nothing was changed", object(req.VM), e.Addr, err)
			}
			if why != "" {
				return res, refuse(req.VM, "AddressInUse", "address %s is in use: %s; stop the machine first, or release it --at-shutdown", e.Addr, why)
			}
		}
	}
	res.Addresses = nil
	for _, e := range open {
		res.Addresses = append(res.Addresses, e.Addr)
		if s.Preview {
			continue
		}
		why, err := s.release(ctx, req.VM, e)
		if ledger.IsChanged(err) {
			return res, &ContendedError{req.VM, e.Addr}
		}
		if err != nil {
			return res, fmt.Errorf("%s: releasing %s: %w", object(req.VM), e.Addr, err)
		}
		if why != "" {
			res.Waiting, res.Releasing = why, true
		}
	}
	return res, nil
}

// patience is how long a release lets another one that takes the same row back go on: two that take it
// from one another would never end.
const patience = time.Second

// release takes a row back though other commands may be moving it on the same way. It is ErrChanged
// where one reserves it instead.
func (s *Service) release(ctx context.Context, ref machine.Ref, e ledger.Entry) (string, error) {
	for try := 0; ; try++ {
		why, err := s.takeBack(ctx, ref, e)
		if !ledger.IsChanged(err) {
			return why, err
		}
		now, done, rerr := s.moving(ctx, e)
		switch {
		case rerr != nil:
			return "", rerr
		case done:
			return "", nil // another command has released it
		case now.Err != nil || now.Row.State == ledger.Reserved || try == maxTries:
			return "", err
		}
		e = now // its taker has died
	}
}

// moving waits while another command takes a row back. done says that it has: the row cools down, is
// free, or somebody else's.
func (s *Service) moving(ctx context.Context, e ledger.Entry) (now ledger.Entry, done bool, err error) {
	seen, since := "", time.Now()
	for {
		now, there, err := s.Ledger.Row(ctx, e.Network, e.Addr)
		switch r := now.Row; {
		case err != nil:
			return now, false, err
		case !there || now.Err == nil && (r.VM != e.Row.VM || r.Interface != e.Row.Interface || r.State == ledger.Held):
			return now, true, nil
		case now.Err != nil || r.State != ledger.Releasing:
			return now, false, nil
		case r.Op != seen:
			seen, since = r.Op, time.Now()
		case time.Since(since) > patience:
			return now, false, nil
		}
		if !ledger.Pause(ctx, maxTries) {
			return now, false, context.Cause(ctx)
		}
	}
}

func of(iface string) string {
	if iface == "" {
		return ""
	}
	return " of interface " + iface
}

// rowsOf finds the rows of all interfaces of a machine, or of one. Where the machine is gone its
// interfaces are not known any more, and the ledger is read whole.
func (s *Service) rowsOf(ctx context.Context, ref machine.Ref, iface string) (rows []ledger.Entry, err error) {
	vm, err := s.getVM(ctx, ref)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	var said *ledger.Reservations
	unknown := err != nil || vm.Spec.Template == nil
	if !unknown {
		said, err = ledger.ReservationsOf(vm.Annotations)
		unknown = err != nil // an interface that has been renamed is named there only
	}
	if unknown {
		snap, serr := s.Ledger.Snapshot(ctx)
		if serr != nil {
			return nil, serr
		}
		for _, e := range snap.Entries {
			if e.Err == nil && e.Row.State != ledger.Foreign && e.Row.VM == ref.String() && (iface == "" || iface == e.Row.Interface) {
				rows = append(rows, e)
			}
		}
		if len(rows) == 0 && apierrors.IsNotFound(err) {
			return nil, err // neither a machine nor a row of that name
		}
		return rows, nil
	}
	names := map[string]bool{}
	for _, i := range machine.Interfaces(vm.Namespace, &vm.Spec.Template.Spec) {
		names[i.Name] = true
	}
	if said != nil {
		for name := range said.Interfaces {
			names[name] = true
		}
	}
	if iface != "" {
		names = map[string]bool{iface: true}
	}
	for name := range names {
		of, err := s.Ledger.RowsOf(ctx, ledger.Owner{Namespace: ref.Namespace, Name: ref.Name, UID: vm.UID, Interface: name})
		if err != nil {
			return nil, err
		}
		rows = append(rows, of...)
	}
	slices.SortFunc(rows, func(a, b ledger.Entry) int { return a.Addr.Compare(b.Addr) })
	return rows, nil
}

// takeBack takes one row from its owner, always in this order: the row becomes releasing under a
// fresh operation; the VM is patched, so that whoever was about to write the template meets a
// conflict; then everything that could still use the address is looked at. It returns what does,
// and the row stays releasing until a later look finds nothing; otherwise the row cools down.
func (s *Service) takeBack(ctx context.Context, ref machine.Ref, e ledger.Entry) (string, error) {
	return s.take(ctx, ref, e, false)
}

// errNamed says that the VM names the address of a row that was taken for a lost one.
var errNamed = errors.New("the virtual machine names it")

// takeLost takes a row back that lost a race. Its writer may have patched the VM since the VM was
// read: then the row is the VM's address, its writer may have said so, and it stays.
func (s *Service) takeLost(ctx context.Context, ref machine.Ref, e ledger.Entry) error {
	_, err := s.take(ctx, ref, e, true)
	if ledger.IsChanged(err) {
		return nil // somebody else is at it
	}
	return err
}

func (s *Service) take(ctx context.Context, ref machine.Ref, e ledger.Entry, lost bool) (string, error) {
	was, op := e.Row, ledger.NewOp()
	row := e.Row
	row.State, row.Op, row.Since = ledger.Releasing, op, s.Ledger.Clock.Now()
	if err := s.Ledger.Transition(ctx, e, &row); err != nil {
		return "", err
	}
	if s.DryRun {
		return "", nil
	}
	e.Row = row
	switch err := s.strip(ctx, ref, e, lost); {
	case errors.Is(err, errNamed):
		was.Op = ledger.NewOp()
		return "", s.Ledger.Transition(ctx, e, &was)
	case err != nil:
		return "", err
	}
	why, err := s.look(ctx, ref, e.Row.Interface, e.Addr, true)
	if err != nil {
		return "", fmt.Errorf("%w; it stays marked for release: run the command again", err)
	}
	if why != "" {
		return why, nil
	}
	return "", s.hold(ctx, ref, e)
}

// hold lets a released address cool down.
func (s *Service) hold(ctx context.Context, ref machine.Ref, e ledger.Entry) error {
	cool := ledger.DefaultHoldFor
	pools, _ := s.Ledger.Pools(ctx) // of one that can't be read the default holds
	for _, p := range pools {
		if p.Network == e.Network && p.Contains(e.Addr) {
			cool = p.Hold()
		}
	}
	row := e.Row
	row.State, row.Since, row.Replaces = ledger.Held, s.Ledger.Clock.Now(), ""
	row.Until = row.Since.Add(cool)
	if err := s.Ledger.Transition(ctx, e, &row); err != nil {
		return err
	}
	s.dropObjects(ctx, ref, e)
	return nil
}

// dropObjects removes what the profile needed for the address. It is no part of the release: an
// object left behind keeps the address off others at worst.
func (s *Service) dropObjects(ctx context.Context, ref machine.Ref, e ledger.Entry) {
	cluster, err := s.profiles(ctx)
	if err != nil {
		return
	}
	i := s.interfaceOf(ctx, ref, e.Row.Interface)
	p, err := cluster.For(ctx, i)
	if err != nil {
		return
	}
	set, err := p.Render(ref, i, []netip.Addr{e.Addr})
	if err != nil {
		return
	}
	if err := s.drop(ctx, set.Objects); err != nil {
		s.warn("%s is released, but %v stays: remove it by hand", e.Addr, err)
	}
}

// interfaceOf finds a machine's interface. Where the machine is gone so is what the interface was
// connected to: most are on the pod network.
func (s *Service) interfaceOf(ctx context.Context, ref machine.Ref, name string) machine.Interface {
	if vm, err := s.getVM(ctx, ref); err == nil && vm.Spec.Template != nil {
		for _, i := range machine.Interfaces(vm.Namespace, &vm.Spec.Template.Spec) {
			if i.Name == name {
				return i
			}
		}
	}
	return machine.Interface{Name: name, Pod: true}
}

// strip takes our annotations off the VM, only where they carry the row's address, and writes a
// fresh vmip.io/last-op, so that a reserve that stalled before its patch meets a conflict. With lost
// it is errNamed where the VM names the address.
func (s *Service) strip(ctx context.Context, ref machine.Ref, e ledger.Entry, lost bool) error {
	for try := 0; ; try++ {
		vm, err := s.getVM(ctx, ref)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		now, ok, err := s.Ledger.Row(ctx, e.Network, e.Addr)
		if err != nil {
			return err
		}
		if !ok || now.Err != nil || now.Row.State != ledger.Releasing || now.Row.Op != e.Row.Op {
			return fmt.Errorf("row of %s: %w", e.Addr, ledger.ErrChanged)
		}
		if lost {
			if said, err := ledger.ReservationsOf(vm.Annotations); err == nil && said != nil && said.UID == vm.UID && said.Names(e.Row.Interface, e.Addr) {
				return errNamed
			}
		}
		change, err := stripped(vm, e, s.asked(ctx, vm, e))
		if err != nil {
			return err
		}
		body, err := change.For(vm)
		if err != nil {
			return err
		}
		_, err = s.KubeVirt.KubevirtV1().VirtualMachines(ref.Namespace).Patch(ctx, ref.Name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: s.FieldManager})
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return nil
		case !patch.IsConflict(err):
			return fmt.Errorf("%s: %w", object(ref), err)
		}
		if !ledger.Pause(ctx, try) {
			return fmt.Errorf("%s: %w", object(ref), context.Cause(ctx))
		}
	}
}

// asked are the template annotations with which the row's address alone is asked for.
func (s *Service) asked(ctx context.Context, vm *kubevirtv1.VirtualMachine, e ledger.Entry) map[string]string {
	cluster, err := s.profiles(ctx)
	if err != nil || vm.Spec.Template == nil {
		return nil // the look that follows finds a template that still names the address
	}
	for _, i := range machine.Interfaces(vm.Namespace, &vm.Spec.Template.Spec) {
		if i.Name != e.Row.Interface {
			continue
		}
		if p, err := cluster.For(ctx, i); err == nil {
			if set, err := p.Render(machine.RefOf(vm), i, []netip.Addr{e.Addr}); err == nil {
				return set.Annotations
			}
		}
	}
	return nil
}

// stripped is the change that takes one address off the VM: annotations that are still as the
// reservation wrote them and carry the address, or all of them with the interface's last address.
// What the VM says is believed where it says it of itself, or of the earlier machine that the row
// is of: a manifest that was exported and applied again carries it. Where nothing can be believed
// the template loses what asks for just this address.
func stripped(vm *kubevirtv1.VirtualMachine, e ledger.Entry, asked map[string]string) (machine.Patch, error) {
	change := machine.Patch{Set: map[string]string{ledger.AnnotationLastOp: ledger.NewOp()}}
	said, err := ledger.ReservationsOf(vm.Annotations)
	if err != nil || said == nil || said.UID != vm.UID && said.UID != e.Row.UID {
		for k, v := range asked {
			if vm.Spec.Template.ObjectMeta.Annotations[k] == v {
				change.RemoveTemplate = append(change.RemoveTemplate, k)
			}
		}
		return change, nil
	}
	mine, ok := said.Interfaces[e.Row.Interface]
	if !ok || !said.Names(e.Row.Interface, e.Addr) {
		return change, nil
	}
	mine.Addresses = slices.DeleteFunc(slices.Clone(mine.Addresses), func(s string) bool { return s == e.Addr.String() })
	last := len(mine.Addresses) == 0
	for k, v := range mine.Annotations {
		if vm.Spec.Template.ObjectMeta.Annotations[k] == v && (last || mentions(v, e.Addr)) {
			change.RemoveTemplate = append(change.RemoveTemplate, k)
		}
	}
	if last {
		delete(said.Interfaces, e.Row.Interface)
	} else {
		said.Interfaces[e.Row.Interface] = mine
	}
	if len(said.Interfaces) == 0 {
		change.Remove = []string{ledger.AnnotationReservations}
		return change, nil
	}
	text, err := said.Encode()
	change.Set[ledger.AnnotationReservations] = text
	return change, err
}

// mentions says whether an annotation's value carries the address, by itself or by the name of
// an object made for it.
func mentions(value string, a netip.Addr) bool {
	return strings.Contains(value, a.String()) || strings.Contains(value, strings.NewReplacer(".", "-", ":", "-").Replace(a.String()))
}

// Settle moves on the rows that a finished restart or migration has made idle: addresses that
// the machine was moving away from, or that were marked for release, and that no pod has any
// more. Errors are about the ledger only: the machine itself is fine.
func (s *Service) Settle(ctx context.Context, ref machine.Ref) error {
	rows, err := s.rowsOf(ctx, ref, "")
	if err != nil {
		return err
	}
	_, err = s.moveOn(ctx, ref, rows)
	return err
}

// moveOn takes the rows back that their machine is leaving, or that were marked for release, and
// that nothing uses any more. It says whether it changed any.
func (s *Service) moveOn(ctx context.Context, ref machine.Ref, rows []ledger.Entry) (moved bool, err error) {
	var errs []error
	for _, e := range rows {
		if e.Err != nil || e.Row.State != ledger.Leaving && e.Row.State != ledger.Releasing {
			continue
		}
		why, err := s.look(ctx, ref, e.Row.Interface, e.Addr, false)
		if err == nil && why == "" {
			_, err = s.takeBack(ctx, ref, e)
			moved = moved || err == nil
		}
		if err != nil && !ledger.IsChanged(err) {
			errs = append(errs, err)
		}
	}
	return moved, errors.Join(errs...)
}
