package reservation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/patch"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Request asks for addresses for one interface of one machine.
type Request struct {
	VM machine.Ref
	// Interface is a network name; "" stands for the pod network's.
	Interface string
	// Pool is a pool's name; "" lets the address or the interface decide.
	Pool string
	// Addresses are the ones wanted, at most one a family; none lets the ledger choose.
	Addresses []netip.Addr
	// MAC is recorded with the addresses; "" records what the template pins.
	MAC string
	// Replace moves an interface that has an address to another one.
	Replace bool
	// Adopt records the addresses that the machine has, and takes rows of an earlier machine of
	// its name over.
	Adopt bool
	// Ahead lets the machine be missing: its rows wait for it.
	Ahead bool
}

// Result is what a request came to.
type Result struct {
	Pool, Interface string
	Addresses       []netip.Addr
	// Unchanged is set where everything was as asked before.
	Unchanged bool
	// RestartPending is set where the running machine has not got the addresses; Running are
	// the ones that it has.
	RestartPending bool
	Running        []netip.Addr
	// Waiting says why a released address is not free yet; Releasing is set where it is only
	// marked, and freed once nothing uses it any more.
	Waiting   string
	Releasing bool
	// Ahead is set where the machine does not exist yet.
	Ahead bool
}

// maxTries is how often a request is decided anew before it gives up: enough for any number of
// commands for one interface to end one after the other.
const maxTries = 64

// errGiveUp ends a request that was never the faster one.
var errGiveUp = errors.New("gave up: other commands keep changing the reservation of the same interface; run the command again")

// Reserve gives interfaces their addresses: the ledger's rows first, then the VMs' templates. It
// is idempotent, and safe to repeat after any failure. Rows of many machines are written
// together, and one machine's failure is none of the others'. done is called once for each
// request, in any order and never by two goroutines at once; it may be nil. The outcomes have
// the order of the requests.
func (s *Service) Reserve(ctx context.Context, reqs []Request, done func(Outcome)) []Outcome {
	out := make([]Outcome, len(reqs))
	todo := make([]int, len(reqs))
	for i, r := range reqs {
		out[i].VM, todo[i] = r.VM, i
	}
	var mu sync.Mutex
	end := func(o Outcome) {
		mu.Lock()
		defer mu.Unlock()
		if done != nil {
			done(o)
		}
	}
	for try := 0; len(todo) > 0; try++ {
		batch := make([]Request, len(todo))
		for n, i := range todo {
			batch[n] = reqs[i]
		}
		var again []int
		for n, o := range s.reserve(ctx, batch, end) {
			if out[todo[n]] = o; errors.Is(o.Err, errLost) {
				// Somebody reserves for the same interface. Let them finish, then see what came of it.
				again = append(again, todo[n])
			}
		}
		if todo = again; len(todo) == 0 || try < maxTries && ledger.Pause(ctx, try+3) {
			continue
		}
		for _, i := range todo {
			out[i].Err = fmt.Errorf("%s: %w", object(reqs[i].VM), cmp.Or(context.Cause(ctx), errGiveUp))
			end(out[i])
		}
		break
	}
	return out
}

// reserve tries every request once; errLost asks for another try, and every other outcome is
// told to end.
func (s *Service) reserve(ctx context.Context, reqs []Request, end func(Outcome)) []Outcome {
	reads := s.readAhead(ctx, reqs)
	type begun struct {
		*intent
		err error
	}
	intents := each(reqs, func(_ int, req Request) begun {
		in, err := s.intend(ctx, req, reads)
		return begun{in, err}
	})
	var adopting []*intent
	for _, in := range intents {
		if in.err == nil && in.req.Adopt {
			adopting = append(adopting, in.intent)
		}
	}
	for in, err := range contradictions(adopting) {
		for i := range intents {
			if intents[i].intent == in {
				intents[i].err = err
			}
		}
	}
	op := ledger.NewOp()
	var claims []ledger.Claim
	var of []int
	have := make([][]ledger.Claimed, len(reqs))
	for i, in := range intents {
		if in.err != nil {
			continue
		}
		if have[i] = s.complete(in.intent); have[i] != nil {
			continue
		}
		for _, f := range in.families {
			claims, of = append(claims, s.claim(in.intent, f, op)), append(of, i)
		}
	}
	got := make([][]ledger.Claimed, len(reqs))
	for n, c := range s.Ledger.Claim(ctx, claims...) {
		got[of[n]] = append(got[of[n]], c)
	}
	return each(reqs, func(i int, req Request) Outcome {
		o := Outcome{VM: req.VM, Err: intents[i].err}
		switch in := intents[i].intent; {
		case o.Err != nil:
		case have[i] != nil:
			o.Result, o.Err = s.stand(ctx, in, have[i], op)
		default:
			o.Result, o.Err = s.write(ctx, in, got[i], op)
		}
		if !errors.Is(o.Err, errLost) {
			end(o)
		}
		return o
	})
}

