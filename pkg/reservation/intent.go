package reservation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// intent is a request that has passed every check and may be written.
type intent struct {
	req Request
	// vm is nil where the machine does not exist yet.
	vm      *kubevirtv1.VirtualMachine
	ref     machine.Ref
	iface   machine.Interface
	owner   ledger.Owner
	pool    ledger.Pool
	profile profile.Profile
	// rows are the owner's, said what the VM itself says of them; nil where that is nothing or
	// another machine's.
	rows []ledger.Entry
	said *ledger.Reservations
	// families are what the machine is to have, wanted the addresses that were asked for.
	families []address.Family
	wanted   map[address.Family]netip.Addr
	// own are the addresses that pods of this very machine were seen to have.
	own map[netip.Addr]bool
	// sent is set once the answer to a patch of the VM was lost: it may have been applied.
	sent bool
	// looked is set once pods were asked for an address that the machine is to have.
	looked bool
	vmi    *kubevirtv1.VirtualMachineInstance
	reads  *reads
	// adopted says who shows the addresses that are adopted.
	adopted map[netip.Addr]claimant
}

// intend reads what a decision needs and makes every check that needs no row to be written.
func (s *Service) intend(ctx context.Context, req Request, reads *reads) (*intent, error) {
	in := &intent{req: req, ref: req.VM, wanted: map[address.Family]netip.Addr{}, own: map[netip.Addr]bool{}, reads: reads}
	for _, a := range req.Addresses {
		f := address.FamilyOf(a)
		if other, twice := in.wanted[f]; twice {
			return nil, refuse(req.VM, "TwoOfAFamily", "%s and %s are both %s: an interface has one address a family", other, a, f)
		}
		in.wanted[f] = a
	}
	if err := s.readMachine(ctx, in); err != nil {
		return nil, err
	}
	if err := s.readLedger(ctx, in); err != nil {
		return nil, err
	}
	if req.Adopt {
		if err := s.adopt(ctx, in); err != nil {
			return nil, err
		}
	}
	var err error
	if in.pool, err = s.choosePool(ctx, in); err != nil {
		return nil, err
	}
	if err := in.chooseFamilies(); err != nil {
		return nil, err
	}
	if in.vm == nil {
		return in, s.guess(ctx, in)
	}
	return in, s.preflight(ctx, in)
}

// guess finds the network of a machine that does not exist yet: the pool's. What can't be found
// out now is asked when the machine is there.
func (s *Service) guess(ctx context.Context, in *intent) error {
	in.iface.Attachment, in.iface.Pod = in.pool.Attachment, in.pool.Attachment == ""
	cluster, err := s.firstProfiles(ctx, in)
	if err != nil {
		return fmt.Errorf("%s: which network plugin holds its address can't be found out: %w", object(in.ref), err)
	}
	if in.profile, err = cluster.For(ctx, in.iface); err != nil {
		return &RefusedError{Object: object(in.ref), Code: "NoProfile", Err: err}
	}
	return nil
}

// readMachine reads the VM and its instance, and finds the interface.
func (s *Service) readMachine(ctx context.Context, in *intent) (err error) {
	req := in.req
	in.vm, err = s.firstVM(ctx, in)
	if apierrors.IsNotFound(err) && req.Ahead {
		name := req.Interface
		if name == "" {
			name = kubevirtv1.DefaultPodNetwork().Name
		}
		in.iface = machine.Interface{Name: name}
		in.owner = ledger.Owner{Namespace: req.VM.Namespace, Name: req.VM.Name, Interface: name}
		return nil
	}
	if err != nil {
		return err
	}
	vm := in.vm
	if vm.DeletionTimestamp != nil {
		return refuse(req.VM, "BeingDeleted", "it is being deleted")
	}
	if vm.Spec.Template == nil {
		return refuse(req.VM, "NoTemplate", "it has no spec.template to write to")
	}
	said, err := ledger.ReservationsOf(vm.Annotations)
	if err != nil {
		return malformed(req.VM, err)
	}
	// An annotation that a clone or a restore has copied does not count.
	if said != nil && said.UID == vm.UID {
		in.said = said
		if said.Ledger != s.Ledger.Namespace {
			return refuse(req.VM, "SecondLedger", "its addresses are in the ledger in namespace %s, not %s: use --ledger-namespace %s", said.Ledger, s.Ledger.Namespace, said.Ledger)
		}
	}
	if in.vmi, err = s.firstVMI(ctx, in); err != nil {
		return err
	}
	view := &machine.View{VM: vm, VMI: in.vmi}
	if in.iface, err = pick(req.VM, view.Interfaces(), req.Interface); err != nil {
		return err
	}
	in.owner = ledger.Owner{Namespace: vm.Namespace, Name: vm.Name, UID: vm.UID, Interface: in.iface.Name}
	return nil
}

// malformed refuses a machine whose own annotation can't be read.
func malformed(ref machine.Ref, err error) error {
	return refuse(ref, "MalformedAnnotation", "%w: remove it with: kubectl annotate vm %s -n %s %s-, then reserve again", err, ref.Name, ref.Namespace, ledger.AnnotationReservations)
}

