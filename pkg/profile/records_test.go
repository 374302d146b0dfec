package profile

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

func TestRecords(t *testing.T) {
	hashed := machine.Interface{Name: "network1", Attachment: "tenant-a/ovs", Ordinal: 1}
	for name, c := range map[string]struct {
		file   string
		change []string
		forbid string
		vm     machine.Ref
		i      machine.Interface
		want   []Record
		err    string
	}{
		"calico 3.27": {file: "calico-3.27.yaml", vm: db1, i: podNet},
		"calico 3.32": {file: "calico-3.32.yaml", vm: db1, i: podNet, want: []Record{{
			Object: "ipamhandle/k8s-pod-network.vmi.tenant-a.db-1", Addresses: ips("198.51.100.66"), Wins: true, Release: "calicoctl ipam release --ip=198.51.100.66"}}},
		"calico 3.32, another machine":           {file: "calico-3.32.yaml", vm: machine.Ref{Namespace: "tenant-a", Name: "web"}, i: podNet},
		"calico 3.32, block unreadable":          {file: "calico-3.32.yaml", forbid: "ipamblocks", vm: db1, i: podNet, err: "forbidden"},
		"calico 3.32, handle unreadable":         {file: "calico-3.32.yaml", forbid: "ipamhandles", vm: db1, i: podNet, err: "ipamhandles.crd.projectcalico.org/k8s-pod-network.vmi.tenant-a.db-1 can't be read"},
		"kube-ovn":                               {file: "kube-ovn.yaml", vm: db1, i: podNet, want: []Record{{Object: "ip/db-1.tenant-a", Addresses: ips("198.51.100.20", "2001:db8:1::20"), Release: "kubectl delete ips.kubeovn.io db-1.tenant-a"}}},
		"kube-ovn, second":                       {file: "kube-ovn.yaml", vm: db1, i: secondary("x", "tenant-a/net-x"), want: []Record{{Object: "ip/db-1.tenant-a.net-x.tenant-a.ovn", Addresses: ips("203.0.113.7"), Release: "kubectl delete ips.kubeovn.io db-1.tenant-a.net-x.tenant-a.ovn"}}},
		"kube-ovn, another machine":              {file: "kube-ovn.yaml", vm: machine.Ref{Namespace: "tenant-a", Name: "web"}, i: podNet},
		"kube-ovn, unreadable":                   {file: "kube-ovn.yaml", forbid: "ips", vm: db1, i: podNet, err: "forbidden"},
		"kube-ovn, damaged":                      {file: "kube-ovn.yaml", change: []string{"v4IpAddress: 198.51.100.20", "v4IpAddress: nonsense"}, vm: db1, i: podNet, err: "ip db-1.tenant-a: v4IpAddress"},
		"spiderpool":                             {file: "spiderpool.yaml", vm: db1, i: podNet, want: []Record{{Object: "spiderendpoint/db-1", Addresses: ips("198.51.100.102"), Wins: true, Release: "kubectl delete spiderendpoints.spiderpool.spidernet.io db-1 -n tenant-a"}}},
		"spiderpool, second":                     {file: "spiderpool.yaml", vm: db1, i: hashed, want: []Record{{Object: "spiderendpoint/db-1", Addresses: ips("203.0.113.7"), Wins: true, Release: "kubectl delete spiderendpoints.spiderpool.spidernet.io db-1 -n tenant-a"}}},
		"spiderpool, interface without a record": {file: "spiderpool.yaml", vm: db1, i: secondary("other", "tenant-a/ovs")},
		"spiderpool, another machine":            {file: "spiderpool.yaml", vm: machine.Ref{Namespace: "tenant-b", Name: "db-1"}, i: podNet},
		"spiderpool, unreadable":                 {file: "spiderpool.yaml", forbid: "spiderendpoints", vm: db1, i: podNet, err: "forbidden"},
		"none":                                   {file: "cilium.yaml", vm: db1, i: podNet},
	} {
		t.Run(name, func(t *testing.T) {
			w := load(t, c.file, c.change...)
			if c.forbid != "" {
				w.forbid("get", c.forbid)
			}
			got, err := w.on(t, c.i).Records(context.Background(), c.vm, c.i)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestInUse(t *testing.T) {
	web := machine.Ref{Namespace: "tenant-a", Name: "web-1"}
	for name, c := range map[string]struct {
		file   string
		change []string
		forbid [2]string
		vm     machine.Ref
		pods   [][3]string
		addr   string
		want   string
		err    string
	}{
		"calico, free":                      {file: "calico-3.32.yaml", vm: db1, addr: "198.51.100.67"},
		"calico, no block":                  {file: "calico-3.32.yaml", vm: db1, addr: "198.51.100.130"},
		"calico, no pool":                   {file: "calico-3.32.yaml", vm: db1, addr: "203.0.113.7"},
		"calico, the machine's own":         {file: "calico-3.32.yaml", vm: db1, addr: "198.51.100.66"},
		"calico, another machine's":         {file: "calico-3.32.yaml", vm: web, pods: [][3]string{{"tenant-a", "virt-launcher-db-1-aaaaa", "db-1"}}, addr: "198.51.100.66", want: "ipamblock 198-51-100-64-26, to pod tenant-a/virt-launcher-db-1-aaaaa"},
		"calico, a node's tunnel":           {file: "calico-3.32.yaml", vm: db1, addr: "198.51.100.65", want: "ipamblock 198-51-100-64-26, to handle ipip-tunnel-addr-n1"},
		"calico, a pod of another tenant":   {file: "calico-3.32.yaml", vm: db1, addr: "198.51.100.68", want: "ipamblock 198-51-100-64-26, to pod tenant-b/web-0"},
		"C26 calico, a pod that is gone":    {file: "calico-3.32.yaml", vm: db1, addr: "198.51.100.69", want: "ipamblock 198-51-100-64-26, to pod tenant-a/virt-launcher-db-1-old, which does not exist any more"},
		"calico, the machine's running pod": {file: "calico-3.32.yaml", vm: db1, pods: [][3]string{{"tenant-a", "virt-launcher-db-1-old", "db-1"}}, addr: "198.51.100.69"},
		"calico, a pod of no machine":       {file: "calico-3.32.yaml", vm: db1, pods: [][3]string{{"tenant-a", "virt-launcher-db-1-old", ""}}, addr: "198.51.100.69", want: "ipamblock 198-51-100-64-26, to pod tenant-a/virt-launcher-db-1-old"},
		"calico, block unreadable":          {file: "calico-3.32.yaml", forbid: [2]string{"get", "ipamblocks"}, vm: db1, addr: "198.51.100.67", err: "forbidden"},
		"calico, pools unreadable":          {file: "calico-3.32.yaml", forbid: [2]string{"list", "ippools"}, vm: db1, addr: "198.51.100.67", err: "forbidden"},
		"calico, pod unreadable":            {file: "calico-3.32.yaml", forbid: [2]string{"get", "pods"}, vm: db1, addr: "198.51.100.69", err: "forbidden"},
		"calico, larger blocks":             {file: "calico-3.32.yaml", change: []string{"cidr: 198.51.100.0/24, ", "cidr: 198.51.100.0/24, blockSize: 25, ", "198-51-100-64-26", "198-51-100-0-25", "cidr: 198.51.100.64/26", "cidr: 198.51.100.0/25"}, vm: db1, addr: "198.51.100.4", want: "ipamblock 198-51-100-0-25, to pod tenant-b/web-0"},
		"calico, record without owner":      {file: "calico-3.32.yaml", change: []string{"[null, 0, 1, null, 2, 3]", "[9]"}, vm: db1, addr: "198.51.100.64", want: "ipamblock 198-51-100-64-26, to an owner that it does not name"},
		"kube-ovn can't be asked":           {file: "kube-ovn.yaml", vm: web, addr: "198.51.100.20"},
		"spiderpool, free":                  {file: "spiderpool.yaml", vm: db1, addr: "198.51.100.20"},
		"spiderpool, the machine's own":     {file: "spiderpool.yaml", vm: db1, addr: "198.51.100.102"},
		"spiderpool, another's":             {file: "spiderpool.yaml", vm: db1, addr: "198.51.100.101", want: "spiderippool lan-v4, to tenant-b/web-0"},
		"spiderpool, in a pool of one":      {file: "spiderpool.yaml", vm: db1, addr: "198.51.100.21", want: "spiderippool vmip-198-51-100-21, to tenant-a/web-1"},
		"spiderpool, own pool of one":       {file: "spiderpool.yaml", vm: web, addr: "198.51.100.21"},
		"spiderpool, a pod of the machine":  {file: "spiderpool.yaml", change: []string{"tenant-b/web-0", "tenant-a/virt-launcher-db-1-aaaaa"}, vm: db1, pods: [][3]string{{"tenant-a", "virt-launcher-db-1-aaaaa", "db-1"}}, addr: "198.51.100.101"},
		"spiderpool, a pod of another":      {file: "spiderpool.yaml", change: []string{"tenant-b/web-0", "tenant-a/virt-launcher-db-1-aaaaa"}, vm: web, pods: [][3]string{{"tenant-a", "virt-launcher-db-1-aaaaa", "db-1"}}, addr: "198.51.100.101", want: "spiderippool lan-v4, to pod tenant-a/virt-launcher-db-1-aaaaa"},
		"spiderpool, damaged":               {file: "spiderpool.yaml", change: []string{`allocatedIPs: '{"198.51.100.101"`, `allocatedIPs: '{{"198.51.100.101"`}, vm: db1, addr: "198.51.100.101", err: "status.allocatedIPs can't be parsed"},
		"spiderpool, unreadable":            {file: "spiderpool.yaml", forbid: [2]string{"get", "spiderippools"}, vm: db1, addr: "198.51.100.20", err: "forbidden"},
		"none":                              {file: "cilium.yaml", vm: db1, addr: "198.51.100.20"},
	} {
		t.Run(name, func(t *testing.T) {
			w := load(t, c.file, c.change...)
			for _, p := range c.pods {
				w.pod(t, p[0], p[1], p[2])
			}
			if c.forbid[0] != "" {
				w.forbid(c.forbid[0], c.forbid[1])
			}
			got, err := w.on(t, podNet).InUse(context.Background(), c.vm, ips(c.addr)[0])
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestVMHandle(t *testing.T) {
	if got := vmHandle("k8s-pod-network", db1); got != "k8s-pod-network.vmi.tenant-a.db-1" {
		t.Errorf("handle %s", got)
	}
	long := machine.Ref{Namespace: "tenant-a", Name: strings.Repeat("x", 120)}
	got := vmHandle("k8s-pod-network", long)
	if !strings.HasPrefix(got, "k8s-pod-network.vmi._") || len(got) > 128 || got == vmHandle("k8s-pod-network", machine.Ref{Namespace: "tenant-b", Name: long.Name}) {
		t.Errorf("long handle %s", got)
	}
}

func TestBlockArithmetic(t *testing.T) {
	for first, c := range map[string]struct {
		n    int
		want string
	}{"198.51.100.64": {63, "198.51.100.127"}, "2001:db8::": {256, "2001:db8::100"}} {
		a := ips(first)[0]
		if got := offset(a, c.n); got.String() != c.want || distance(a, got) != c.n {
			t.Errorf("%s + %d = %s", first, c.n, got)
		}
	}
}
