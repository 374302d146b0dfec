package cni

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/big"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Calico IPAM as the API holds it: pools are cut into blocks, a block has an affinity to a node and
// lists its allocations, a handle counts the addresses that one owner has in each block.

type calicoPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              calicoPoolSpec `json:"spec"`
}

type calicoPoolSpec struct {
	CIDR              string   `json:"cidr"`
	BlockSize         int      `json:"blockSize,omitempty"`
	IPIPMode          string   `json:"ipipMode,omitempty"`
	VXLANMode         string   `json:"vxlanMode,omitempty"`
	NATOutgoing       bool     `json:"natOutgoing,omitempty"`
	Disabled          bool     `json:"disabled,omitempty"`
	NodeSelector      string   `json:"nodeSelector,omitempty"`
	NamespaceSelector string   `json:"namespaceSelector,omitempty"`
	AssignmentMode    string   `json:"assignmentMode,omitempty"`
	AllowedUses       []string `json:"allowedUses,omitempty"`
}

func (p *calicoPool) prefix() netip.Prefix {
	c, _ := netip.ParsePrefix(p.Spec.CIDR)
	return c.Masked()
}

// blockBits is the prefix length of the pool's blocks.
func (p *calicoPool) blockBits() int {
	switch {
	case p.Spec.BlockSize != 0:
		return p.Spec.BlockSize
	case p.prefix().Addr().Is4():
		return 26
	}
	return 122
}

func (p *calicoPool) blockOf(a netip.Addr) netip.Prefix {
	b, _ := a.Prefix(p.blockBits())
	return b
}

type calicoReservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ReservedCIDRs []string `json:"reservedCIDRs,omitempty"`
	} `json:"spec"`
}

type calicoIPAMConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		AutoAllocateBlocks           bool   `json:"autoAllocateBlocks"`
		MaxBlocksPerHost             int    `json:"maxBlocksPerHost,omitempty"`
		StrictAffinity               bool   `json:"strictAffinity"`
		KubeVirtVMAddressPersistence string `json:"kubeVirtVMAddressPersistence,omitempty"`
	} `json:"spec"`
}

type calicoAffinity struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		CIDR    string `json:"cidr"`
		Deleted string `json:"deleted"`
		Node    string `json:"node"`
		State   string `json:"state"`
		Type    string `json:"type,omitempty"`
	} `json:"spec"`
}

type calicoBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              calicoBlockSpec `json:"spec"`
}

type calicoBlockSpec struct {
	CIDR                        string            `json:"cidr"`
	Affinity                    *string           `json:"affinity,omitempty"`
	AffinityClaimTime           *metav1.Time      `json:"affinityClaimTime,omitempty"`
	Allocations                 []*int            `json:"allocations"`
	Unallocated                 []int             `json:"unallocated"`
	Attributes                  []calicoAttribute `json:"attributes"`
	Deleted                     bool              `json:"deleted"`
	SequenceNumber              int64             `json:"sequenceNumber"`
	SequenceNumberForAllocation map[string]int64  `json:"sequenceNumberForAllocation"`
	StrictAffinity              bool              `json:"strictAffinity"`
}

// calicoAttribute says whose the addresses are that point to it. secondary is the JSON name of the
// active owner; the alternate one is the target of a migration.
type calicoAttribute struct {
	Handle    string            `json:"handle_id,omitempty"`
	Active    map[string]string `json:"secondary,omitempty"`
	Alternate map[string]string `json:"alternateOwnerAttrs,omitempty"`
}

type calicoHandle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		HandleID string         `json:"handleID"`
		Block    map[string]int `json:"block"`
		Deleted  bool           `json:"deleted"`
	} `json:"spec"`
}

func (b *calicoBlock) prefix() netip.Prefix {
	p, _ := netip.ParsePrefix(b.Spec.CIDR)
	return p
}

func (b *calicoBlock) addr(ordinal int) netip.Addr {
	return advance(b.prefix().Addr(), big.NewInt(int64(ordinal)))
}

func (b *calicoBlock) ordinal(a netip.Addr) int {
	return int(new(big.Int).Sub(bigAddr(a), bigAddr(b.prefix().Addr())).Int64())
}