// readLedger finds the owner's rows. Those that an earlier replacement or release has left behind
// are moved on first, so that they don't stand in the way of the next one.
func (s *Service) readLedger(ctx context.Context, in *intent) (err error) {
	unreadable := func(err error) error {
		return &RefusedError{Object: object(in.ref), Code: "LedgerUnreadable", Err: err}
	}
	if in.rows, err = s.firstRows(ctx, in); err != nil {
		return unreadable(err)
	}
	if !in.req.Replace || s.Preview || s.DryRun {
		return nil
	}
	if moved, err := s.moveOn(ctx, in.ref, in.rows); err != nil || !moved {
		return err
	}
	if in.rows, err = s.Ledger.RowsOf(ctx, in.owner); err != nil {
		return unreadable(err)
	}
	return nil
}

// named is the address of a family that the VM itself names for the interface.
func (in *intent) named(f address.Family) netip.Addr {
	if in.said != nil {
		for _, a := range in.said.Interfaces[in.iface.Name].Addrs() {
			if address.FamilyOf(a) == f {
				return a
			}
		}
	}
	return netip.Addr{}
}

// chooseFamilies finds which families the interface is to have: those asked for, or the pool's;
// and in any case those that it has, since one annotation carries all of them.
func (in *intent) chooseFamilies() error {
	in.families = in.pool.Families()
	if len(in.wanted) == 0 {
		return nil
	}
	in.families = nil
	for _, f := range address.Families {
		has := slices.ContainsFunc(in.rows, func(e ledger.Entry) bool {
			return e.Err == nil && e.Family() == f && e.Row.State == ledger.Reserved && e.Addr == in.named(f)
		})
		if !in.wanted[f].IsValid() && has && !(in.pool.Contains(in.named(f))) {
			return refuse(in.ref, "OtherPool", "interface %s has %s, which is not of pool %s: an interface has its addresses from one pool; release it first", in.iface.Name, in.named(f), in.pool.Name)
		}
		if in.wanted[f].IsValid() || has {
			in.families = append(in.families, f)
		}
	}
	return nil
}

// claim is what the intent asks the ledger for in one family.
func (s *Service) claim(in *intent, f address.Family, op string) ledger.Claim {
	c := ledger.Claim{
		Owner: in.owner, Pool: in.pool.Name, Family: f, Wanted: in.wanted[f], Named: in.named(f),
		Adopt: in.req.Adopt, MAC: in.iface.MAC, Op: op, Preview: s.Preview, Gone: s.gone, Read: &ledger.Read{Rows: in.rows, Pool: in.pool},
		Usable: func(ctx context.Context, a netip.Addr) (string, error) { return s.usable(ctx, in, a) },
	}
	// Of two families only the ones that were asked for move.
	c.Replace = in.req.Replace && (len(in.wanted) == 0 || in.wanted[f].IsValid())
	if in.req.MAC != "" {
		c.MAC = in.req.MAC
	}
	return c
}

// complete returns the rows that the VM already names for every family asked for; nil where
// something is missing.
func (s *Service) complete(in *intent) []ledger.Claimed {
	if in.said == nil && in.vm != nil || in.req.Replace && len(in.wanted) == 0 {
		return nil
	}
	var have []ledger.Claimed
	for _, f := range in.families {
		c, err := s.claim(in, f, "").Standing(in.rows, in.pool)
		if err != nil || c.Entry.Row.State != ledger.Reserved || c.Entry.Row.UID != in.owner.UID {
			return nil
		}
		if in.vm != nil && c.Entry.Addr != in.named(f) || in.req.MAC != "" && c.Entry.Row.MAC != in.req.MAC {
			return nil
		}
		have = append(have, c)
	}
	return have
}

