package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

const (
	keySpec    = "spec"    // the specification in force
	keyPending = "pending" // an announced change: only what both allow is handed out
	keyPools   = "pools"
	keyCluster = "cluster"
)

func poolName(name string) string       { return "vmip-pool-" + name }
func networkName(network string) string { return "vmip-network-" + network }

// poolObject is a pool where it stands.
type poolObject struct {
	cm   *corev1.ConfigMap
	spec Pool
	// pending is set while a change is under way; a removal is a pending pool without CIDRs.
	pending *Pool
	// change is the operation that announced it: only it may commit or withdraw.
	change string
	// damage says why the specification can't be read; spec is then what is known of it. It is not
	// rewritten, only replaced.
	damage error
}

func parsePool(cm *corev1.ConfigMap) (*poolObject, error) {
	name, ok := strings.CutPrefix(cm.Name, "vmip-pool-")
	if !ok {
		return nil, fmt.Errorf("configmap %s is labelled as a pool but not named as one", cm.Name)
	}
	p := &poolObject{cm: cm, change: cm.Annotations[AnnotationFence]}
	parse := func(key string, into *Pool) error {
		if err := yaml.UnmarshalStrict([]byte(cm.Data[key]), into); err != nil {
			return fmt.Errorf("pool %s: %s: %w", name, key, err)
		}
		into.Name = name
		return nil
	}
	if err := parse(keySpec, &p.spec); err != nil {
		return nil, err
	}
	spec, err := p.spec.Normalise()
	if err != nil {
		return nil, err
	}
	p.spec = spec
	if _, ok := cm.Data[keyPending]; ok {
		p.pending = &Pool{}
		if err := parse(keyPending, p.pending); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// encode puts the specifications into the object.
func (p *poolObject) encode() error {
	spec, err := yaml.Marshal(p.spec)
	if err != nil {
		return err
	}
	if p.damage != nil {
		spec = []byte(p.cm.Data[keySpec])
	}
	p.cm.Data = map[string]string{keySpec: string(spec)}
	p.cm.Labels = map[string]string{LabelKind: KindPool, LabelNetwork: p.spec.Network, LabelPool: p.spec.Name}
	p.cm.Annotations = map[string]string{AnnotationFormat: Format}
	if p.pending != nil {
		pending, err := yaml.Marshal(p.pending)
		if err != nil {
			return err
		}
		p.cm.Data[keyPending] = string(pending)
		p.cm.Annotations[AnnotationFence] = p.change
	}
	return nil
}

// cidrs are those of the specification in force and of the announced one.
func (p *poolObject) cidrs() []string {
	all := slices.Clone(p.spec.CIDRs)
	if p.pending != nil {
		all = append(all, p.pending.CIDRs...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// check says whether the address may be handed out now, by the specification in force and the
// one that is announced.
func (p *poolObject) check(a netip.Addr, namespace string, automatic bool) error {
	specs := []Pool{p.spec}
	if p.pending != nil {
		specs = append(specs, *p.pending)
	}
	for _, spec := range specs {
		if len(spec.CIDRs) == 0 {
			return fmt.Errorf("pool %s is being removed", p.spec.Name)
		}
		if why := spec.Serves(namespace); why != "" {
			return errors.New(why)
		}
		space, err := spec.Space()
		if err != nil {
			return fmt.Errorf("pool %s: %w", p.spec.Name, err)
		}
		if err := space.Check(a); err != nil {
			return fmt.Errorf("pool %s: %w", p.spec.Name, err)
		}
		if automatic && !space.Automatic(a) {
			return &address.NotAllowedError{Addr: a, Rule: address.RuleOutside, Detail: "is not in the ranges of pool " + p.spec.Name}
		}
	}
	return nil
}

func parseNetwork(cm *corev1.ConfigMap) (*Network, error) {
	n := &Network{Name: strings.TrimPrefix(cm.Name, "vmip-network-"), Cluster: types.UID(cm.Data[keyCluster]), Pools: map[string][]string{}}
	if err := yaml.UnmarshalStrict([]byte(cm.Data[keyPools]), &n.Pools); err != nil {
		return nil, fmt.Errorf("registry of network %s: %w", n.Name, err)
	}
	if n.Pools == nil {
		n.Pools = map[string][]string{}
	}
	return n, nil
}

// PoolNotFoundError names a pool that does not exist and those that do.
type PoolNotFoundError struct {
	Name      string
	Namespace string
	Have      []string
}

func (e *PoolNotFoundError) Error() string {
	if len(e.Have) == 0 {
		return fmt.Sprintf("pool %q not found: the ledger in namespace %s has no pool; make one with: kubectl vmip pool add %s --cidr CIDR", e.Name, e.Namespace, e.Name)
	}
	return fmt.Sprintf("pool %q not found in the ledger in namespace %s: choose one of %s", e.Name, e.Namespace, strings.Join(e.Have, ", "))
}

// DamagedPoolsError names pools whose specification can't be read.
type DamagedPoolsError struct {
	Namespace string
	// Pools has the reason by the pool's name.
	Pools map[string]error
}

func (e *DamagedPoolsError) Error() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(e.Pools)) {
		list = append(list, fmt.Sprintf("pool %s in the ledger in namespace %s can't be read (%v): repair it with: kubectl vmip pool set %s --cidr CIDR, or remove it with: kubectl vmip pool remove %s", name, e.Namespace, e.Pools[name], name, name))
	}
	return strings.Join(list, "; ")
}

// Pools returns the pools by name. Together with those that can be read it returns a
// *DamagedPoolsError where there are others: one of these may be the one that matters.
func (s *Store) Pools(ctx context.Context) ([]Pool, error) {
	list, err := s.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: LabelKind + "=" + KindPool})
	if err != nil {
		return nil, fmt.Errorf("pools in namespace %s: %w", s.Namespace, err)
	}
	var out []Pool
	damaged := &DamagedPoolsError{s.Namespace, map[string]error{}}
	for i := range list.Items {
		p, err := parsePool(&list.Items[i])
		if err != nil {
			damaged.Pools[strings.TrimPrefix(list.Items[i].Name, poolName(""))] = err
			continue
		}
		out = append(out, p.spec)
	}
	slices.SortFunc(out, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	if len(damaged.Pools) > 0 {
		return out, damaged
	}
	return out, nil
}

// poolToChange reads a pool that is to be changed or removed. What can't be read of it is what the
// registry says: so it can be repaired.
func (s *Store) poolToChange(ctx context.Context, name string) (*poolObject, error) {
	cm, err := s.get(ctx, poolName(name))
	if apierrors.IsNotFound(err) {
		return s.pool(ctx, name) // its error names the pools that there are
	}
	if err != nil {
		return nil, err
	}
	p, err := parsePool(cm)
	if err == nil {
		return p, nil
	}
	p = &poolObject{cm: cm, change: cm.Annotations[AnnotationFence], damage: err}
	if yaml.Unmarshal([]byte(cm.Data[keySpec]), &p.spec) != nil {
		p.spec = Pool{}
	}
	if p.spec.Name = name; cm.Labels[LabelNetwork] != "" {
		p.spec.Network = cm.Labels[LabelNetwork]
	}
	if p.spec.Network == "" {
		p.spec.Network = DefaultNetwork
	}
	if registry, err := s.get(ctx, networkName(p.spec.Network)); err == nil {
		if n, err := parseNetwork(registry); err == nil && len(n.Pools[name]) > 0 {
			p.spec.CIDRs = n.Pools[name]
		}
	}
	if whole, err := p.spec.Normalise(); err == nil {
		p.spec = whole
	} else {
		p.spec = Pool{Name: name, Network: p.spec.Network, CIDRs: p.spec.CIDRs}
	}
	return p, nil
}

// Pool returns one pool, or a *PoolNotFoundError.
func (s *Store) Pool(ctx context.Context, name string) (*Pool, error) {
	p, err := s.pool(ctx, name)
	if err != nil {
		return nil, err
	}
	return &p.spec, nil
}

func (s *Store) pool(ctx context.Context, name string) (*poolObject, error) {
	cm, err := s.get(ctx, poolName(name))
	if apierrors.IsNotFound(err) {
		missing := &PoolNotFoundError{Name: name, Namespace: s.Namespace}
		pools, _ := s.Pools(ctx) // for the message: those that can be read
		for _, p := range pools {
			missing.Have = append(missing.Have, p.Name)
		}
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	return parsePool(cm)
}

// AddPool registers a pool in its network and creates it. A pool that overlaps another one of
// the network is refused. An AddPool that died between its writes is completed by the next one
// with the same CIDRs.
func (s *Store) AddPool(ctx context.Context, p Pool, cluster types.UID) (Pool, error) {
	p, err := p.Normalise()
	if err != nil {
		return Pool{}, err
	}
	obj := &poolObject{cm: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: poolName(p.Name)}}, spec: p}
	if err := obj.encode(); err != nil {
		return Pool{}, err
	}
	// A name that is taken must be refused before the registry changes.
	if old, err := s.pool(ctx, p.Name); err == nil {
		return Pool{}, s.completeAdd(ctx, old.spec, cluster)
	} else if missing := (*PoolNotFoundError)(nil); !errors.As(err, &missing) {
		return Pool{}, err
	}
	if err := s.register(ctx, p, cluster); err != nil {
		return Pool{}, err
	}
	if err := s.write(ctx, obj.cm); errors.Is(err, ErrChanged) {
		other, err := s.pool(ctx, p.Name)
		if err != nil {
			return Pool{}, err
		}
		return Pool{}, &PoolExistsError{Pool: other.spec}
	} else if err != nil {
		return Pool{}, errors.Join(err, s.cleanUp(ctx, p.Name, p.Network))
	}
	if s.DryRun {
		return p, nil
	}
	// A removal of the pool before this one may have taken the registry's entry away meanwhile.
	return p, s.trim(ctx, p.Name, p.Network)
}

// completeAdd ends an AddPool under a name that is taken. Where the pool's entry in the registry
// is missing, an AddPool or a removal has died: the entry is written again.
func (s *Store) completeAdd(ctx context.Context, p Pool, cluster types.UID) error {
	if !s.DryRun {
		cm, err := s.get(ctx, networkName(p.Network))
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		var n *Network
		if err == nil {
			if n, err = parseNetwork(cm); err != nil {
				return err
			}
		}
		if n == nil || n.Pools[p.Name] == nil {
			if err := s.register(ctx, p, cluster); err != nil {
				return err
			}
		}
	}
	return &PoolExistsError{Pool: p}
}

// PoolExistsError is an AddPool under a name that is taken.
type PoolExistsError struct{ Pool Pool }

func (e *PoolExistsError) Error() string {
	return fmt.Sprintf("pool %s already exists with CIDR %s: change it with: kubectl vmip pool set %s", e.Pool.Name, strings.Join(e.Pool.CIDRs, ","), e.Pool.Name)
}

// register writes the pool's CIDRs into the registry of its network.
func (s *Store) register(ctx context.Context, p Pool, cluster types.UID) error {
	return s.registry(ctx, p.Network, func(n *Network) error {
		if n.Cluster == "" {
			n.Cluster = cluster
		}
		if cluster != "" && n.Cluster != cluster {
			return fmt.Errorf("the ledger in namespace %s belongs to cluster %s, this is cluster %s: a ledger can't be moved by copying its objects", s.Namespace, n.Cluster, cluster)
		}
		if cidrs, ok := n.Pools[p.Name]; ok && !slices.Equal(slices.Sorted(slices.Values(cidrs)), slices.Sorted(slices.Values(p.CIDRs))) {
			return fmt.Errorf("network %s has pool %s registered with CIDR %s by a command that died: repeat it with that CIDR, then change it", n.Name, p.Name, strings.Join(cidrs, ","))
		}
		if err := n.admit(p); err != nil {
			return err
		}
		n.Pools[p.Name] = slices.Sorted(slices.Values(p.CIDRs))
		return nil
	})
}

// registry changes the registry of a network by compare-and-swap, creating it where it is missing.
func (s *Store) registry(ctx context.Context, network string, change func(*Network) error) error {
	return s.retry(ctx, func() error {
		cm, err := s.ConfigMaps.Get(ctx, networkName(network), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			cm, err = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Name:        networkName(network),
				Labels:      map[string]string{LabelKind: KindNetwork, LabelNetwork: network},
				Annotations: map[string]string{AnnotationFormat: Format},
			}}, nil
		}
		if err != nil {
			return s.describe(networkName(network), err)
		}
		if err := writable(cm); err != nil {
			return err
		}
		n, err := parseNetwork(cm)
		if err != nil {
			return err
		}
		if err := change(n); err != nil {
			return err
		}
		pools, err := yaml.Marshal(n.Pools)
		if err != nil {
			return err
		}
		cm.Data = map[string]string{keyPools: string(pools), keyCluster: string(n.Cluster)}
		// Also where nothing changes: whoever has read the registry before must meet a conflict.
		if cm.Annotations == nil {
			cm.Annotations = map[string]string{AnnotationFormat: Format}
		}
		cm.Annotations[AnnotationFence] = NewOp()
		return s.write(ctx, cm)
	})
}