func (b *calicoBlock) affine(host string) bool {
	return b.Spec.Affinity != nil && *b.Spec.Affinity == "host:"+host
}

// owned are the ordinals that belong to a handle.
func (b *calicoBlock) owned(handle string) []int {
	var out []int
	for o, i := range b.Spec.Allocations {
		if i != nil && b.Spec.Attributes[*i].Handle == handle {
			out = append(out, o)
		}
	}
	return out
}

func (b *calicoBlock) attribute(a netip.Addr) *calicoAttribute {
	i := b.Spec.Allocations[b.ordinal(a)]
	if i == nil {
		return nil
	}
	return &b.Spec.Attributes[*i]
}

func (b *calicoBlock) take(ordinal int, o allocation) {
	attr := calicoAttribute{Handle: o.handle, Active: o.attrs}
	i := slices.IndexFunc(b.Spec.Attributes, func(x calicoAttribute) bool { return reflect.DeepEqual(x, attr) })
	if i < 0 {
		i = len(b.Spec.Attributes)
		b.Spec.Attributes = append(b.Spec.Attributes, attr)
	}
	b.Spec.Allocations[ordinal] = &i
	b.Spec.Unallocated = slices.DeleteFunc(b.Spec.Unallocated, func(u int) bool { return u == ordinal })
	if b.Spec.SequenceNumberForAllocation == nil {
		b.Spec.SequenceNumberForAllocation = map[string]int64{}
	}
	b.Spec.SequenceNumberForAllocation[strconv.Itoa(ordinal)] = b.Spec.SequenceNumber
}

// free gives ordinals back, to the end of the list: the address that was free longest comes next.
func (b *calicoBlock) free(ordinals []int) {
	for _, o := range ordinals {
		b.Spec.Allocations[o] = nil
		b.Spec.Unallocated = append(b.Spec.Unallocated, o)
		delete(b.Spec.SequenceNumberForAllocation, strconv.Itoa(o))
	}
	var attrs []calicoAttribute
	moved := map[int]int{}
	for _, i := range b.Spec.Allocations {
		if i == nil {
			continue
		}
		if _, ok := moved[*i]; !ok {
			moved[*i] = len(attrs)
			attrs = append(attrs, b.Spec.Attributes[*i])
		}
		*i = moved[*i]
	}
	b.Spec.Attributes = attrs
}

// allocation is who asks for an address.
type allocation struct {
	handle, host string
	attrs        map[string]string
	// perVersion limits the addresses of a family on the handle: 1 for a VM, 0 is no limit.
	perVersion int
}

// config is the IPAM configuration. The first allocation creates it, as in Calico.
func (d *calico) config(ctx context.Context) (*calicoIPAMConfig, error) {
	c, err := d.configs.get(ctx, "", "default")
	if !apierrors.IsNotFound(err) {
		return c, err
	}
	c = &calicoIPAMConfig{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	c.Spec.AutoAllocateBlocks = true
	if d.persistence {
		c.Spec.KubeVirtVMAddressPersistence = "Enabled"
	}
	if err := d.configs.ensure(ctx, "", c); err != nil {
		return nil, err
	}
	return d.configs.get(ctx, "", "default")
}

// updateBlock writes a block if nobody changed it since.
func (d *calico) updateBlock(ctx context.Context, b *calicoBlock) error {
	b.Spec.SequenceNumber++
	if b.Spec.Attributes == nil {
		b.Spec.Attributes = []calicoAttribute{} // required by the definition
	}
	if b.Spec.Unallocated == nil {
		b.Spec.Unallocated = []int{}
	}
	_, err := d.blocks.update(ctx, "", b)
	return err
}

// assign takes the address a (AssignIP). Reservations do not bind it.
func (d *calico) assign(ctx context.Context, a netip.Addr, o allocation) error {
	pools, err := d.pools.list(ctx, "")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pools, func(p calicoPool) bool { return !p.Spec.Disabled && p.prefix().Contains(a) })
	if i < 0 {
		return errors.New("The provided IP address is not in a configured pool\n") //nolint:revive,staticcheck // Calico's own words
	}
	cfg, err := d.config(ctx)
	if err != nil {
		return err
	}
	cidr := pools[i].blockOf(a)
	return swap(ctx, func() error {
		b, err := d.blocks.get(ctx, "", cidrName(cidr))
		if apierrors.IsNotFound(err) {
			b, err = d.claim(ctx, cidr, o.host)
		}
		if err != nil {
			return err
		}
		if cfg.Spec.StrictAffinity && !b.affine(o.host) {
			return errors.New("Block host affinity does not match") //nolint:revive,staticcheck // Calico's own words
		}
		if attr := b.attribute(a); attr != nil {
			if o.perVersion > 0 && attr.Handle == o.handle {
				return nil
			}
			return d.alreadyAssigned(a)
		}
		if err := d.count(ctx, o, cidr, 1); err != nil {
			if full, ok := errors.AsType[errHandleFull](err); ok {
				return fmt.Errorf("handle %s already has IP(s) allocated, cannot assign additional IP %s (maxAllocPerIPVersion=1)", full.handle, a)
			}
			return err
		}
		b.take(b.ordinal(a), o)
		if err := d.updateBlock(ctx, b); err != nil {
			return errors.Join(d.count(ctx, o, cidr, -1), err)
		}
		return nil
	})
}