// choosePool finds the pool of a request: the one named, the one that holds the address, the one
// that the interface has its addresses from, or the only one that serves it.
func (s *Service) choosePool(ctx context.Context, in *intent) (ledger.Pool, error) {
	req := in.req
	if req.Pool != "" {
		p, err := s.pool(ctx, in.reads, req.Pool)
		if err != nil {
			return ledger.Pool{}, claimRefused(req.VM, err)
		}
		if why := in.unfit(p); why != "" {
			return ledger.Pool{}, refuse(req.VM, "PoolDoesNotServe", "%s", why)
		}
		return p, nil
	}
	pools, err := s.pools(ctx, in.reads)
	// A pool that can't be read may be the one that serves the machine. It does not matter where
	// the rows of the machine decide, or addresses that lie in a pool that can be read.
	damaged := (*ledger.DamagedPoolsError)(nil)
	if err != nil && !errors.As(err, &damaged) {
		return ledger.Pool{}, fmt.Errorf("%s: %w", object(req.VM), err)
	}
	if len(pools) == 0 && damaged == nil {
		return ledger.Pool{}, refuse(req.VM, "NoPool", "the ledger in namespace %s has no pool: make one with: kubectl vmip pool add NAME --cidr CIDR", s.Ledger.Namespace)
	}
	wanted := slices.Collect(maps.Values(in.wanted))
	if len(wanted) == 0 {
		if p := in.poolOfRows(pools); p != nil {
			return *p, nil
		}
	}
	var fit []ledger.Pool
	var why []string
	for _, p := range pools {
		if w := in.unfit(p); w != "" {
			why = append(why, w)
			continue
		}
		if slices.ContainsFunc(wanted, func(a netip.Addr) bool { return !p.Contains(a) }) {
			why = append(why, fmt.Sprintf("pool %s has CIDR %s", p.Name, strings.Join(p.CIDRs, ",")))
			continue
		}
		fit = append(fit, p)
	}
	switch {
	case damaged != nil && !(len(fit) == 1 && len(wanted) > 0):
		return ledger.Pool{}, &RefusedError{Object: object(req.VM), Code: "DamagedPool", Err: fmt.Errorf("%w; or choose another pool with --pool", damaged)}
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) == 0 && len(wanted) > 0:
		return ledger.Pool{}, refuse(req.VM, string(address.RuleOutside), "no pool can give it %s: %s", address.Join(wanted), strings.Join(why, "; "))
	case len(fit) == 0:
		return ledger.Pool{}, refuse(req.VM, "PoolDoesNotServe", "no pool serves it: %s", strings.Join(why, "; "))
	}
	var names []string
	for _, p := range fit {
		names = append(names, p.Name)
	}
	return ledger.Pool{}, refuse(req.VM, "PoolNeeded", "several pools serve it: choose one of %s with --pool", strings.Join(names, ", "))
}

// poolOfRows is the pool of the address that the interface has, or is to have back; nil where it
// has none.
func (in *intent) poolOfRows(pools []ledger.Pool) *ledger.Pool {
	for _, state := range []ledger.State{ledger.Reserved, ledger.Releasing, ledger.Held} {
		for _, e := range in.rows {
			if e.Err != nil || e.Row.State != state || state == ledger.Held && e.Row.UID != in.owner.UID {
				continue
			}
			for i := range pools {
				if p := &pools[i]; p.Network == e.Network && p.Contains(e.Addr) && in.unfit(*p) == "" {
					return p
				}
			}
		}
	}
	return nil
}

// unfit says why a pool is not for the machine's interface; "" where it is.
func (in *intent) unfit(p ledger.Pool) string {
	if why := p.Serves(in.ref.Namespace); why != "" || in.vm == nil {
		return why
	}
	iface := in.iface
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

// preflight asks the network profile and the rules that all commands share.
func (s *Service) preflight(ctx context.Context, in *intent) error {
	cluster, err := s.firstProfiles(ctx, in)
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
	if err := s.followTemplate(ctx, in); err != nil {
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
		if !a.IsValid() {
			a = anyOf(space, f)
		} else if err := space.Check(a); err != nil && !in.pool.Contains(a) {
			return claimRefused(in.ref, fmt.Errorf("pool %s: %w", in.pool.Name, err))
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

// anyOf is an address that automatic choice may take.
func anyOf(space *address.Space, f address.Family) netip.Addr {
	for b := range space.Blocks(f) {
		for a := range space.InBlock(b) {
			return a
		}
	}
	return netip.Addr{}
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

// followTemplate lets an automatic choice take what the template asks for already: another address
// would move the machine at its next start, and nobody has asked for that. What a reservation of the
// machine has written, or one that a clone was copied with, asks for nothing by itself, and neither does
// an address that is another machine's.
func (s *Service) followTemplate(ctx context.Context, in *intent) error {
	annotations := in.vm.Spec.Template.ObjectMeta.Annotations
	if said, err := ledger.ReservationsOf(in.vm.Annotations); err != nil || in.req.Replace || said != nil && carriesAny(annotations, said.Interfaces[in.iface.Name].Annotations) {
		return nil // readMachine has refused what can't be read
	}
	asked, err := in.profile.Claims(annotations, in.iface)
	if err != nil {
		return nil // the rules that follow refuse it
	}
	for _, a := range asked {
		f := address.FamilyOf(a)
		own := slices.ContainsFunc(in.rows, func(e ledger.Entry) bool { return e.Family() == f && e.Row.State != ledger.Leaving })
		if own || in.wanted[f].IsValid() || !slices.Contains(in.families, f) {
			continue
		}
		if !in.pool.Contains(a) {
			return refuse(in.ref, "TemplateAsks", "its template asks for %s already, which is not of pool %s: name a pool that has it, or choose its new address with --ip", a, in.pool.Name)
		}
		e, taken, err := s.Ledger.Row(ctx, in.pool.Network, a)
		if err != nil {
			return fmt.Errorf("%s: %w", object(in.ref), err)
		}
		if taken && e.Err == nil && e.Row.VM != in.owner.VM() && e.Row.State != ledger.Held {
			s.warn("%s: its template asks for %s, which is %s by %s: it gets another address", object(in.ref), a, e.Row.State, e.Row.VM)
			continue
		}
		in.wanted[f] = a
	}
	return nil
}

// carriesAny says whether one of the annotations is there as it was written.
func carriesAny(have, written map[string]string) bool {
	for k, v := range written {
		if have[k] == v {
			return true
		}
	}
	return false
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
