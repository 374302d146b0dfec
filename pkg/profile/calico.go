package profile

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Annotations that Calico reads on a pod (Calico documentation, use-specific-ip).
const (
	calicoIPAddrs       = "cni.projectcalico.org/ipAddrs"
	calicoIPAddrsNoIPAM = "cni.projectcalico.org/ipAddrsNoIpam"
	calicoHWAddr        = "cni.projectcalico.org/hwAddr"
)

// calico is Calico with its own IPAM. Up to 3.31 it gives addresses to containers; since 3.32 it
// gives them to VMs, unless that is switched off (Calico documentation 3.32, kubevirt-networking).
type calico struct {
	calicoFacts
	reader Reader
	// attachment is set where the interface's network is one of Multus that replaces the pod's.
	attachment string
}

func (p *calico) Name() string    { return Calico }
func (p *calico) Version() string { return p.version.value }

func (p *calico) Evidence() []string {
	var e []string
	if p.node.name != "" {
		e = append(e, p.node.String()+" exists")
	}
	if p.version.failed() == nil {
		e = append(e, "Calico "+p.version.value)
	}
	if p.ipam.failed() == nil {
		e = append(e, "the CNI configuration names ipam "+p.ipam.value)
	}
	if p.pools.failed() == nil {
		for _, pool := range p.pools.value {
			e = append(e, "ippool "+pool.String())
		}
	}
	if p.persistence() == Yes {
		e = append(e, "KubeVirtVMAddressPersistence is Enabled")
	} else if !p.old() && p.persistent.failed() == nil && p.version.failed() == nil {
		e = append(e, "KubeVirtVMAddressPersistence is Disabled")
	}
	if p.attachment != "" {
		e = append(e, p.attachment)
	}
	for _, err := range p.unread() {
		if err != nil {
			e = append(e, err.Error())
		}
	}
	return e
}

func (p calicoPool) String() string {
	network := "without overlay"
	if p.overlay != "" {
		network = "with " + p.overlay
	}
	return fmt.Sprintf("%s %s %s", p.name, p.cidr, network)
}

// old says that this Calico certainly knows nothing of VMs.
func (p *calico) old() bool {
	older, ok := before(p.version.value, 3, 32)
	return ok && older
}

// persistence says whether an address belongs to the VM.
func (p *calico) persistence() Answer {
	switch {
	case p.old():
		return No
	case p.version.failed() != nil || p.persistent.failed() != nil:
		return Unverified
	case p.persistent.value:
		return Yes
	}
	return No
}

func (p *calico) title() string {
	if p.version.failed() != nil {
		return "Calico"
	}
	return "Calico " + shortVersion(p.version.value)
}

func (p *calico) Capabilities(i machine.Interface) Capabilities {
	switch {
	case i.Attachment != "" && !i.MultusDefault:
		return calicoSecondary(i).caps
	case p.present.failed() != nil:
		return unverified("whether Calico serves the pod network is unknown: " + p.present.failed().Error()).caps
	case p.ipam.failed() != nil:
		return unverified("the IPAM of Calico is unknown: " + p.ipam.failed().Error()).caps
	case p.ipam.value != calicoIPAM:
		return refuse(Calico, fmt.Sprintf("%s runs with ipam %s, which ipAddrs is not compatible with: it needs calico-ipam", p.title(), p.ipam.value)).caps
	}
	c := Capabilities{
		Choose:    Capability{Yes, p.title() + " gives a pod the address that ipAddrs names, if an ippool has it"},
		Migration: p.migration(i),
		DualStack: p.dualStack(),
	}
	switch p.persistence() {
	case Yes:
		c.Restart = Capability{Yes, p.title() + " keeps a VM's address while the VM exists"}
	default:
		c.Restart = Capability{Yes, p.title() + " frees the address with the pod and gives it to the next one on request: until then others may take it, unless an ipreservation covers it"}
	}
	return c
}

