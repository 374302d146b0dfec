package reservation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
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
	// Waiting says why a released address is not free yet.
	Waiting string
}

// intent is a request that has passed every check and may be written.
type intent struct {
	vm      *kubevirtv1.VirtualMachine
	ref     machine.Ref
	iface   machine.Interface
	owner   ledger.Owner
	pool    ledger.Pool
	profile profile.Profile
	// families are what the machine is to have, wanted the addresses that were asked for.
	families []address.Family
	wanted   map[address.Family]netip.Addr
	// own are the addresses that pods of this very machine were seen to have.
	own map[netip.Addr]bool
	// looked is set once pods were asked for an address that the machine is to have.
	looked bool
	vmi    *kubevirtv1.VirtualMachineInstance
}

// Reserve gives one interface its addresses: the ledger's row first, then the VM's template. It
// is idempotent, and safe to repeat after any failure.
func (s *Service) Reserve(ctx context.Context, req Request) (Result, error) {
	for try := 0; ; try++ {
		res, err := s.reserve(ctx, req)
		if !errors.Is(err, errLost) {
			return res, err
		}
		// Somebody reserves for the same interface. Let them finish, then see what came of it.
		select {
		case <-ctx.Done():
			return res, fmt.Errorf("%s: %w", object(req.VM), context.Cause(ctx))
		case <-time.After(rand.N(min(10*time.Millisecond<<min(try, 6), 500*time.Millisecond))):
		}
	}
}

