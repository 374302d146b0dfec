package profile

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

func TestRenderAnnotations(t *testing.T) {
	pinned := podNet
	pinned.MAC = "02:00:00:00:00:20"
	for name, c := range map[string]struct {
		file  string
		i     machine.Interface
		addrs []string
		want  map[string]string
		err   string
	}{
		"calico, IPv4":       {file: "calico-3.27.yaml", i: podNet, addrs: []string{"198.51.100.20"}, want: map[string]string{"cni.projectcalico.org/ipAddrs": `["198.51.100.20"]`}},
		"calico, both":       {file: "calico-3.27.yaml", i: podNet, addrs: []string{"2001:DB8:1::20", "198.51.100.20"}, want: map[string]string{"cni.projectcalico.org/ipAddrs": `["198.51.100.20","2001:db8:1::20"]`}},
		"calico, pinned MAC": {file: "calico-3.27.yaml", i: pinned, addrs: []string{"198.51.100.20"}, want: map[string]string{"cni.projectcalico.org/ipAddrs": `["198.51.100.20"]`, "cni.projectcalico.org/hwAddr": "02:00:00:00:00:20"}},
		"calico, no pool":    {file: "calico-3.27.yaml", i: podNet, addrs: []string{"203.0.113.7"}, err: "virtualmachine tenant-a/db-1 interface default: address 203.0.113.7 is in no ippool of Calico (default-ipv4-ippool 198.51.100.0/24, default-ipv6-ippool 2001:db8:1::/64): choose one that is, or add an ippool"},
		"C03 calico, two":    {file: "calico-3.27.yaml", i: podNet, addrs: []string{"198.51.100.20", "198.51.100.21"}, err: "two IPv4 addresses, 198.51.100.20 and 198.51.100.21: an interface has one a family"},
		"C03 two IPv6":       {file: "calico-3.27.yaml", i: podNet, addrs: []string{"198.51.100.20", "2001:db8:1::8", "2001:db8:1::9"}, err: "two IPv6 addresses"},
		"none at all":        {file: "calico-3.27.yaml", i: podNet, err: "no address to write"},

		"kube-ovn, IPv4":                        {file: "kube-ovn.yaml", i: podNet, addrs: []string{"198.51.100.20"}, want: map[string]string{"ovn.kubernetes.io/ip_address": "198.51.100.20"}},
		"kube-ovn, IPv6 upper case":             {file: "kube-ovn.yaml", i: podNet, addrs: []string{"2001:DB8::A"}, want: map[string]string{"ovn.kubernetes.io/ip_address": "2001:db8::a"}},
		"kube-ovn, both":                        {file: "kube-ovn.yaml", i: podNet, addrs: []string{"2001:db8::a", "198.51.100.20"}, want: map[string]string{"ovn.kubernetes.io/ip_address": "198.51.100.20,2001:db8::a"}},
		"kube-ovn, pinned MAC":                  {file: "kube-ovn.yaml", i: pinned, addrs: []string{"198.51.100.20"}, want: map[string]string{"ovn.kubernetes.io/ip_address": "198.51.100.20", "ovn.kubernetes.io/mac_address": "02:00:00:00:00:20"}},
		"C02 kube-ovn, second":                  {file: "kube-ovn.yaml", i: secondary("dmz", "tenant-a/net-x"), addrs: []string{"203.0.113.7"}, want: map[string]string{"net-x.tenant-a.ovn.kubernetes.io/ip_address": "203.0.113.7"}},
		"kube-ovn, as IPAM":                     {file: "kube-ovn.yaml", i: secondary("dmz", "tenant-a/macvlan"), addrs: []string{"203.0.113.7"}, want: map[string]string{"macvlan.tenant-a.kubernetes.io/ip_address": "203.0.113.7"}},
		"kube-ovn, no subnet":                   {file: "kube-ovn.yaml", i: podNet, addrs: []string{"192.0.2.7"}, err: "virtualmachine tenant-a/db-1 interface default: address 192.0.2.7 is in no subnet of Kube-OVN for that network (ovn-default 198.51.100.0/24,2001:db8::/32): choose one that is, or add a subnet"},
		"kube-ovn, a subnet of another network": {file: "kube-ovn.yaml", i: podNet, addrs: []string{"203.0.113.7"}, err: "203.0.113.7 is in no subnet of Kube-OVN"},
		"kube-ovn, second, no subnet":           {file: "kube-ovn.yaml", i: secondary("x", "tenant-a/net-x"), addrs: []string{"198.51.100.20"}, err: "198.51.100.20 is in no subnet of Kube-OVN for that network (x 203.0.113.0/24)"},
		"kube-ovn, two":                         {file: "kube-ovn.yaml", i: podNet, addrs: []string{"198.51.100.20", "198.51.100.21"}, err: "two IPv4 addresses"},

		"spiderpool":                         {file: "spiderpool.yaml", i: podNet, addrs: []string{"198.51.100.20"}, want: map[string]string{"ipam.spidernet.io/ippool": `{"ipv4":["vmip-198-51-100-20"]}`}},
		"spiderpool, IPv6 is off":            {file: "spiderpool.yaml", i: podNet, addrs: []string{"2001:db8::20"}, err: "an IPv6 address is asked for, and Spiderpool runs with enableIPv6 false"},
		"spiderpool, in another pool":        {file: "spiderpool.yaml", i: podNet, addrs: []string{"198.51.100.120"}, err: "spiderippool lan-v4 hands out address 198.51.100.120, and Spiderpool allows no address in two pools: add it to spec.excludeIPs of lan-v4 first"},
		"spiderpool, excluded there":         {file: "spiderpool.yaml", i: podNet, addrs: []string{"198.51.100.150"}, want: map[string]string{"ipam.spidernet.io/ippool": `{"ipv4":["vmip-198-51-100-150"]}`}},
		"spiderpool, no subnet":              {file: "spiderpool.yaml", i: podNet, addrs: []string{"192.0.2.20"}, err: "no spiderippool has a subnet with address 192.0.2.20"},
		"C01 whereabouts":                    {file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/lan"), addrs: []string{"203.0.113.7"}, err: "KubeVirt rewrites k8s.v1.cni.cncf.io/networks: use a network served by Calico"},
		"C02 calico on the second interface": {file: "kube-ovn.yaml", i: secondary("dmz", "tenant-a/calico-dmz"), addrs: []string{"203.0.113.7"}, err: "ipAddrs is pod-wide"},
		"C10 cilium":                         {file: "cilium.yaml", i: podNet, addrs: []string{"198.51.100.20"}, err: "virtualmachine tenant-a/db-1 interface default: Cilium runs with ipam cluster-pool"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := load(t, c.file).on(t, c.i).Render(db1, c.i, ips(c.addrs...))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				if len(r.Annotations)+len(r.Objects) > 0 {
					t.Errorf("a refusal renders %+v", r)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(r.Annotations, c.want) {
				t.Errorf("got %v, %v; want %v", r.Annotations, err, c.want)
			}
		})
	}
}

// Whatever is rendered is claimed again, and its keys are the profile's own.
func TestRenderedAnnotationsAreClaimed(t *testing.T) {
	for name, c := range map[string]struct {
		file   string
		change []string
		i      machine.Interface
		addrs  []netip.Addr
	}{
		"calico":             {file: "calico-3.27.yaml", i: podNet, addrs: ips("198.51.100.20", "2001:db8:1::20")},
		"kube-ovn":           {file: "kube-ovn.yaml", i: podNet, addrs: ips("198.51.100.20", "2001:db8:1::20")},
		"kube-ovn, second":   {file: "kube-ovn.yaml", i: secondary("x", "tenant-a/net-x"), addrs: ips("203.0.113.7")},
		"spiderpool":         {file: "spiderpool.yaml", i: podNet, addrs: ips("198.51.100.20")},
		"spiderpool, second": {file: "spiderpool.yaml", i: secondary("x", "tenant-a/ovs"), addrs: ips("198.51.100.20")},
	} {
		t.Run(name, func(t *testing.T) {
			p := load(t, c.file, c.change...).on(t, c.i)
			r, err := p.Render(db1, c.i, c.addrs)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Claims(r.Annotations, c.i)
			if err != nil || !reflect.DeepEqual(got, c.addrs) {
				t.Errorf("claims %v, %v; want %v", got, err, c.addrs)
			}
			keys := strings.Join(p.Keys(c.i), " ")
			for k := range r.Annotations {
				if !strings.Contains(keys, k) {
					t.Errorf("key %s is not among %s", k, keys)
				}
				if plugin, ok := PluginOf(k); !ok || plugin != p.Name() {
					t.Errorf("key %s is said to be of %q, %t", k, plugin, ok)
				}
			}
			if got, err := p.Claims(nil, c.i); err != nil || len(got) > 0 {
				t.Errorf("no annotations claim %v, %v", got, err)
			}
		})
	}
}

func TestClaims(t *testing.T) {
	const ipAddrs, ovn, pool, pools = "cni.projectcalico.org/ipAddrs", "ovn.kubernetes.io/ip_address", "ipam.spidernet.io/ippool", "ipam.spidernet.io/ippools"
	for name, c := range map[string]struct {
		file        string
		i           machine.Interface
		annotations map[string]string
		want        []netip.Addr
		err         string
	}{
		"calico":                  {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: `["198.51.100.20"]`}, want: ips("198.51.100.20")},
		"C03 calico, bare":        {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: "198.51.100.20"}, err: `annotation cni.projectcalico.org/ipAddrs is "198.51.100.20": Calico reads a JSON array, write ["198.51.100.20"]`},
		"calico, no JSON":         {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: `{"a":1}`}, err: "Calico reads a JSON array of addresses"},
		"C03 calico, two":         {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: `["198.51.100.20","198.51.100.21"]`}, err: "two IPv4 addresses"},
		"C03 calico, two IPv6":    {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: `["198.51.100.20","2001:db8::8","2001:db8::9"]`}, err: "two IPv6 addresses"},
		"calico, prefix":          {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: `["198.51.100.20/24"]`}, err: "has a prefix length"},
		"calico, empty":           {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: "[]"}, err: "is empty"},
		"calico, both ways":       {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ipAddrs: `["198.51.100.20"]`, "cni.projectcalico.org/ipAddrsNoIpam": `["198.51.100.20"]`}, err: "both set"},
		"calico, other keys":      {file: "calico-3.27.yaml", i: podNet, annotations: map[string]string{ovn: "198.51.100.20"}},
		"kube-ovn":                {file: "kube-ovn.yaml", i: podNet, annotations: map[string]string{ovn: "198.51.100.20,2001:db8::a"}, want: ips("198.51.100.20", "2001:db8::a")},
		"kube-ovn, spaces":        {file: "kube-ovn.yaml", i: podNet, annotations: map[string]string{ovn: "198.51.100.20, 2001:db8::a"}, err: `does not accept spaces, write "198.51.100.20,2001:db8::a"`},
		"kube-ovn, upper case":    {file: "kube-ovn.yaml", i: podNet, annotations: map[string]string{ovn: "2001:DB8::A"}, err: `write "2001:db8::a"`},
		"kube-ovn, JSON":          {file: "kube-ovn.yaml", i: podNet, annotations: map[string]string{ovn: `["198.51.100.20"]`}, err: "no JSON"},
		"kube-ovn, two":           {file: "kube-ovn.yaml", i: podNet, annotations: map[string]string{ovn: "198.51.100.20,198.51.100.21"}, err: "two IPv4 addresses"},
		"kube-ovn, second":        {file: "kube-ovn.yaml", i: secondary("x", "tenant-a/net-x"), annotations: map[string]string{ovn: "198.51.100.20", "net-x.tenant-a.ovn.kubernetes.io/ip_address": "203.0.113.7"}, want: ips("203.0.113.7")},
		"kube-ovn, flat key only": {file: "kube-ovn.yaml", i: secondary("x", "tenant-a/net-x"), annotations: map[string]string{ovn: "198.51.100.20"}},
		"spiderpool, ours":        {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pool: `{"ipv4":["vmip-198-51-100-20"]}`}, want: ips("198.51.100.20")},
		"spiderpool, another's":   {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pool: `{"ipv4":["pair"]}`}, want: ips("203.0.113.7")},
		"spiderpool, a range":     {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pool: `{"ipv4":["lan-v4"]}`}},
		"spiderpool, a choice":    {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pool: `{"ipv4":["pair","vmip-198-51-100-20"]}`}},
		"spiderpool, no JSON":     {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pool: "pair"}, err: "Spiderpool reads JSON such as"},
		"spiderpool, beaten":      {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pool: `{"ipv4":["vmip-198-51-100-20"]}`, pools: `[{"interface":"eth0","ipv4":["pair"]}]`}, want: ips("203.0.113.7")},
		"spiderpool, by place":    {file: "spiderpool.yaml", i: secondary("lan", "tenant-a/ovs"), annotations: map[string]string{pools: `[{"ipv4":["pair"]},{"ipv4":["vmip-198-51-100-20"]}]`}, want: ips("198.51.100.20")},
		"spiderpool, by subnet":   {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pool: `{"ipv4":["pair"]}`, "ipam.spidernet.io/subnet": `{"ipv4":["s"]}`}},
		"spiderpool, bad list":    {file: "spiderpool.yaml", i: podNet, annotations: map[string]string{pools: `{}`}, err: "Spiderpool reads a JSON array"},
		"none":                    {file: "cilium.yaml", i: podNet, annotations: map[string]string{ipAddrs: "nonsense"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := load(t, c.file).on(t, c.i).Claims(c.annotations, c.i)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestSpiderpoolPoolOfOne(t *testing.T) {
	r, err := load(t, "spiderpool.yaml").on(t, podNet).Render(db1, podNet, ips("198.51.100.20"))
	if err != nil || len(r.Objects) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	got, err := json.MarshalIndent(r.Objects[0], "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "apiVersion": "spiderpool.spidernet.io/v2beta1",
  "kind": "SpiderIPPool",
  "metadata": {
    "labels": {
      "app.kubernetes.io/managed-by": "kubectl-vmip"
    },
    "name": "vmip-198-51-100-20"
  },
  "spec": {
    "gateway": "198.51.100.1",
    "ipVersion": 4,
    "ips": [
      "198.51.100.20"
    ],
    "namespaceName": [
      "tenant-a"
    ],
    "routes": [
      {
        "dst": "203.0.113.0/24",
        "gw": "198.51.100.2"
      }
    ],
    "subnet": "198.51.100.0/24",
    "vlan": 7
  }
}`
	if string(got) != want {
		t.Errorf("got %s", got)
	}

	// Without a neighbour the ledger's pool tells the subnet.
	p := Within(load(t, "spiderpool.yaml").on(t, podNet), []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, ips("192.0.2.1"))
	r, err = p.Render(db1, podNet, ips("192.0.2.20"))
	if err != nil {
		t.Fatal(err)
	}
	spec := r.Objects[0].Object["spec"].(map[string]any)
	if spec["subnet"] != "192.0.2.0/24" || spec["gateway"] != "192.0.2.1" {
		t.Errorf("spec %v", spec)
	}

	both := load(t, "spiderpool.yaml", "enableIPv6: false", "enableIPv6: true").on(t, podNet)
	one, err := both.Render(db1, podNet, ips("198.51.100.20"))
	if want := `{"ipv4":["vmip-198-51-100-20"]}`; err != nil || one.Annotations["ipam.spidernet.io/ippool"] != want || len(one.Objects) != 1 {
		t.Errorf("one family of two: %v, %v; want %s", one.Annotations, err, want)
	}
	w := load(t, "spiderpool.yaml")
	w.forbid("list", "spiderippools")
	if _, err := w.on(t, podNet).Render(db1, podNet, ips("198.51.100.20")); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("pools unreadable: %v", err)
	}
}

func TestSpiderPoolNames(t *testing.T) {
	for text, want := range map[string]string{
		"198.51.100.20": "vmip-198-51-100-20",
		"2001:db8::20":  "vmip-2001-0db8-0000-0000-0000-0000-0000-0020",
	} {
		a := netip.MustParseAddr(text)
		if got := spiderPoolName(a); got != want {
			t.Errorf("%s: %s", text, got)
		}
		if got, ok := addressOfPool(want); !ok || got != a {
			t.Errorf("%s: %s, %t", want, got, ok)
		}
	}
	for _, name := range []string{"vmip-lab", "lan-v4", "vmip-198-51-100-020", "vmip-2001-db8--20", "vmip-"} {
		if a, ok := addressOfPool(name); ok {
			t.Errorf("%s is read as %s", name, a)
		}
	}
}

// The pools of one address are as many as there are machines: they are not listed.
func TestSpiderpoolListsTheClustersPoolsOnly(t *testing.T) {
	var names []string
	for _, p := range load(t, "spiderpool.yaml").detect(t).spiderpool.pools.value {
		names = append(names, p.Name)
	}
	if got := strings.Join(names, " "); got != "lan-v4 pair" {
		t.Errorf("pools %s", got)
	}
}