// alreadyAssigned is the conflict. Up to 3.31 the error drops its reason (libcalico-go, lib/errors).
func (d *calico) alreadyAssigned(a netip.Addr) error {
	if d.persistence {
		return fmt.Errorf("resource already exists: %s with error: Address already assigned in block", a)
	}
	return fmt.Errorf("resource already exists: %s", a)
}

// autoAssign takes a free address of a family (AutoAssign): from the node's blocks, then from a new
// block, then from other nodes' blocks.
func (d *calico) autoAssign(ctx context.Context, bits int, requested []netip.Prefix, all []calicoPool, namespace string, o allocation) (netip.Addr, error) {
	family := map[int]string{32: "IPv4", 128: "IPv6"}[bits]
	pools, err := d.usablePools(ctx, bits, requested, all, namespace, o.host)
	if err != nil {
		return netip.Addr{}, err
	}
	reserved, err := d.reserved(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	cfg, err := d.config(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	limit := cfg.Spec.MaxBlocksPerHost
	if limit == 0 {
		limit = 20
	}
	var got netip.Addr
	err = swap(ctx, func() error {
		blocks, err := d.blocks.list(ctx, "")
		if err != nil {
			return err
		}
		inPools := func(b calicoBlock) bool {
			return slices.ContainsFunc(pools, func(p calicoPool) bool { return p.prefix().Contains(b.prefix().Addr()) })
		}
		var mine, others []calicoBlock
		for _, b := range blocks {
			switch {
			case !inPools(b):
			case b.affine(o.host):
				mine = append(mine, b)
			default:
				others = append(others, b)
			}
		}
		for i := range mine {
			if a, err := d.takeFrom(ctx, &mine[i], reserved, o); err != nil || a.IsValid() {
				got = a
				return err
			}
		}
		if cfg.Spec.AutoAllocateBlocks {
			if cidr, ok := freeBlock(pools, blocks, reserved, o.host); ok {
				if len(mine) >= limit {
					return errors.New("cannot allocate new block due to per host block limit")
				}
				b, err := d.claim(ctx, cidr, o.host)
				if err != nil {
					return err
				}
				if !b.affine(o.host) {
					return apierrors.NewConflict(d.blocks.gvr.GroupResource(), b.Name, errors.New("claimed by another node"))
				}
				got, err = d.takeFrom(ctx, b, reserved, o)
				return err
			}
		}
		if !cfg.Spec.StrictAffinity {
			for i := range others {
				if a, err := d.takeFrom(ctx, &others[i], reserved, o); err != nil || a.IsValid() {
					got = a
					return err
				}
			}
		}
		return nil
	})
	if err == nil && !got.IsValid() {
		cidrs := make([]string, len(pools))
		for i, p := range pools {
			cidrs[i] = p.Spec.CIDR
		}
		why := fmt.Sprintf("No IPs available in pools: %v", cidrs)
		if cfg.Spec.StrictAffinity {
			why = "No more free affine blocks and strict affinity enabled"
		}
		err = fmt.Errorf("failed to request %s addresses: Assigned 0 out of 1 requested %s addresses; %s", family, family, why)
	}
	return got, err
}

// takeFrom takes the first address in the block that is neither used nor reserved, if any.
func (d *calico) takeFrom(ctx context.Context, b *calicoBlock, reserved []netip.Prefix, o allocation) (netip.Addr, error) {
	i := slices.IndexFunc(b.Spec.Unallocated, func(n int) bool {
		return !slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(b.addr(n)) })
	})
	if i < 0 {
		return netip.Addr{}, nil
	}
	n := b.Spec.Unallocated[i]
	if err := d.count(ctx, o, b.prefix(), 1); err != nil {
		return netip.Addr{}, err
	}
	b.take(n, o)
	if err := d.updateBlock(ctx, b); err != nil {
		return netip.Addr{}, errors.Join(d.count(ctx, o, b.prefix(), -1), err)
	}
	return b.addr(n), nil
}