// stand ends a request whose rows the VM names already: only its template may lack something.
func (s *Service) stand(ctx context.Context, in *intent, have []ledger.Claimed, op string) (Result, error) {
	if in.vm == nil {
		return in.result(entriesOf(have), true), nil
	}
	set, err := in.profile.Render(in.ref, in.iface, addrsOf(entriesOf(have)))
	if err != nil {
		return Result{}, &RefusedError{Object: object(in.ref), Code: "NotSupported", Err: err}
	}
	if carriesAll(in.vm.Spec.Template.ObjectMeta.Annotations, set.Annotations) {
		s.tidy(ctx, in, have, op)
		return s.finish(ctx, in, entriesOf(have), set, true)
	}
	var claims []ledger.Claim
	for _, f := range in.families {
		claims = append(claims, s.claim(in, f, op))
	}
	return s.write(ctx, in, s.Ledger.Claim(ctx, claims...), op)
}

// write takes a request from its rows to the template. Where that fails for good the rows that
// are new go back.
func (s *Service) write(ctx context.Context, in *intent, got []ledger.Claimed, op string) (Result, error) {
	giveUp := func(err error) (Result, error) { return Result{}, errors.Join(err, s.undo(ctx, in, got)) }
	for _, c := range got {
		if c.Err != nil {
			return giveUp(claimRefused(in.ref, c.Err))
		}
	}
	rows := entriesOf(got)
	if in.vm == nil {
		return s.ahead(ctx, in, got)
	}
	set, err := in.profile.Render(in.ref, in.iface, addrsOf(rows))
	if err != nil {
		return giveUp(&RefusedError{Object: object(in.ref), Code: "NotSupported", Err: err})
	}
	if err := s.ensure(ctx, set.Objects); err != nil {
		return giveUp(fmt.Errorf("%s: %w", object(in.ref), err))
	}
	if err := s.patchVM(ctx, in, rows, set, op); err != nil {
		if final(err) || errors.Is(err, errLost) {
			return giveUp(err)
		}
		return Result{}, err
	}
	s.tidy(ctx, in, got, op)
	return s.finish(ctx, in, rows, set, false)
}

// ahead ends a request for a machine that does not exist yet. No machine tells two writers apart,
// so each looks again after it has written: where there are two rows both yield and try again.
func (s *Service) ahead(ctx context.Context, in *intent, got []ledger.Claimed) (Result, error) {
	if s.Preview || s.DryRun {
		return in.result(entriesOf(got), false), nil
	}
	rows, err := s.Ledger.RowsOf(ctx, in.owner)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w; run the command again", object(in.ref), err)
	}
	for _, c := range got {
		for _, e := range rows {
			if e.Row.State == ledger.Reserved && e.Family() == c.Entry.Family() && e.Addr != c.Entry.Addr {
				for _, mine := range got {
					if mine.Fresh {
						// No template can name it: there is no machine, and this command has said nothing yet.
						if err := s.Ledger.Transition(ctx, mine.Entry, nil); err != nil && !ledger.IsChanged(err) {
							return Result{}, fmt.Errorf("%s: %w; run the command again", object(in.ref), err)
						}
					}
				}
				return Result{}, errLost
			}
		}
	}
	return in.result(entriesOf(got), !slices.ContainsFunc(got, func(c ledger.Claimed) bool { return c.Fresh })), nil
}