// calicoSecondary refuses an attachment: the annotation has no interface in it, so every interface
// that Calico makes for the pod would read it (calico issue 10554).
func calicoSecondary(i machine.Interface) *refusal {
	p := refuse(Calico, fmt.Sprintf("ipAddrs is pod-wide: Calico would read it for the pod network too, and not only for interface %s (networkattachmentdefinition %s)", i.Name, i.Attachment))
	p.keys = slices.Clone(calicoKeys)
	return p
}

func (p *calico) migration(i machine.Interface) Capability {
	switch p.persistence() {
	case No:
		if p.old() {
			return Capability{No, p.title() + " gives the target pod of a migration no address that the source holds"}
		}
		return Capability{No, p.title() + " refuses the target pod of a migration: KubeVirtVMAddressPersistence is Disabled"}
	case Unverified:
		err := p.version.failed()
		if err == nil {
			err = p.persistent.failed()
		}
		return Capability{Unverified, "whether Calico keeps the address over a migration is unknown: " + err.Error()}
	}
	switch {
	case i.Binding == machine.Masquerade:
		return Capability{No, p.title() + " supports live migration with bridge binding only, the interface has masquerade"}
	case i.Binding != machine.Bridge && i.Binding != "":
		return Capability{Unverified, fmt.Sprintf("%s documents live migration for bridge binding only, the interface has %s", p.title(), i.Binding)}
	case p.wireguard.failed() != nil:
		return Capability{Unverified, "whether Calico encrypts with WireGuard is unknown: " + p.wireguard.failed().Error()}
	case p.wireguard.value:
		return Capability{No, p.title() + " does not support live migration with WireGuard, which felixconfiguration default enables"}
	case p.pools.failed() != nil:
		return Capability{Unverified, "whether Calico uses an overlay is unknown: " + p.pools.failed().Error()}
	}
	return p.withoutOverlay()
}

// withoutOverlay requires plain BGP of the pools: routes of an overlay don't follow the VM yet.
func (p *calico) withoutOverlay() Capability {
	var overlay, plain []string
	for _, pool := range p.pools.value {
		switch {
		case pool.disabled:
		case pool.overlay != "":
			overlay = append(overlay, fmt.Sprintf("%s (%s)", pool.name, pool.overlay))
		default:
			plain = append(plain, pool.name)
		}
	}
	switch {
	case len(overlay) == 0:
		return Capability{Yes, p.title() + " gives the target pod of a migration the VM's address (persistence Enabled, no overlay)"}
	case len(plain) == 0:
		return Capability{No, fmt.Sprintf("%s supports live migration without overlay only: ippool %s", p.title(), strings.Join(overlay, ", "))}
	}
	return Capability{Unverified, fmt.Sprintf("%s supports live migration without overlay only: it depends on the address, ippool %s has one, %s has not", p.title(), strings.Join(overlay, ", "), strings.Join(plain, ", "))}
}

func (p *calico) dualStack() Capability {
	switch p.persistence() {
	case Yes:
		// Read in the IPAM plugin of v3.32.0 and v3.32.1: the call for the second family finds the
		// VM's first address and answers with that.
		return Capability{Unverified, p.title() + " asks its IPAM once a family, and answers both with the address that the VM has already: two families at once are not known to work"}
	case Unverified:
		return Capability{Unverified, "the version of Calico or its persistence is unknown, and since 3.32 two families at once are not known to work"}
	}
	if p.pools.failed() != nil {
		return Capability{Unverified, "the ippools of Calico are unknown: " + p.pools.failed().Error()}
	}
	for _, f := range address.Families {
		if !slices.ContainsFunc(p.pools.value, func(pool calicoPool) bool { return address.FamilyOf(pool.cidr.Addr()) == f }) {
			return Capability{No, fmt.Sprintf("Calico has no %s ippool", f)}
		}
	}
	return Capability{Yes, p.title() + " reads one address of each family in ipAddrs"}
}

// calicoKeys are read for every interface that Calico makes for the pod.
var calicoKeys = []string{calicoIPAddrs, calicoHWAddr}

func (p *calico) Keys(machine.Interface) []string { return slices.Clone(calicoKeys) }