func (s *Service) reserve(ctx context.Context, req Request) (Result, error) {
	in, err := s.intend(ctx, req)
	if err != nil {
		return Result{}, err
	}
	rows, err := s.Ledger.RowsOf(ctx, in.owner)
	if err != nil {
		return Result{}, &RefusedError{Object: object(req.VM), Code: "LedgerUnreadable", Err: err}
	}
	said, err := ledger.ReservationsOf(in.vm.Annotations)
	if err != nil {
		return Result{}, refuse(req.VM, "MalformedAnnotation", "%w: remove the annotation, then reserve again", err)
	}
	if have := in.complete(rows, said); have != nil {
		set, err := in.profile.Render(in.ref, in.iface, addrsOf(have))
		if err != nil {
			return Result{}, &RefusedError{Object: object(req.VM), Code: "NotSupported", Err: err}
		}
		if carriesAll(in.vm.Spec.Template.ObjectMeta.Annotations, set.Annotations) {
			return s.finish(ctx, in, have, set, true)
		}
	}
	op := ledger.NewOp()
	var got, fresh []ledger.Entry
	for _, f := range in.families {
		e, err := s.Ledger.Claim(ctx, ledger.Claim{
			Owner: in.owner, Pool: in.pool.Name, PoolChosen: req.Pool != "", Family: f, Wanted: in.wanted[f],
			MAC: in.iface.MAC, Op: op, Preview: s.Preview,
			Usable: func(ctx context.Context, a netip.Addr) (string, error) { return s.usable(ctx, in, a) },
			Gone:   s.gone,
		})
		if err != nil {
			return Result{}, errors.Join(claimRefused(req.VM, err), s.undo(ctx, in, fresh))
		}
		got = append(got, e)
		if !slices.ContainsFunc(rows, func(r ledger.Entry) bool { return r.Addr == e.Addr && r.Row.State == ledger.Reserved }) {
			fresh = append(fresh, e)
		}
	}
	set, err := in.profile.Render(in.ref, in.iface, addrsOf(got))
	if err != nil {
		return Result{}, errors.Join(&RefusedError{Object: object(req.VM), Code: "NotSupported", Err: err}, s.undo(ctx, in, fresh))
	}
	if err := s.ensure(ctx, set.Objects); err != nil {
		return Result{}, errors.Join(fmt.Errorf("%s: %w", object(req.VM), err), s.undo(ctx, in, fresh))
	}
	if err := s.patchVM(ctx, in, got, set, op); err != nil {
		if final(err) {
			err = errors.Join(err, s.undo(ctx, in, fresh))
		}
		return Result{}, err
	}
	return s.finish(ctx, in, got, set, false)
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

// intend reads what a decision needs and makes every check that needs no row.
func (s *Service) intend(ctx context.Context, req Request) (*intent, error) {
	vm, err := s.getVM(ctx, req.VM)
	if err != nil {
		return nil, err
	}
	if vm.DeletionTimestamp != nil {
		return nil, refuse(req.VM, "BeingDeleted", "it is being deleted")
	}
	if vm.Spec.Template == nil {
		return nil, refuse(req.VM, "NoTemplate", "it has no spec.template to write to")
	}
	if said, err := ledger.ReservationsOf(vm.Annotations); err == nil && said != nil && said.UID == vm.UID && said.Ledger != s.Ledger.Namespace {
		return nil, refuse(req.VM, "SecondLedger", "its addresses are in the ledger in namespace %s, not %s: use --ledger-namespace %s", said.Ledger, s.Ledger.Namespace, said.Ledger)
	}
	in := &intent{vm: vm, ref: req.VM, wanted: map[address.Family]netip.Addr{}, own: map[netip.Addr]bool{}}
	if in.vmi, err = s.getVMI(ctx, req.VM); err != nil {
		return nil, err
	}
	view := &machine.View{VM: vm, VMI: in.vmi}
	if in.iface, err = pick(req.VM, view.Interfaces(), req.Interface); err != nil {
		return nil, err
	}
	in.owner = ledger.Owner{Namespace: vm.Namespace, Name: vm.Name, UID: vm.UID, Interface: in.iface.Name}
	for _, a := range req.Addresses {
		f := address.FamilyOf(a)
		if other, twice := in.wanted[f]; twice {
			return nil, refuse(req.VM, "TwoOfAFamily", "%s and %s are both %s: an interface has one address a family", other, a, f)
		}
		in.wanted[f] = a
	}
	if in.pool, err = s.choosePool(ctx, req, in.iface); err != nil {
		return nil, err
	}
	in.families = in.pool.Families()
	if len(in.wanted) > 0 {
		in.families = slices.DeleteFunc(slices.Clone(address.Families), func(f address.Family) bool { return !in.wanted[f].IsValid() })
	}
	return in, s.preflight(ctx, in)
}

// preflight asks the network profile and the rules that all commands share.
func (s *Service) preflight(ctx context.Context, in *intent) error {
	cluster, err := s.profiles(ctx)
	if err != nil {
		return fmt.Errorf("%s: which network plugin holds its address can't be found out: %w", object(in.ref), err)
	}
	if in.pool.Profile != ledger.ProfileAuto {
		in.profile, err = cluster.Named(in.pool.Profile)
	} else {
		in.profile, err = cluster.For(ctx, in.iface)
	}
	if err != nil {
		return &RefusedError{Object: object(in.ref), Code: "NoProfile", Err: err}
	}
	in.profile = within(in.profile, in.pool)
	if len(in.families) > 1 && len(in.wanted) == 0 && in.profile.Capabilities(in.iface).DualStack.Answer == profile.No {
		in.families = in.families[:1]
		s.warn("pool %s has both families, and %s: only an IPv4 address is reserved", in.pool.Name, in.profile.Capabilities(in.iface).DualStack.Reason)
	}
	records, readErr := in.profile.Records(ctx, in.ref, in.iface)
	if err := in.follow(records); err != nil {
		return err
	}
	view := &machine.View{VM: in.vm, VMI: in.vmi}
	facts := preflight.NewInterface(view, in.iface, in.profile)
	facts.Families, facts.Records, facts.RecordsErr = len(in.families), records, readErr
	for _, f := range in.families {
		if w := in.wanted[f]; w.IsValid() {
			facts.Want = append(facts.Want, w)
		}
	}
	var refused []string
	code := ""
	for _, v := range preflight.Reserve(preflight.Facts{View: view, Interfaces: []preflight.Interface{facts}, Neighbours: neighbours(ctx, cluster, view, in.iface.Name)}) {
		switch v.Severity {
		case preflight.Refuse:
			if code == "" {
				code = v.Code
			}
			refused = append(refused, v.Message+remedy(v.Remedy))
		case preflight.Warn, preflight.Unverified:
			s.warn("%s: %s: %s%s", object(in.ref), v.Code, v.Message, inBrackets(v.Remedy))
		}
	}
	if len(refused) > 0 {
		return &RefusedError{Object: object(in.ref), Code: code, Err: errors.New(strings.Join(refused, "; "))}
	}
	return in.renderable()
}

// renderable tries whether the plugin can be asked for such addresses at all, before anything is
// written: with those that are wanted, or with some of the pool.
func (in *intent) renderable() error {
	space, err := in.pool.Space()
	if err != nil {
		return err
	}
	var probe []netip.Addr
	for _, f := range in.families {
		a := in.wanted[f]
		if cidr, ok := space.CIDR(f); !a.IsValid() && ok {
			a = cidr.Addr()
		}
		if a.IsValid() {
			probe = append(probe, a)
		}
	}
	if _, err := in.profile.Render(in.ref, in.iface, probe); err != nil {
		return &RefusedError{Object: object(in.ref), Code: "NotSupported", Err: err}
	}
	return nil
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func remedy(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// neighbours are the machine's other interfaces: a plugin that reads one annotation for the whole
// pod would give them the address too. One whose network can't be told reads nothing.
func neighbours(ctx context.Context, cluster *profile.Cluster, view *machine.View, name string) (list []preflight.Interface) {
	for _, i := range view.Interfaces() {
		if i.Name == name {
			continue
		}
		if p, err := cluster.For(ctx, i); err == nil {
			list = append(list, preflight.NewInterface(view, i, p))
		}
	}
	return list
}

// follow lets an automatic choice take what the plugin has recorded for the machine and will give
// it in any case. An address that was asked for is left to the rules.
func (in *intent) follow(records []profile.Record) error {
	for _, r := range records {
		for _, a := range r.Addresses {
			f := address.FamilyOf(a)
			switch {
			case !r.Wins || in.wanted[f].IsValid() || !slices.Contains(in.families, f):
			case in.pool.Contains(a):
				in.wanted[f] = a
			default:
				return refuse(in.ref, "RecordWins", "%s already holds %s for it (%s), which is outside pool %s and would win over any address of the pool: stop the machine and give the record up first: %s", in.profile.Name(), a, r.Object, in.pool.Name, r.Release)
			}
		}
	}
	return nil
}

// choosePool finds the pool of a request: the one named, the one that holds the address, or the
// only one that serves the interface and namespace.
func (s *Service) choosePool(ctx context.Context, req Request, iface machine.Interface) (ledger.Pool, error) {
	if req.Pool != "" {
		p, err := s.Ledger.Pool(ctx, req.Pool)
		if err != nil {
			return ledger.Pool{}, claimRefused(req.VM, err)
		}
		if why := unfit(*p, req.VM, iface); why != "" {
			return ledger.Pool{}, refuse(req.VM, "PoolDoesNotServe", "%s", why)
		}
		return *p, nil
	}
	pools, err := s.Ledger.Pools(ctx)
	if err != nil {
		return ledger.Pool{}, fmt.Errorf("%s: %w", object(req.VM), err)
	}
	if len(pools) == 0 {
		return ledger.Pool{}, refuse(req.VM, "NoPool", "the ledger in namespace %s has no pool: make one with: kubectl vmip pool add NAME --cidr CIDR", s.Ledger.Namespace)
	}
	var fit []ledger.Pool
	var why []string
	for _, p := range pools {
		if w := unfit(p, req.VM, iface); w != "" {
			why = append(why, w)
			continue
		}
		if slices.ContainsFunc(req.Addresses, func(a netip.Addr) bool { return !p.Contains(a) }) {
			why = append(why, fmt.Sprintf("pool %s has CIDR %s", p.Name, strings.Join(p.CIDRs, ",")))
			continue
		}
		fit = append(fit, p)
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) == 0 && len(req.Addresses) > 0:
		return ledger.Pool{}, refuse(req.VM, string(address.RuleOutside), "no pool can give it %s: %s", address.Join(req.Addresses), strings.Join(why, "; "))
	case len(fit) == 0:
		return ledger.Pool{}, refuse(req.VM, "PoolDoesNotServe", "no pool serves it: %s", strings.Join(why, "; "))
	}
	var names []string
	for _, p := range fit {
		names = append(names, p.Name)
	}
	return ledger.Pool{}, refuse(req.VM, "PoolNeeded", "several pools serve it: choose one of %s with --pool", strings.Join(names, ", "))
}

// unfit says why a pool is not for that machine's interface; "" where it is.
func unfit(p ledger.Pool, ref machine.Ref, iface machine.Interface) string {
	if why := p.Serves(ref.Namespace); why != "" {
		return why
	}
	if p.Attachment != iface.Attachment {
		serves, is := p.Attachment, iface.Attachment
		if serves == "" {
			serves = "the pod network"
		}
		if is == "" {
			is = "the pod network"
		}
		return fmt.Sprintf("pool %s is for %s, interface %s is on %s", p.Name, serves, iface.Name, is)
	}
	return ""
}

// complete returns the rows that the VM already names for every family asked for; nil where
// something is missing. An annotation that a clone or a restore has copied does not count.
func (in *intent) complete(rows []ledger.Entry, said *ledger.Reservations) []ledger.Entry {
	if said == nil || said.UID != in.vm.UID {
		return nil
	}
	var have []ledger.Entry
	for _, f := range in.families {
		i := slices.IndexFunc(rows, func(e ledger.Entry) bool {
			return e.Family() == f && e.Row.State == ledger.Reserved && e.Row.UID == in.vm.UID && e.Network == in.pool.Network && in.pool.Contains(e.Addr) &&
				(!in.wanted[f].IsValid() || in.wanted[f] == e.Addr) && said.Names(in.iface.Name, e.Addr)
		})
		if i < 0 {
			return nil
		}
		have = append(have, rows[i])
	}
	return have
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
		pods, may, err := s.podsWith(ctx, a)
		if err != nil {
			return "", err
		}
		if !may {
			s.warn("you may not list pods, so whether a pod has the address was not checked")
		}
		for i := range pods {
			p := &pods[i]
			if carries(p, in.vmi, in.vm.UID) {
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

// patchVM writes the template. Before every try it reads the VM, then the rows: it goes on only
// while they are reserved under this operation.
func (s *Service) patchVM(ctx context.Context, in *intent, rows []ledger.Entry, set profile.Rendering, op string) error {
	if s.Preview {
		return nil
	}
	for try := 0; ; try++ {
		vm, err := s.getVM(ctx, in.ref)
		if err != nil {
			return err
		}
		if vm.UID != in.vm.UID {
			return errLost // deleted and made again meanwhile: decide anew
		}
		if !s.DryRun {
			for _, e := range rows {
				now, ok, err := s.Ledger.Row(ctx, e.Network, e.Addr)
				if err != nil {
					return err
				}
				if !ok || now.Err != nil || now.Row.Op != op || now.Row.State != ledger.Reserved || now.Row.UID != in.vm.UID {
					return errLost
				}
			}
		}
		said, err := ledger.ReservationsOf(vm.Annotations)
		if err != nil {
			return refuse(in.ref, "MalformedAnnotation", "%w: remove the annotation, then reserve again", err)
		}
		if said == nil || said.UID != vm.UID {
			said = &ledger.Reservations{Ledger: s.Ledger.Namespace, UID: vm.UID}
		}
		if said.Interfaces == nil {
			said.Interfaces = map[string]ledger.Reservation{}
		}
		old := said.Interfaces[in.iface.Name]
		if other := s.winner(ctx, in, said, rows); other {
			return errLost
		}
		mine := ledger.Reservation{Pool: in.pool.Name, Network: in.pool.Network, Op: op, Annotations: set.Annotations}
		for _, e := range rows {
			mine.Addresses = append(mine.Addresses, e.Addr.String())
		}
		said.Interfaces[in.iface.Name] = mine
		text, err := said.Encode()
		if err != nil {
			return err
		}
		patch, err := machine.Patch{
			SetTemplate:    set.Annotations,
			RemoveTemplate: stale(vm.Spec.Template.ObjectMeta.Annotations, old.Annotations, set.Annotations),
			Set:            map[string]string{ledger.AnnotationReservations: text, ledger.AnnotationLastOp: op},
		}.For(vm)
		if err != nil {
			return err
		}
		_, err = s.KubeVirt.KubevirtV1().VirtualMachines(in.ref.Namespace).Patch(ctx, in.ref.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
		switch {
		case err == nil:
			return nil
		case !machine.IsConflict(err):
			return fmt.Errorf("%s: %w", object(in.ref), err)
		}
		if err := wait(ctx, try); err != nil {
			return err
		}
	}
}

// winner says whether the VM meanwhile names another reserved row of this interface: another
// command was faster, and its address stays.
func (s *Service) winner(ctx context.Context, in *intent, said *ledger.Reservations, rows []ledger.Entry) bool {
	for _, a := range said.Interfaces[in.iface.Name].Addrs() {
		if slices.ContainsFunc(rows, func(e ledger.Entry) bool { return e.Addr == a }) {
			continue
		}
		f := address.FamilyOf(a)
		if !slices.Contains(in.families, f) {
			continue
		}
		e, ok, err := s.Ledger.Row(ctx, in.pool.Network, a)
		if err == nil && ok && e.Err == nil && e.Row.State == ledger.Reserved && e.Row.UID == in.vm.UID && e.Row.Names(in.owner) {
			return true
		}
	}
	return false
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

func wait(ctx context.Context, try int) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(min(5*time.Millisecond<<min(try, 6), 200*time.Millisecond))):
		return nil
	}
}

// final says whether a failed patch is known not to have been applied and not to succeed later:
// then the rows go back. Otherwise they stay, and the same command completes them.
func final(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
}

// finish tells what the reservation means for the running machine. Where the pod already has
// every address, the running instance is annotated too: a migration's target is made from it.
func (s *Service) finish(ctx context.Context, in *intent, rows []ledger.Entry, set profile.Rendering, unchanged bool) (Result, error) {
	res := Result{Pool: in.pool.Name, Interface: in.iface.Name, Addresses: addrsOf(rows), Unchanged: unchanged}
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
	patch, err := machine.PatchVMI(vmi, set.Annotations, nil)
	if err != nil || patch == nil {
		return res, err
	}
	_, err = s.KubeVirt.KubevirtV1().VirtualMachineInstances(in.ref.Namespace).Patch(ctx, in.ref.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
	if machine.IsConflict(err) {
		return Result{}, errLost // KubeVirt writes the instance all the time: decide again
	}
	if err != nil {
		s.warn("%s has its address, but the running instance could not be annotated (%v): a live migration would lose the address; restart it first", object(in.ref), err)
		return res, nil
	}
	res.RestartPending, res.Unchanged = false, false
	return res, nil
}

// undo takes back the rows that a refused request has written.
func (s *Service) undo(ctx context.Context, in *intent, rows []ledger.Entry) error {
	if s.Preview || s.DryRun {
		return nil
	}
	var errs []error
	// A request that was interrupted still cleans up after itself.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, e := range rows {
		if _, err := s.takeBack(ctx, in.ref, e); err != nil && !ledger.IsChanged(err) {
			errs = append(errs, fmt.Errorf("taking %s back: %w; run the command again", e.Addr, err))
		}
	}
	return errors.Join(errs...)
}

// within tells the profile the pool's subnets and gateways.
func within(p profile.Profile, pool ledger.Pool) profile.Profile {
	cidrs, err := pool.Prefixes()
	if err != nil {
		return p // a pool that was read is valid
	}
	var gateways []netip.Addr
	for _, g := range pool.Gateways {
		if a, err := address.Parse(g); err == nil {
			gateways = append(gateways, a)
		}
	}
	return profile.Within(p, cidrs, gateways)
}
