package cni

import (
	"context"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// noneRecords is the ConfigMap that stands for the nodes' disks, where host-local keeps its files.
const noneRecords = "host-local"

// none is a network plugin that knows nothing of VMs: a new address for every sandbox. It
// allocates as host-local does: the next address after the last one, no conflict checks across
// pods, no annotations (CNI docs, host-local). One store for all nodes keeps addresses unique,
// which real nodes manage with a range each.
type none struct {
	multus
	cidrs []netip.Prefix
}

func newNone(o Options) (Driver, error) {
	k, err := newKube(o.Config)
	if err != nil {
		return nil, err
	}
	return &none{newMultus(k), o.PodCIDRs}, nil
}

func (d *none) Name() string { return "none" }

func (d *none) Install(ctx context.Context) error {
	if err := d.install(ctx, true); err != nil {
		return err
	}
	return d.ensureConfigMap(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: kubeSystem, Name: noneRecords}})
}

func (d *none) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (d *none) Add(ctx context.Context, req Request) (Result, error) { return d.add(ctx, req, d) }

func (d *none) delegate() (string, string) { return "bridge", "bridge" }

func (d *none) primary(ctx context.Context, req Request, _ *corev1.Pod) (nic, error) {
	n := nic{mac: randomMAC()}
	err := d.records(ctx, func(data map[string]string) error {
		n.ips = nil
		for i, cidr := range d.cidrs {
			last := "last_reserved_ip." + string(rune('0'+i))
			h := hosts(cidr)
			from := h.first // the gateway's
			if a, err := netip.ParseAddr(data[last]); err == nil && h.contains(a) {
				from = a
			}
			around := spans{{h.first, from}}
			if from != h.last {
				around = spans{{from.Next(), h.last}, {h.first, from}}
			}
			a, ok := around.next(func(a netip.Addr) bool {
				return a != gateway(cidr) && data[fileName(a)] == ""
			})
			if !ok {
				return &Error{Message: "failed to allocate for range " + string(rune('0'+i)) + ": no IP addresses available in range set: " +
					h.first.String() + "-" + h.last.String()}
			}
			data[fileName(a)] = req.ContainerID
			data[last] = a.String()
			n.ips = append(n.ips, a)
		}
		return nil
	})
	return n, err
}

func (d *none) secondary(context.Context, Request, *corev1.Pod, attachment) (nic, bool, error) {
	return nic{}, false, nil
}

func (d *none) Del(ctx context.Context, req Request) error {
	return d.records(ctx, func(data map[string]string) error {
		for k, v := range data {
			if v == req.ContainerID {
				delete(data, k)
			}
		}
		return nil
	})
}

// records changes the store.
func (d *none) records(ctx context.Context, f func(map[string]string) error) error {
	client := d.core.CoreV1().ConfigMaps(kubeSystem)
	return swap(ctx, func() error {
		m, err := client.Get(ctx, noneRecords, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if m.Data == nil {
			m.Data = map[string]string{}
		}
		if err := f(m.Data); err != nil {
			return err
		}
		_, err = client.Update(ctx, m, metav1.UpdateOptions{})
		return err
	})
}

// fileName is host-local's name for an address where colons are not allowed, as in a ConfigMap's keys.
func fileName(a netip.Addr) string { return strings.ReplaceAll(a.String(), ":", "_") }