func (p *calico) Render(vm machine.Ref, i machine.Interface, addrs []netip.Addr) (Rendering, error) {
	if i.Attachment != "" && !i.MultusDefault {
		return calicoSecondary(i).Render(vm, i, addrs)
	}
	addrs, err := oneEach(vm, i, addrs)
	if err != nil {
		return Rendering{}, err
	}
	if p.pools.failed() == nil {
		for _, a := range addrs {
			if _, ok := p.pool(a); !ok {
				return Rendering{}, fmt.Errorf("virtualmachine %s interface %s: address %s is in no ippool of Calico (%s): choose one that is, or add an ippool", vm, i.Name, a, poolList(p.pools.value))
			}
		}
	}
	// A JSON array even for one address; bare, without prefix lengths.
	value, err := json.Marshal(addrs)
	if err != nil {
		return Rendering{}, err
	}
	r := Rendering{Annotations: map[string]string{calicoIPAddrs: string(value)}}
	if i.MAC != "" {
		// The CNI has to know a pinned MAC too (KubeVirt issue 4566).
		r.Annotations[calicoHWAddr] = i.MAC
	}
	return r, nil
}

// pool finds the ippool that has an address.
func (p *calico) pool(a netip.Addr) (calicoPool, bool) {
	for _, pool := range p.pools.value {
		if pool.cidr.Contains(a) {
			return pool, true
		}
	}
	return calicoPool{}, false
}

func poolList(pools []calicoPool) string {
	s := make([]string, len(pools))
	for n, p := range pools {
		s[n] = p.name + " " + p.cidr.String()
	}
	if len(s) == 0 {
		return "there is none"
	}
	return strings.Join(s, ", ")
}

func (p *calico) Claims(annotations map[string]string, i machine.Interface) ([]netip.Addr, error) {
	value, ok := annotations[calicoIPAddrs]
	if !ok || i.Attachment != "" && !i.MultusDefault {
		return nil, nil
	}
	if annotations[calicoIPAddrsNoIPAM] != "" {
		return nil, fmt.Errorf("annotations %s and %s are both set: Calico accepts one of them", calicoIPAddrs, calicoIPAddrsNoIPAM)
	}
	var list []string
	if err := json.Unmarshal([]byte(value), &list); err != nil {
		if _, err := address.Parse(strings.TrimSpace(value)); err == nil {
			return nil, fmt.Errorf("annotation %s is %q: Calico reads a JSON array, write [%q]", calicoIPAddrs, value, strings.TrimSpace(value))
		}
		return nil, fmt.Errorf("annotation %s is %q: Calico reads a JSON array of addresses, such as [\"198.51.100.20\"]", calicoIPAddrs, value)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("annotation %s is empty: Calico refuses the pod", calicoIPAddrs)
	}
	return parseClaims(calicoIPAddrs, list)
}

// parseClaims reads bare addresses, at most one a family: what all plugins have in common.
func parseClaims(key string, list []string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, s := range list {
		a, err := address.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", key, err)
		}
		for _, b := range addrs {
			if address.FamilyOf(a) == address.FamilyOf(b) {
				return nil, fmt.Errorf("annotation %s has two %s addresses, %s and %s: one a family is accepted", key, address.FamilyOf(a), b, a)
			}
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// oneEach checks that there is an address and at most one a family, and puts IPv4 first.
func oneEach(vm machine.Ref, i machine.Interface, addrs []netip.Addr) ([]netip.Addr, error) {
	if len(addrs) == 0 {
		return nil, fmt.Errorf("virtualmachine %s interface %s: no address to write", vm, i.Name)
	}
	addrs = slices.Clone(addrs)
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return int(address.FamilyOf(a)) - int(address.FamilyOf(b)) })
	for n := 1; n < len(addrs); n++ {
		if a, b := addrs[n-1], addrs[n]; address.FamilyOf(a) == address.FamilyOf(b) {
			return nil, fmt.Errorf("virtualmachine %s interface %s: two %s addresses, %s and %s: an interface has one a family", vm, i.Name, address.FamilyOf(a), a, b)
		}
	}
	return addrs, nil
}
