package profile

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Annotations that Spiderpool reads on a pod, the later ones before the earlier
// (docs/reference/annotation.md).
const (
	spiderIPPool1 = "ipam.spidernet.io/ippool"
	spiderIPPoolN = "ipam.spidernet.io/ippools"
	spiderSubnet1 = "ipam.spidernet.io/subnet"
	spiderSubnetN = "ipam.spidernet.io/subnets"
)

// poolNames is the value of ipam.spidernet.io/ippool, and an element of that of …/ippools.
type poolNames struct {
	Interface string   `json:"interface,omitempty"`
	IPv4      []string `json:"ipv4,omitempty"`
	IPv6      []string `json:"ipv6,omitempty"`
}

func (n poolNames) encode() string {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings only
	}
	return string(b)
}

// Claims returns the addresses of the pools of one address that the annotations name. A larger pool
// claims no address. Where an annotation beats the one that this project writes, it is the one
// that is read.
func (p *spiderpool) Claims(annotations map[string]string, i machine.Interface) ([]netip.Addr, error) {
	if annotations[spiderSubnetN] != "" || annotations[spiderSubnet1] != "" {
		return nil, nil // an automatic pool of a SpiderSubnet
	}
	var names poolNames
	key := spiderIPPool1
	if value := annotations[spiderIPPoolN]; value != "" {
		key = spiderIPPoolN
		var list []poolNames
		if err := json.Unmarshal([]byte(value), &list); err != nil {
			return nil, fmt.Errorf("annotation %s is %q: Spiderpool reads a JSON array such as [{\"interface\":\"eth0\",\"ipv4\":[\"pool\"]}]: %w", key, value, err)
		}
		for n, e := range list {
			// Without names, the order of the interfaces decides (docs/usage/kubevirt.md).
			if e.Interface == nicName(i) || e.Interface == "" && n == i.Ordinal {
				names = e
			}
		}
	} else if value := annotations[spiderIPPool1]; value == "" {
		return nil, nil
	} else if err := json.Unmarshal([]byte(value), &names); err != nil {
		return nil, fmt.Errorf("annotation %s is %q: Spiderpool reads JSON such as {\"ipv4\":[\"pool\"]}: %w", key, value, err)
	}
	var claims []string
	for _, list := range [][]string{names.IPv4, names.IPv6} {
		for _, name := range list {
			if a, ok := p.only(name); ok && len(list) == 1 {
				claims = append(claims, a.String())
			}
		}
	}
	return parseClaims(key, claims)
}

// only returns the address of a pool that has no other.
func (p *spiderpool) only(name string) (netip.Addr, bool) {
	if a, ok := addressOfPool(name); ok {
		return a, true
	}
	for _, pool := range p.pools.value {
		if pool.Name == name && len(pool.Spec.IPs) == 1 {
			a, err := netip.ParseAddr(pool.Spec.IPs[0])
			return a, err == nil
		}
	}
	return netip.Addr{}, false
}

// nicName is the interface's name in the pod.
func nicName(i machine.Interface) string {
	switch {
	case i.PodInterface != "":
		return i.PodInterface
	case i.Primary():
		return "eth0"
	}
	return machine.HashedInterface(i.Name)
}