// usablePools are the pools that an automatic address may come from.
func (d *calico) usablePools(ctx context.Context, bits int, requested []netip.Prefix, all []calicoPool, namespace, host string) ([]calicoPool, error) {
	var enabled []calicoPool
	for _, p := range all {
		if !p.Spec.Disabled && p.prefix().Addr().BitLen() == bits {
			enabled = append(enabled, p)
		}
	}
	if len(enabled) == 0 {
		return nil, errors.New("cannot find a qualified ippool")
	}
	if len(requested) > 0 { // selectors do not bind pools that were asked for
		var out []calicoPool
		for _, r := range requested {
			i := slices.IndexFunc(enabled, func(p calicoPool) bool { return p.prefix() == r })
			if i < 0 {
				return nil, fmt.Errorf("the given pool (%s) does not exist, or is not enabled", r)
			}
			out = append(out, enabled[i])
		}
		return out, nil
	}
	node, err := d.core.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ns, err := d.core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var out []calicoPool
	for _, p := range enabled {
		onNode, err := calicoSelects(p.Spec.NodeSelector, node.Labels)
		if err != nil {
			return nil, err
		}
		inNamespace, err := calicoSelects(p.Spec.NamespaceSelector, ns.Labels)
		if err != nil {
			return nil, err
		}
		if onNode && inNamespace && p.Spec.AssignmentMode != "Manual" {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no configured Calico pools for node %s", host)
	}
	out = slices.DeleteFunc(out, func(p calicoPool) bool {
		return len(p.Spec.AllowedUses) > 0 && !slices.Contains(p.Spec.AllowedUses, "Workload")
	})
	if len(out) == 0 {
		return nil, errors.New("cannot find a qualified ippool, no pools match the required use (Workload)")
	}
	return out, nil
}

// calicoSelects evaluates the part of Calico's selector language that pools are written in:
// all(), has(k), k == "v", k != "v", each with !, joined by &&.
func calicoSelects(selector string, labels map[string]string) (bool, error) {
	for term := range strings.SplitSeq(selector, "&&") {
		term = strings.TrimSpace(term)
		bare, negated := strings.CutPrefix(term, "!")
		bare = strings.TrimSpace(bare)
		var match bool
		if key, ok := strings.CutPrefix(bare, "has("); ok {
			_, match = labels[strings.TrimSuffix(key, ")")]
		} else if key, value, ok := strings.Cut(bare, "=="); ok {
			match = labels[strings.TrimSpace(key)] == strings.Trim(strings.TrimSpace(value), `'"`)
		} else if key, value, ok := strings.Cut(bare, "!="); ok {
			match = labels[strings.TrimSpace(key)] != strings.Trim(strings.TrimSpace(value), `'"`)
		} else if bare == "all()" || bare == "" {
			match = true
		} else {
			return false, fmt.Errorf("selector %q is not modelled", selector)
		}
		if match == negated {
			return false, nil
		}
	}
	return true, nil
}

func (d *calico) reserved(ctx context.Context) ([]netip.Prefix, error) {
	list, err := d.reservations.list(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("failed to look up reserved IPs: %w", err)
	}
	var out []netip.Prefix
	for _, r := range list {
		for _, c := range r.Spec.ReservedCIDRs {
			if p, err := netip.ParsePrefix(c); err == nil {
				out = append(out, p.Masked())
			} else if a, err := netip.ParseAddr(c); err == nil {
				out = append(out, single(a))
			}
		}
	}
	return out, nil
}

// freeBlock is a block of the pools that nobody has. Each node looks from its own place on, so that
// nodes seldom want the same one.
func freeBlock(pools []calicoPool, blocks []calicoBlock, reserved []netip.Prefix, host string) (netip.Prefix, bool) {
	taken := map[netip.Prefix]bool{}
	for _, b := range blocks {
		taken[b.prefix()] = true
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(host))
	for _, p := range pools {
		cidr, bits := p.prefix(), p.blockBits()
		size := new(big.Int).Lsh(big.NewInt(1), uint(cidr.Addr().BitLen()-bits))
		n := new(big.Int).Div(count(cidr), size)
		at := new(big.Int).Mod(big.NewInt(int64(h.Sum32())), n)
		tries := uint64(1 << 16) // enough for any pool that a test fills
		if n.IsUint64() {
			tries = min(tries, n.Uint64())
		}
		for range tries {
			b := netip.PrefixFrom(advance(cidr.Addr(), new(big.Int).Mul(at, size)), bits)
			if !taken[b] && !slices.ContainsFunc(reserved, func(r netip.Prefix) bool { return r.Bits() <= b.Bits() && r.Contains(b.Addr()) }) {
				return b, true
			}
			at.Mod(at.Add(at, big.NewInt(1)), n)
		}
	}
	return netip.Prefix{}, false
}

// claim makes a block the node's, or returns it as it is when another got there first.
func (d *calico) claim(ctx context.Context, cidr netip.Prefix, host string) (*calicoBlock, error) {
	aff := &calicoAffinity{ObjectMeta: metav1.ObjectMeta{Name: host + "-" + cidrName(cidr)}}
	aff.Spec.CIDR, aff.Spec.Deleted, aff.Spec.Node, aff.Spec.State, aff.Spec.Type = cidr.String(), "false", host, "pending", "host"
	if err := d.affinities.ensure(ctx, "", aff); err != nil {
		return nil, err
	}
	size := int(count(cidr).Int64())
	b := &calicoBlock{ObjectMeta: metav1.ObjectMeta{Name: cidrName(cidr)}}
	b.Spec = calicoBlockSpec{CIDR: cidr.String(), Affinity: new("host:" + host), Allocations: make([]*int, size), Attributes: []calicoAttribute{}, Unallocated: make([]int, size)}
	for i := range b.Spec.Unallocated {
		b.Spec.Unallocated[i] = i
	}
	if d.persistence {
		b.Spec.AffinityClaimTime = new(metav1.NewTime(time.Now()))
	}
	created, err := d.blocks.create(ctx, "", b)
	if apierrors.IsAlreadyExists(err) {
		created, err = d.blocks.get(ctx, "", b.Name)
	}
	if err != nil {
		return nil, err
	}
	if !created.affine(host) {
		return created, d.affinities.delete(ctx, "", aff.Name)
	}
	return created, swap(ctx, func() error {
		a, err := d.affinities.get(ctx, "", aff.Name)
		if err != nil || a.Spec.State == "confirmed" {
			return err
		}
		a.Spec.State = "confirmed"
		_, err = d.affinities.update(ctx, "", a)
		return err
	})
}

// errHandleFull says that a handle has as many addresses of the family as it may have.
type errHandleFull struct{ handle string }

func (e errHandleFull) Error() string {
	return fmt.Sprintf("handle %s has its IP already", e.handle)
}

// count adds n addresses in a block to a handle, which is created and deleted as needed.
func (d *calico) count(ctx context.Context, o allocation, block netip.Prefix, n int) error {
	name := strings.ToLower(o.handle)
	return swap(ctx, func() error {
		h, err := d.handles.get(ctx, "", name)
		missing := apierrors.IsNotFound(err)
		switch {
		case missing && n < 0:
			return nil
		case missing:
			h = &calicoHandle{ObjectMeta: metav1.ObjectMeta{Name: name}}
			h.Spec.HandleID = o.handle
		case err != nil:
			return err
		}
		if h.Spec.Block == nil {
			h.Spec.Block = map[string]int{}
		}
		if n > 0 && o.perVersion > 0 {
			total := 0
			for c, m := range h.Spec.Block {
				if strings.Contains(c, ":") == block.Addr().Is6() {
					total += m
				}
			}
			if total+n > o.perVersion {
				return errHandleFull{o.handle}
			}
		}
		if h.Spec.Block[block.String()] += n; h.Spec.Block[block.String()] <= 0 {
			delete(h.Spec.Block, block.String())
		}
		switch {
		case missing:
			_, err = d.handles.create(ctx, "", h)
		case len(h.Spec.Block) == 0:
			err = d.handles.delete(ctx, "", name, metav1.Preconditions{ResourceVersion: &h.ResourceVersion})
		default:
			_, err = d.handles.update(ctx, "", h)
		}
		return err
	})
}

// owned are the addresses of a handle, in no order: Calico walks a map of blocks.
func (d *calico) owned(ctx context.Context, handle string) ([]netip.Addr, error) {
	h, err := d.handles.get(ctx, "", strings.ToLower(handle))
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	var out []netip.Addr
	for c := range h.Spec.Block {
		b, err := d.blockOf(ctx, c)
		if err != nil {
			continue // Calico logs it and goes on
		}
		for _, o := range b.owned(handle) {
			out = append(out, b.addr(o))
		}
	}
	return out, nil
}

func (d *calico) blockOf(ctx context.Context, cidr string) (*calicoBlock, error) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, err
	}
	return d.blocks.get(ctx, "", cidrName(p))
}