func (in *intent) result(rows []ledger.Entry, unchanged bool) Result {
	return Result{Pool: in.pool.Name, Interface: in.iface.Name, Addresses: addrsOf(rows), Unchanged: unchanged, Ahead: in.vm == nil}
}

// tidy moves on what the reservation has left behind: the row that the interface moves away from
// and those of commands that died or were slower. The reservation stands without it, so that a
// failure is no more than a warning.
func (s *Service) tidy(ctx context.Context, in *intent, got []ledger.Claimed, op string) {
	if s.Preview || s.DryRun {
		return
	}
	var errs []error
	for _, c := range got {
		if c.Old != nil {
			row := c.Old.Row
			row.State, row.Op, row.Since, row.Replaces = ledger.Leaving, op, s.Ledger.Clock.Now(), ""
			if err := s.Ledger.Transition(ctx, *c.Old, &row); err != nil && !ledger.IsChanged(err) {
				errs = append(errs, err)
			} else if err == nil {
				old := *c.Old
				old.Row = row
				_, err = s.moveOn(ctx, in.ref, []ledger.Entry{old})
				errs = append(errs, err)
			}
		}
		for _, e := range c.Lost {
			errs = append(errs, s.takeLost(ctx, in.ref, e))
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.warn("%s: an earlier address could not be given up: %v; run the command again", object(in.ref), err)
	}
}

// claimRefused wraps what the ledger said no to, so that a caller can tell it from a failure.
func claimRefused(ref machine.Ref, err error) error {
	for code, target := range map[string]any{
		"AddressTaken": new(*ledger.TakenError), "AddressInUse": new(*ledger.InUseError), "PoolFull": new(*ledger.PoolFullError),
		"HasOtherAddress": new(*ledger.OtherAddressError), "RecreatedVM": new(*ledger.OlderUIDError), "PoolNotFound": new(*ledger.PoolNotFoundError),
		"AddressNotAllowed": new(*address.NotAllowedError), "LedgerUnreadable": new(*ledger.DamagedError),
	} {
		if errors.As(err, target) {
			return &RefusedError{Object: object(ref), Code: code, Err: err}
		}
	}
	return fmt.Errorf("%s: %w", object(ref), err)
}

func entriesOf(claimed []ledger.Claimed) (out []ledger.Entry) {
	for _, c := range claimed {
		out = append(out, c.Entry)
	}
	return out
}

func addrsOf(entries []ledger.Entry) (out []netip.Addr) {
	for _, e := range entries {
		out = append(out, e.Addr)
	}
	return out
}

func carriesAll(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// usable says what in the cluster has the address and is not this machine.
func (s *Service) usable(ctx context.Context, in *intent, a netip.Addr) (string, error) {
	if in.iface.Primary() {
		in.looked = true
		pods, may, err := s.podsWith(ctx, in.reads, a)
		if err != nil {
			return "", err
		}
		if !may {
			s.warn("you may not list pods, so whether a pod has the address was not checked")
		}
		for i := range pods {
			p := &pods[i]
			if in.vm != nil && carries(p, in.vmi, in.vm.UID) {
				for _, ip := range p.Status.PodIPs {
					if x, err := address.Parse(ip.IP); err == nil {
						in.own[x] = true
					}
				}
				continue
			}
			return fmt.Sprintf("pod %s/%s", p.Namespace, p.Name), nil
		}
	}
	return in.profile.InUse(ctx, in.ref, a)
}

// gone proves that the last owner of a held row no longer uses its address.
func (s *Service) gone(ctx context.Context, e ledger.Entry) (bool, error) {
	o := e.Row.Owner()
	why, err := s.look(ctx, machine.Ref{Namespace: o.Namespace, Name: o.Name}, o.Interface, e.Addr, true)
	return why == "" && err == nil, nil // a failed look keeps the row
}

// maxLost is how many answers in a row may be lost before a patch's outcome is called unknown.
const maxLost = 8

// patchVM writes the template. The VM that it patches was read before the rows were written, or,
// on a later try, before they were read again: whoever takes a row away patches the VM after
// that, and the resourceVersion in this patch then meets a conflict.
func (s *Service) patchVM(ctx context.Context, in *intent, rows []ledger.Entry, set profile.Rendering, op string) error {
	if s.Preview {
		return nil
	}
	vm, lost := in.vm, 0
	for try := 0; ; try++ {
		if try > 0 {
			var err error
			if vm, err = s.getVM(ctx, in.ref); err != nil {
				return err
			}
			if vm.UID != in.vm.UID {
				return errLost // deleted and made again meanwhile: decide anew
			}
			if err := s.stillOurs(ctx, in, rows, op); err != nil {
				return err
			}
		}
		said, err := ledger.ReservationsOf(vm.Annotations)
		if err != nil {
			return malformed(in.ref, err)
		}
		if said == nil || said.UID != vm.UID {
			said = &ledger.Reservations{Ledger: s.Ledger.Namespace, UID: vm.UID}
		}
		if said.Interfaces[in.iface.Name].Op == op {
			return nil // the patch whose answer was lost
		}
		if other, err := s.winner(ctx, in, said, rows); err != nil || other {
			return cmp.Or(err, errLost)
		}
		body, err := in.patch(vm, said, rows, set, op)
		if err != nil {
			return err
		}
		_, err = s.KubeVirt.KubevirtV1().VirtualMachines(in.ref.Namespace).Patch(ctx, in.ref.Name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
		switch {
		case err == nil:
			return nil
		case patch.IsConflict(err):
			lost = 0
		case !ledger.Ambiguous(err):
			return fmt.Errorf("%s: %w", object(in.ref), err)
		default:
			in.sent = true
			lost++
		}
		if lost == maxLost || !ledger.Pause(ctx, try) {
			if lost > 0 {
				return &ledger.UnknownError{Object: object(in.ref), Err: err}
			}
			return fmt.Errorf("%s: %w", object(in.ref), context.Cause(ctx))
		}
	}
}

// stillOurs checks that the rows are reserved under this operation.
func (s *Service) stillOurs(ctx context.Context, in *intent, rows []ledger.Entry, op string) error {
	if s.DryRun {
		return nil
	}
	for _, e := range rows {
		now, ok, err := s.Ledger.Row(ctx, e.Network, e.Addr)
		if err != nil {
			return err
		}
		if !ok || now.Err != nil || now.Row.Op != op || now.Row.State != ledger.Reserved || now.Row.UID != in.vm.UID {
			return errLost
		}
	}
	return nil
}

// patch is the change of the VM that makes the rows its addresses.
func (in *intent) patch(vm *kubevirtv1.VirtualMachine, said *ledger.Reservations, rows []ledger.Entry, set profile.Rendering, op string) ([]byte, error) {
	old := said.Interfaces[in.iface.Name]
	mine := ledger.Reservation{Pool: in.pool.Name, Network: in.pool.Network, Op: op, Annotations: set.Annotations}
	for _, e := range rows {
		mine.Addresses = append(mine.Addresses, e.Addr.String())
	}
	if said.Interfaces == nil {
		said.Interfaces = map[string]ledger.Reservation{}
	}
	said.Interfaces[in.iface.Name] = old.Renewed(mine)
	text, err := said.Encode()
	if err != nil {
		return nil, err
	}
	return machine.Patch{
		SetTemplate:    set.Annotations,
		RemoveTemplate: stale(vm.Spec.Template.ObjectMeta.Annotations, old.Annotations, set.Annotations),
		Set:            map[string]string{ledger.AnnotationReservations: text, ledger.AnnotationLastOp: op},
	}.For(vm)
}

// winner says whether the VM meanwhile names another reserved row of this interface: another
// command was faster, and its address stays. A row that ours replaces is none.
func (s *Service) winner(ctx context.Context, in *intent, said *ledger.Reservations, rows []ledger.Entry) (bool, error) {
	for _, a := range said.Interfaces[in.iface.Name].Addrs() {
		if slices.ContainsFunc(rows, func(e ledger.Entry) bool { return e.Addr == a || e.Row.Replaces == a.String() }) || !slices.Contains(in.families, address.FamilyOf(a)) {
			continue
		}
		e, ok, err := s.Ledger.Row(ctx, in.pool.Network, a)
		if err != nil {
			return false, fmt.Errorf("%s: %w", object(in.ref), err)
		}
		if ok && e.Err == nil && e.Row.State == ledger.Reserved && e.Row.UID == in.vm.UID && e.Row.Names(in.owner) {
			return true, nil
		}
	}
	return false, nil
}

// stale are template annotations that an earlier reservation wrote, that are as it wrote them,
// and that this one does not write again.
func stale(have, old, set map[string]string) (keys []string) {
	for k, v := range old {
		if _, again := set[k]; !again && have[k] == v {
			keys = append(keys, k)
		}
	}
	return keys
}

// final says whether a failed patch is known not to have been applied and not to succeed later:
// then the rows go back. Otherwise they stay, and the same command completes them.
func final(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
}

// finish tells what the reservation means for the running machine. Where the pod already has
// every address, the running instance is annotated too: a migration's target is made from it.
func (s *Service) finish(ctx context.Context, in *intent, rows []ledger.Entry, set profile.Rendering, unchanged bool) (Result, error) {
	res := in.result(rows, unchanged)
	vmi := in.vmi
	if vmi == nil || vmi.IsFinal() || carriesAll(vmi.Annotations, set.Annotations) {
		return res, nil
	}
	res.RestartPending = true
	for _, i := range machine.InstanceInterfaces(vmi) {
		if i.Name == in.iface.Name {
			res.Running = slices.DeleteFunc(machine.StatusAddresses(vmi, i), func(a netip.Addr) bool { return !slices.Contains(in.families, address.FamilyOf(a)) })
		}
	}
	if in.iface.Primary() && !in.looked {
		if _, err := s.usable(ctx, in, res.Addresses[0]); err != nil {
			return res, err
		}
	}
	for _, a := range res.Addresses {
		if !in.own[a] {
			return res, nil
		}
	}
	res.Running = res.Addresses
	if s.Preview {
		res.RestartPending = false
		return res, nil
	}
	body, err := machine.PatchVMI(vmi, set.Annotations, nil)
	if err != nil || body == nil {
		return res, err
	}
	_, err = s.KubeVirt.KubevirtV1().VirtualMachineInstances(in.ref.Namespace).Patch(ctx, in.ref.Name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
	if patch.IsConflict(err) {
		return Result{}, errLost // KubeVirt writes the instance all the time: decide again
	}
	if err != nil {
		s.warn("%s has its address, but the running instance could not be annotated (%v): a live migration would lose the address; restart it first", object(in.ref), err)
		return res, nil
	}
	res.RestartPending, res.Unchanged = false, false
	return res, nil
}

// giveBack takes back a row that this request has written. An address that no VM was ever told is free
// at once, also for a caller who may not patch the VM: nobody else goes on with the row before it is
// under another operation. Where an admission policy keeps labels from the caller, it cools down.
func (s *Service) giveBack(ctx context.Context, in *intent, c ledger.Claimed) error {
	if c.New && !in.sent {
		err := s.Ledger.Transition(ctx, c.Entry, nil)
		if err == nil || ledger.IsChanged(err) {
			return nil
		}
		if !apierrors.IsForbidden(err) {
			return err
		}
	}
	return s.takeLost(ctx, in.ref, c.Entry)
}

// undo takes back the rows that a refused request has written.
func (s *Service) undo(ctx context.Context, in *intent, got []ledger.Claimed) error {
	if s.Preview || s.DryRun {
		return nil
	}
	var errs []error
	// A request that was interrupted still cleans up after itself.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, c := range got {
		if c.Err != nil || !c.Fresh {
			continue
		}
		if err := s.giveBack(ctx, in, c); err != nil {
			errs = append(errs, fmt.Errorf("taking %s back: %w; run the command again", c.Entry.Addr, err))
		}
	}
	return errors.Join(errs...)
}