// Records reads the SpiderEndpoint of the VM's name. While it exists, its addresses are used again
// whatever the annotation says (pkg/ipam/allocate.go).
func (p *spiderpool) Records(ctx context.Context, vm machine.Ref, i machine.Interface) ([]Record, error) {
	o, err := p.reader.get(ctx, spiderEndpoints, vm.Namespace, vm.Name)
	switch {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var e struct {
		Status struct {
			Current struct {
				IPs []struct {
					Interface string `json:"interface"`
					IPv4      string `json:"ipv4"`
					IPv6      string `json:"ipv6"`
				} `json:"ips"`
			} `json:"current"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &e); err != nil {
		return nil, fmt.Errorf("spiderendpoint %s can't be parsed: %w", vm, err)
	}
	names := []string{nicName(i)}
	if i.Ordinal > 0 {
		names = append(names, fmt.Sprintf("net%d", i.Ordinal))
	}
	r := Record{
		Object: "spiderendpoint/" + vm.Name, Wins: true,
		Release: fmt.Sprintf("kubectl delete spiderendpoints.spiderpool.spidernet.io %s -n %s", vm.Name, vm.Namespace),
	}
	for _, nic := range e.Status.Current.IPs {
		if !slices.Contains(names, nic.Interface) {
			continue
		}
		for _, text := range []string{nic.IPv4, nic.IPv6} {
			if text == "" {
				continue
			}
			a, err := parseAddress(text)
			if err != nil {
				return nil, fmt.Errorf("spiderendpoint %s: %q is no address", vm, text)
			}
			r.Addresses = append(r.Addresses, a)
		}
	}
	if len(r.Addresses) == 0 {
		return nil, nil
	}
	return []Record{r}, nil
}

// parseAddress reads an address with or without a prefix length.
func parseAddress(s string) (netip.Addr, error) {
	s, _, _ = strings.Cut(s, "/")
	return netip.ParseAddr(s)
}

// InUse looks the address up in the allocations of the pools that have it: the cluster's, and the one
// that this project makes for it.
func (p *spiderpool) InUse(ctx context.Context, vm machine.Ref, a netip.Addr) (string, error) {
	if p.pools.failed() != nil {
		return "", fmt.Errorf("address %s: %w", a, p.pools.failed())
	}
	var candidates []string
	for _, pool := range p.pools.value {
		if pool.subnet().Contains(a) {
			candidates = append(candidates, pool.Name)
		}
	}
	if own := spiderPoolName(a); !slices.Contains(candidates, own) {
		candidates = append(candidates, own)
	}
	for _, name := range candidates {
		o, err := p.reader.get(ctx, spiderIPPools, "", name)
		switch {
		case absent(err):
			continue
		case err != nil:
			return "", err
		}
		pool, err := newSpiderIPPool(o)
		if err != nil {
			return "", err
		}
		by, err := pool.allocated(a)
		switch {
		case err != nil:
			return "", err
		case by == "" || by == vm.String():
			continue
		}
		// Where static addresses are off, the owner is a pod.
		namespace, pod, _ := strings.Cut(by, "/")
		if by, err = p.reader.spiderOwner(ctx, vm, "spiderippool "+name, namespace, pod); by != "" || err != nil {
			return by, err
		}
	}
	return "", nil
}

// spiderOwner says whom a pool's allocation belongs to; "" where it is a pod of the machine. The name
// is a VM's as a rule, and a pod's only if there is such a pod.
func (r Reader) spiderOwner(ctx context.Context, vm machine.Ref, record, namespace, name string) (string, error) {
	to := fmt.Sprintf("%s, to %s/%s", record, namespace, name)
	if namespace != vm.Namespace || !strings.HasPrefix(name, "virt-launcher-") {
		return to, nil
	}
	return r.podInUse(ctx, vm, record, namespace, name)
}

// allocated returns the "namespace/name" that has an address of the pool, "" for none. The name is a
// VM's or a pod's. The allocations are JSON inside a string.
func (p spiderIPPool) allocated(a netip.Addr) (string, error) {
	if p.Status.AllocatedIPs == "" {
		return "", nil
	}
	var list map[string]struct {
		Pod string `json:"pod"`
	}
	if err := json.Unmarshal([]byte(p.Status.AllocatedIPs), &list); err != nil {
		return "", fmt.Errorf("spiderippool %s: status.allocatedIPs can't be parsed: %w", p.Name, err)
	}
	for text, by := range list {
		if b, err := netip.ParseAddr(text); err == nil && b == a {
			return by.Pod, nil
		}
	}
	return "", nil
}