// releaseHandle frees every address of a handle.
func (d *calico) releaseHandle(ctx context.Context, handle string) error {
	h, err := d.handles.get(ctx, "", strings.ToLower(handle))
	if err != nil {
		return ignoreNotFound(err)
	}
	for c := range maps.Clone(h.Spec.Block) {
		if err := swap(ctx, func() error {
			b, err := d.blockOf(ctx, c)
			if err != nil {
				return ignoreNotFound(err)
			}
			o := b.owned(handle)
			if len(o) == 0 {
				return nil
			}
			b.free(o)
			if err := d.updateBlock(ctx, b); err != nil {
				return err
			}
			return d.count(ctx, allocation{handle: handle}, b.prefix(), -len(o))
		}); err != nil {
			return err
		}
	}
	return nil
}

// releaseAddress frees one address (calicoctl ipam release). A handle, where given, has to match.
func (d *calico) releaseAddress(ctx context.Context, a netip.Addr, handle string) error {
	return swap(ctx, func() error {
		blocks, err := d.blocks.list(ctx, "")
		if err != nil {
			return err
		}
		i := slices.IndexFunc(blocks, func(b calicoBlock) bool { return b.prefix().Contains(a) })
		if i < 0 {
			return nil
		}
		attr := blocks[i].attribute(a)
		if attr == nil || handle != "" && attr.Handle != handle {
			return nil
		}
		holder := attr.Handle
		blocks[i].free([]int{blocks[i].ordinal(a)})
		if err := d.updateBlock(ctx, &blocks[i]); err != nil {
			return err
		}
		return d.count(ctx, allocation{handle: holder}, blocks[i].prefix(), -1)
	})
}

// podGone says whether a pod no longer holds the address that its record gives it
// (kube-controllers, IPAM garbage collection).
func podGone(p *corev1.Pod, a netip.Addr) bool {
	switch {
	case p.Status.PodIP == "":
		return false
	case p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted":
		return true
	}
	if v, ok := p.Annotations[calicoPodIP]; ok && v == "" { // DEL was there
		return true
	}
	return !slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == a.String() })
}