func overlap(as, bs []string) (a, b netip.Prefix, ok bool) {
	for _, x := range as {
		for _, y := range bs {
			p, err1 := address.ParsePrefix(x)
			q, err2 := address.ParsePrefix(y)
			if err1 == nil && err2 == nil && p.Overlaps(q) {
				return p, q, true
			}
		}
	}
	return a, b, false
}

// RowsOutsideError names the rows that keep a pool from being changed or removed.
type RowsOutsideError struct {
	Pool    string
	Removal bool
	Rows    []Entry
}

func (e *RowsOutsideError) Error() string {
	var b strings.Builder
	if e.Removal {
		fmt.Fprintf(&b, "pool %s can't be removed: it has %d addresses in use or cooling down", e.Pool, len(e.Rows))
	} else {
		fmt.Fprintf(&b, "pool %s can't be changed: %d addresses that it has given out would no longer be allowed", e.Pool, len(e.Rows))
	}
	for i, r := range e.Rows {
		if i == 5 {
			fmt.Fprintf(&b, "\n  … and %d more", len(e.Rows)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %s", r)
		if r.Err == nil && r.Row.State == Held {
			fmt.Fprintf(&b, " until %s", r.Row.Until.UTC().Format("2006-01-02T15:04:05Z"))
		}
	}
	return b.String()
}

// SetPool is ChangePool with a whole specification.
func (s *Store) SetPool(ctx context.Context, p Pool) (Pool, error) {
	p, _, err := s.ChangePool(ctx, p.Name, func(Pool) Pool { return p })
	return p, err
}

// ChangePool changes a pool: it announces the new specification beside the old, fences every block,
// checks that no row is left outside, and commits; or withdraws and names the rows. The network
// and the name stay. A change that died is replaced by this one. edit is applied to what the pool is
// at the moment of the announcement, so that of two changes at once none is lost. changed is
// false where there was nothing to do.
func (s *Store) ChangePool(ctx context.Context, name string, edit func(Pool) Pool) (p Pool, changed bool, err error) {
	o, err := s.poolToChange(ctx, name)
	if err != nil {
		return Pool{}, false, err
	}
	if p, err = o.edited(edit); err != nil {
		return Pool{}, false, err
	}
	if o.damage == nil && o.pending == nil && samePool(o.spec, p) {
		if exact, err := s.exact(ctx, o); err != nil || exact {
			return o.spec, false, err
		}
	}
	return s.change(ctx, o, edit)
}

// InvalidPoolError is a specification that makes no sense: nothing was written.
type InvalidPoolError struct{ Err error }

func (e *InvalidPoolError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *InvalidPoolError) Unwrap() error { return e.Err }

// edited is the pool's specification after an edit.
func (p *poolObject) edited(edit func(Pool) Pool) (Pool, error) {
	to, err := edit(p.spec.clone()).Normalise()
	switch {
	case err != nil && p.damage != nil:
		return Pool{}, &InvalidPoolError{fmt.Errorf("%w; and what it was before can't be read: %w", err, p.damage)}
	case err != nil:
		return Pool{}, &InvalidPoolError{err}
	case to.Network != p.spec.Network:
		return Pool{}, fmt.Errorf("pool %s is in network %s: a pool can't change its network; add another pool", p.spec.Name, p.spec.Network)
	}
	to.OpenBlocks = max(to.OpenBlocks, p.spec.OpenBlocks)
	return to, nil
}

func (p Pool) clone() Pool {
	p.CIDRs, p.Ranges, p.Exclude = slices.Clone(p.CIDRs), slices.Clone(p.Ranges), slices.Clone(p.Exclude)
	p.Gateways, p.Namespaces = slices.Clone(p.Gateways), slices.Clone(p.Namespaces)
	return p
}

// samePool compares what people ask for; how far automatic choice has come is nobody's wish.
func samePool(a, b Pool) bool {
	a.OpenBlocks, b.OpenBlocks = 0, 0
	x, err1 := yaml.Marshal(a)
	y, err2 := yaml.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// exact says whether the registry has just what the pool hands out.
func (s *Store) exact(ctx context.Context, o *poolObject) (bool, error) {
	cm, err := s.get(ctx, networkName(o.spec.Network))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, err := parseNetwork(cm)
	return err == nil && slices.Equal(slices.Sorted(slices.Values(n.Pools[o.spec.Name])), o.cidrs()), err
}

// RemovePool removes a pool; refused while rows of it exist. Its blocks stay. Where a removal died
// after the pool had gone, its entry in the registry goes too.
func (s *Store) RemovePool(ctx context.Context, name string) error {
	o, err := s.poolToChange(ctx, name)
	if err == nil {
		_, _, err = s.change(ctx, o, nil)
	}
	if missing := (*PoolNotFoundError)(nil); !errors.As(err, &missing) {
		return err
	}
	networks, lerr := s.networksWith(ctx, name)
	if lerr != nil {
		return lerr
	}
	if len(networks) == 0 {
		return err
	}
	for _, network := range networks {
		if err := s.trim(ctx, name, network); err != nil {
			return err
		}
	}
	return nil
}

// networksWith are the networks in whose registry a pool has an entry.
func (s *Store) networksWith(ctx context.Context, pool string) (names []string, err error) {
	list, err := s.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: LabelKind + "=" + KindNetwork})
	if err != nil {
		return nil, fmt.Errorf("networks in namespace %s: %w", s.Namespace, err)
	}
	for i := range list.Items {
		n, err := parseNetwork(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if _, ok := n.Pools[pool]; ok {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

// withdrawTime is how long an interrupted change may take to clean up after itself.
const withdrawTime = 10 * time.Second

// cleanUp brings the registry in line with a pool after a command that was interrupted or refused.
func (s *Store) cleanUp(ctx context.Context, name, network string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	return s.trim(ctx, name, network)
}

// change is ChangePool, and RemovePool where edit is nil. The registry's entry of a pool covers
// the specification in force at every moment, and the announced one before it comes into force: it
// is extended before the announcement, and again after it, since another change may have cut it in
// between; it is cut last.
func (s *Store) change(ctx context.Context, current *poolObject, edit func(Pool) Pool) (to Pool, changed bool, err error) {
	name, network := current.spec.Name, current.spec.Network
	plan := func(o *poolObject) (Pool, error) {
		if edit == nil {
			return Pool{Name: name, Network: network}, nil // no CIDRs: a removal
		}
		return o.edited(edit)
	}
	if to, err = plan(current); err != nil {
		return Pool{}, false, err
	}
	if s.DryRun {
		return to, true, s.wouldChange(ctx, current.spec, to)
	}
	op := NewOp()
	if edit != nil {
		if err := s.extend(ctx, to); err != nil {
			if Ambiguous(err) {
				err = errors.Join(err, s.cleanUp(ctx, name, network))
			}
			return Pool{}, false, err
		}
	}
	var old Pool
	err = s.updatePool(ctx, name, func(o *poolObject) (err error) {
		if to, err = plan(o); err != nil {
			return err
		}
		pending := to
		old, o.pending, o.change = o.spec, &pending, op
		return nil
	})
	if apierrors.IsForbidden(err) && edit == nil {
		return Pool{}, false, err // nothing was written, and nothing is to be withdrawn
	}
	if err == nil {
		err = s.carry(ctx, name, op, old, to)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
		defer cancel()
		if werr := s.withdraw(ctx, name, network, op); werr != nil {
			return Pool{}, false, errors.Join(err, fmt.Errorf("withdrawing the change: %w; repeat the command", werr))
		}
		return Pool{}, false, err
	}
	return to, true, s.cleanUp(ctx, name, network)
}

// wouldChange makes the checks of a change and writes nothing.
func (s *Store) wouldChange(ctx context.Context, old, to Pool) error {
	if len(to.CIDRs) > 0 {
		cm, err := s.get(ctx, networkName(to.Network))
		if err != nil {
			return err
		}
		n, err := parseNetwork(cm)
		if err != nil {
			return err
		}
		if err := n.admit(to); err != nil {
			return err
		}
	}
	return s.outside(ctx, old, to)
}

// carry takes an announced change to its end.
func (s *Store) carry(ctx context.Context, name, op string, old, to Pool) error {
	removal := len(to.CIDRs) == 0
	if !removal {
		if err := s.extend(ctx, to); err != nil {
			return err
		}
	}
	if err := s.fence(ctx, op, old, to); err != nil {
		return err
	}
	if err := s.outside(ctx, old, to); err != nil {
		return err
	}
	if removal {
		return s.deletePool(ctx, name, op)
	}
	return s.updatePool(ctx, name, func(o *poolObject) error {
		if o.change != op {
			return &otherChangeError{name}
		}
		open := max(to.OpenBlocks, o.spec.OpenBlocks)
		o.spec, o.pending, o.change, o.damage = to, nil, "", nil
		o.spec.OpenBlocks = open
		return nil
	})
}

type otherChangeError struct{ pool string }

func (e *otherChangeError) Error() string {
	return fmt.Sprintf("pool %s is being changed by another command: run this one again", e.pool)
}

// deletePool deletes exactly the object that announces this removal.
func (s *Store) deletePool(ctx context.Context, name, op string) error {
	return s.retry(ctx, func() error {
		o, err := s.poolToChange(ctx, name)
		if missing := (*PoolNotFoundError)(nil); errors.As(err, &missing) {
			return nil // an answer that was lost, or another removal
		}
		if err != nil {
			return err
		}
		if o.change != op {
			return &otherChangeError{name}
		}
		err = s.ConfigMaps.Delete(ctx, poolName(name), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.cm.UID, ResourceVersion: &o.cm.ResourceVersion}})
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return nil
		case apierrors.IsConflict(err) || Ambiguous(err):
			return ErrChanged
		}
		return s.describe(poolName(name), err)
	})
}

// withdraw takes an announcement back, where it still stands, and what it added to the registry.
func (s *Store) withdraw(ctx context.Context, name, network, op string) error {
	err := s.updatePool(ctx, name, func(o *poolObject) error {
		if o.change != op {
			return &otherChangeError{name}
		}
		o.pending, o.change = nil, ""
		return nil
	})
	other, missing := (*otherChangeError)(nil), (*PoolNotFoundError)(nil)
	if err != nil && !errors.As(err, &other) && !errors.As(err, &missing) {
		return err
	}
	return s.trim(ctx, name, network)
}

// trim cuts the registry's entry of a pool to what the pool has and announces; where there is no
// pool it goes. The registry is read before the pool is: a change that is announced meanwhile
// writes the registry too, so that this write meets a conflict.
func (s *Store) trim(ctx context.Context, name, network string) error {
	return s.registry(ctx, network, func(n *Network) error {
		o, err := s.poolToChange(ctx, name)
		if missing := (*PoolNotFoundError)(nil); errors.As(err, &missing) {
			delete(n.Pools, name)
			return nil
		}
		if err != nil {
			return err
		}
		if o.damage != nil {
			return nil // the registry is all that is known of it
		}
		have := o.spec
		have.CIDRs = o.cidrs()
		if err := n.admit(have); err != nil {
			return err
		}
		n.Pools[name] = have.CIDRs
		return nil
	})
}

// extend adds the new CIDRs of a pool to its registry entry, refusing an overlap.
func (s *Store) extend(ctx context.Context, to Pool) error {
	name := to.Name
	return s.registry(ctx, to.Network, func(n *Network) error {
		if err := n.admit(to); err != nil {
			return err
		}
		for _, c := range to.CIDRs {
			if !slices.Contains(n.Pools[name], c) {
				n.Pools[name] = append(slices.Clone(n.Pools[name]), c)
			}
		}
		slices.Sort(n.Pools[name])
		return nil
	})
}

func (s *Store) updatePool(ctx context.Context, name string, change func(*poolObject) error) error {
	return s.retry(ctx, func() error {
		p, err := s.poolToChange(ctx, name)
		if err != nil {
			return err
		}
		if err := writable(p.cm); err != nil {
			return err
		}
		if err := change(p); err != nil {
			return err
		}
		if err := p.encode(); err != nil {
			return err
		}
		return s.write(ctx, p.cm)
	})
}

// fence writes an id that was never used before into every block that either specification can
// reach, so that a writer who decided by the old specification meets a conflict. Blocks of the
// open ranges that are missing are created, since creating is how a writer meets a missing block.
func (s *Store) fence(ctx context.Context, op string, specs ...Pool) error {
	prefixes := map[netip.Prefix]bool{}
	network := specs[0].Network
	var cidrs []netip.Prefix
	for _, p := range specs {
		if len(p.CIDRs) == 0 {
			continue
		}
		space, err := p.Space()
		if err != nil {
			return err
		}
		own, err := p.Prefixes()
		if err != nil {
			return err
		}
		cidrs = append(cidrs, own...)
		for _, f := range p.Families() {
			for _, b := range p.open(space, f) {
				prefixes[b] = true
			}
		}
	}
	list, err := s.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: LabelKind + "=" + KindBlock + "," + LabelNetwork + "=" + network})
	if err != nil {
		return fmt.Errorf("blocks of network %s: %w", network, err)
	}
	for i := range list.Items {
		b, err := parseBlock(&list.Items[i])
		if err != nil {
			return err
		}
		if slices.ContainsFunc(cidrs, b.prefix.Overlaps) {
			prefixes[b.prefix] = true
		}
	}
	for prefix := range prefixes {
		err := s.retry(ctx, func() error {
			b, err := s.block(ctx, network, prefix)
			if err != nil {
				return err
			}
			if b == nil {
				b = newBlock(network, prefix)
			}
			if b.cm.Annotations == nil {
				b.cm.Annotations = map[string]string{AnnotationFormat: Format}
			}
			b.cm.Annotations[AnnotationFence] = op
			return s.save(ctx, b)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// outside finds rows of the old specification that the new one does not allow.
func (s *Store) outside(ctx context.Context, old, to Pool) error {
	snap, err := s.Snapshot(ctx)
	if err != nil {
		return err
	}
	var space *address.Space
	removal := len(to.CIDRs) == 0
	if !removal {
		if space, err = to.Space(); err != nil {
			return err
		}
	}
	refused := &RowsOutsideError{Pool: old.Name, Removal: removal}
	for _, e := range snap.Entries {
		// A key that is no address is nobody's row: audit reports it. A row that can't be read counts.
		if e.Network != old.Network || !old.Contains(e.Addr) {
			continue
		}
		if e.Err == nil && e.Row.State == Foreign || e.Err == nil && e.Row.State == Held && e.Row.Until.Before(s.Clock.Now()) && removal {
			continue
		}
		if space != nil && space.Check(e.Addr) == nil {
			continue
		}
		refused.Rows = append(refused.Rows, e)
	}
	if len(refused.Rows) > 0 {
		return refused
	}
	return nil
}

// Usage counts how full a pool is: the addresses of automatic choice and those without a row.
func (s *Snapshot) Usage(p Pool) (total, free *big.Int, rows map[State]int, err error) {
	space, err := p.Space()
	if err != nil {
		return nil, nil, nil, err
	}
	total, rows = new(big.Int), map[State]int{}
	for _, f := range p.Families() {
		total.Add(total, space.Count(f))
	}
	free = new(big.Int).Set(total)
	for _, e := range s.Entries {
		if e.Network != p.Network || !p.Contains(e.Addr) {
			continue
		}
		if e.Err == nil {
			rows[e.Row.State]++
		} else {
			rows["damaged"]++
		}
		if space.Automatic(e.Addr) {
			free.Sub(free, big.NewInt(1))
		}
	}
	return total, free, rows, nil
}

// NotServed are the namespaces that have reservations in a pool which is not for them.
func (s *Snapshot) NotServed(p Pool) []string {
	found := map[string]bool{}
	for _, e := range s.Entries {
		if e.Err == nil && e.Row.State == Reserved && e.Network == p.Network && p.Contains(e.Addr) {
			if ns := e.Row.Owner().Namespace; p.Serves(ns) != "" {
				found[ns] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// CheckPool says what keeps a pool from being added to the ledger that was read.
func (s *Snapshot) CheckPool(p Pool) error {
	for _, other := range s.Pools {
		if other.Name == p.Name {
			return &PoolExistsError{Pool: other}
		}
	}
	for _, n := range s.Networks {
		if n.Name == p.Network {
			return n.admit(p)
		}
	}
	return nil
}

// admit says whether the registry lets a pool have its CIDRs.
func (n Network) admit(p Pool) error {
	for name, cidrs := range n.Pools {
		if name == p.Name {
			continue
		}
		if a, b, ok := overlap(cidrs, p.CIDRs); ok {
			return fmt.Errorf("pool %s: CIDR %s overlaps CIDR %s of pool %s in network %s: an address has one pool; isolated networks need --network", p.Name, b, a, name, n.Name)
		}
	}
	return nil
}
