package profile

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// calicoBlock is an IPAMBlock: a run of addresses with one entry each in allocations, null or the
// index of an attribute that says whose it is (libcalico-go/lib/backend/model/block.go).
type calicoBlock struct {
	CIDR        string `json:"cidr"`
	Allocations []*int `json:"allocations"`
	Attributes  []struct {
		Handle string            `json:"handle_id"`
		Owner  map[string]string `json:"secondary"`
		Target map[string]string `json:"alternateOwnerAttrs"`
	} `json:"attributes"`
}

// vmHandle is the identifier under which Calico since 3.32 keeps a VM's addresses
// (libcalico-go/lib/ipam/vmipam): by name, not by UID, and limited to 128 characters.
func vmHandle(network string, vm machine.Ref) string {
	const limit = 128
	prefix, suffix := network+".vmi.", vm.Namespace+"."+vm.Name
	if len(prefix)+len(suffix) <= limit {
		return prefix + suffix
	}
	sum := sha256.Sum256([]byte(suffix))
	hash := base64.RawURLEncoding.EncodeToString(sum[:])
	return prefix + "_" + hash[:min(len(hash), limit-1-len(prefix))]
}

// Records reads the VM's handle and the blocks that it counts. Calico before 3.32 has none: its
// allocations are containers'.
func (p *calico) Records(ctx context.Context, vm machine.Ref, i machine.Interface) ([]Record, error) {
	if p.old() || i.Attachment != "" && !i.MultusDefault {
		return nil, nil
	}
	handle := vmHandle(p.network, vm)
	o, err := p.reader.get(ctx, p.gvr("ipamhandles"), "", strings.ToLower(handle))
	switch {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	counts, _, _ := unstructured.NestedMap(o.Object, "spec", "block")
	r := Record{Object: "ipamhandle/" + o.GetName(), Wins: p.persistence() != No}
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("ipamhandle %s counts block %q, which is no CIDR", o.GetName(), text)
		}
		b, err := p.block(ctx, cidr)
		switch {
		case absent(err):
			continue // emptied since
		case err != nil:
			return nil, err
		}
		for ordinal, n := range b.Allocations {
			if n != nil && *n < len(b.Attributes) && b.Attributes[*n].Handle == handle {
				r.Addresses = append(r.Addresses, offset(cidr.Addr(), ordinal))
			}
		}
	}
	if len(r.Addresses) == 0 {
		return nil, nil
	}
	ips := make([]string, len(r.Addresses))
	for n, a := range r.Addresses {
		ips[n] = "calicoctl ipam release --ip=" + a.String()
	}
	r.Release = strings.Join(ips, " && ")
	return []Record{r}, nil
}

// block reads the IPAMBlock of a CIDR.
func (p *calico) block(ctx context.Context, cidr netip.Prefix) (*calicoBlock, error) {
	o, err := p.reader.get(ctx, p.gvr("ipamblocks"), "", blockName(cidr))
	if err != nil {
		return nil, err
	}
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	b := &calicoBlock{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(spec, b)
	}
	if err != nil {
		return nil, fmt.Errorf("ipamblock %s can't be parsed: %w", o.GetName(), err)
	}
	return b, nil
}

// blockName is Calico's object name for a block (libcalico-go/lib/names).
func blockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.String())
}

// InUse reads the block that an address is in and tells whom it belongs to. The machine's own
// allocations don't count: its handle, or a pod of its VMI.
func (p *calico) InUse(ctx context.Context, vm machine.Ref, a netip.Addr) (string, error) {
	if p.pools.failed() != nil {
		return "", fmt.Errorf("address %s: %w", a, p.pools.failed())
	}
	pool, ok := p.pool(a)
	if !ok {
		return "", nil
	}
	cidr, err := a.Prefix(pool.blockBits)
	if err != nil {
		return "", fmt.Errorf("ippool %s: %w", pool.name, err)
	}
	b, err := p.block(ctx, cidr)
	switch {
	case absent(err):
		return "", nil
	case err != nil:
		return "", err
	}
	ordinal := distance(cidr.Addr(), a)
	if ordinal >= len(b.Allocations) || b.Allocations[ordinal] == nil {
		return "", nil
	}
	record := "ipamblock " + blockName(cidr)
	n := *b.Allocations[ordinal]
	if n >= len(b.Attributes) {
		return record + ", to an owner that it does not name", nil
	}
	attr := b.Attributes[n]
	if attr.Handle == vmHandle(p.network, vm) {
		return "", nil
	}
	namespace, name := attr.Owner["namespace"], attr.Owner["pod"]
	if name == "" {
		return fmt.Sprintf("%s, to handle %s", record, attr.Handle), nil
	}
	return p.reader.podInUse(ctx, vm, record, namespace, name)
}

// podInUse says whether the pod that a record names is somebody else's, or gone; "" for one of the
// machine's own. A failed read is an error.
func (r Reader) podInUse(ctx context.Context, vm machine.Ref, record, namespace, name string) (string, error) {
	by := fmt.Sprintf("%s, to pod %s/%s", record, namespace, name)
	if namespace != vm.Namespace {
		return by, nil
	}
	pod, err := r.Core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return by + ", which does not exist any more", nil
	case err != nil:
		return "", unreadable("pod "+namespace+"/"+name, err)
	}
	owner := metav1.GetControllerOf(pod)
	if owner != nil && owner.Kind == "VirtualMachineInstance" && owner.Name == vm.Name && !machine.Finished(pod) {
		return "", nil
	}
	return by, nil
}

// offset is the address n after a.
func offset(a netip.Addr, n int) netip.Addr {
	i := new(big.Int).SetBytes(a.AsSlice())
	i.Add(i, big.NewInt(int64(n)))
	b, _ := netip.AddrFromSlice(i.FillBytes(make([]byte, a.BitLen()/8)))
	return b
}

// distance is how far b comes after a, in one block.
func distance(a, b netip.Addr) int {
	d := new(big.Int).SetBytes(b.AsSlice())
	return int(d.Sub(d, new(big.Int).SetBytes(a.AsSlice())).Int64())
}
