package cni

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

func TestNew(t *testing.T) {
	if _, err := New("flannel", Options{}); err == nil || err.Error() != `unknown CNI "flannel": choose one of [calico-3.31 calico-3.32 kube-ovn none spiderpool]` {
		t.Errorf("got %v", err)
	}
}

func TestNewCIDRs(t *testing.T) {
	if _, err := New("none", Options{}); err == nil || err.Error() != "CNI none: no pod CIDR" {
		t.Errorf("got %v", err)
	}
	d, err := New("none", Options{Config: &rest.Config{Host: "127.0.0.1:1"}, PodCIDRs: prefixes("fd00::1/64", "10.244.3.0/16")})
	must(t, err)
	if got := join(d.(*none).cidrs, " "); got != "10.244.0.0/16 fd00::/64" {
		t.Errorf("got %s", got)
	}
}

func TestSpans(t *testing.T) {
	l := parseRanges([]string{"10.0.0.2-10.0.0.9", "10.0.0.20"}).without(parseRanges([]string{"10.0.0.2", "10.0.0.5-10.0.0.6", "10.0.0.9-10.0.0.20"}))
	if got := join(l, " "); got != "10.0.0.3-10.0.0.4 10.0.0.7-10.0.0.8" {
		t.Errorf("without: %s", got)
	}
	if got := l.size(); got != 4 {
		t.Errorf("size: %v", got)
	}
	if got := join(joinSpans([]netip.Addr{netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.9")}), ","); got != "10.0.0.3-10.0.0.4,10.0.0.9" {
		t.Errorf("joinSpans: %s", got)
	}
	for _, c := range []struct{ cidr, first, last string }{{"198.51.100.0/24", "198.51.100.1", "198.51.100.254"}, {"fd00:10:244::/64", "fd00:10:244::1", "fd00:10:244:0:ffff:ffff:ffff:fffe"}, {"10.0.0.7/32", "10.0.0.7", "10.0.0.7"}} {
		if h := hosts(netip.MustParsePrefix(c.cidr)); h.first.String() != c.first || h.last.String() != c.last {
			t.Errorf("hosts(%s) = %v", c.cidr, h)
		}
	}
	if _, err := parseSpan("10.0.0.9-10.0.0.2", "-"); err == nil {
		t.Error("a range that runs backwards is read")
	}
}

func TestParseSelections(t *testing.T) {
	want := []selection{{Name: "a", Namespace: "x", Interface: "poda7662f44d65"}, {Name: "b", Namespace: "y", Interface: "net2"}}
	for _, v := range []string{`[{"name":"a","namespace":"x","interface":"poda7662f44d65"},{"name":"b"}]`, "x/a@poda7662f44d65, b"} {
		if got, err := parseSelections(v, "y"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("parseSelections(%s) = %v, %v", v, got, err)
		}
	}
}

// Calico's own sentences (cni-plugin, k8s.go).
func TestParseIPAddrs(t *testing.T) {
	for value, want := range map[string]string{
		`["198.51.100.20"]`:                 "",
		`["198.51.100.20","2001:db8::8"]`:   "",
		`198.51.100.20`:                     `failed to parse IPs 198.51.100.20 for annotation "cni.projectcalico.org/ipAddrs": failed to parse '198.51.100.20' as JSON: invalid character '.' after top-level value`,
		`[]`:                                `annotation "cni.projectcalico.org/ipAddrs" specified but empty`,
		`["198.51.100.20/24"]`:              `invalid IP format: 198.51.100.20/24`,
		`["198.51.100.20","198.51.100.21"]`: `cannot have more than one IPv4 address for "cni.projectcalico.org/ipAddrs" annotation`,
		`["198.51.100.20","2001:db8::8","2001:db8::9"]`: `cannot have more than one IPv6 address for "cni.projectcalico.org/ipAddrs" annotation`,
	} {
		_, err := parseIPAddrs(value)
		if got := ""; err != nil && err.Error() != want || err == nil && got != want {
			t.Errorf("parseIPAddrs(%s):\n got %v\nwant %s", value, err, want)
		}
	}
}

func TestCalicoSelects(t *testing.T) {
	labels := map[string]string{"zone": "a"}
	for s, want := range map[string]bool{"": true, "all()": true, "!all()": false, "has(zone)": true, "!has(zone)": false, "zone == 'a'": true, `zone != "a"`: false, "has(zone) && zone == 'b'": false} {
		if got, err := calicoSelects(s, labels); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	if _, err := calicoSelects("zone in {'a'}", labels); err == nil {
		t.Error("a selector that is not modelled is not refused")
	}
}

func TestCalicoHandle(t *testing.T) {
	if got := (&calicoVM{namespace: "tenant-a", name: "db-1"}).handle(calicoNetwork); got != "k8s-pod-network.vmi.tenant-a.db-1" {
		t.Error(got)
	}
	long := (&calicoVM{namespace: strings.Repeat("n", 63), name: strings.Repeat("v", 63)}).handle(calicoNetwork)
	if !strings.HasPrefix(long, "k8s-pod-network.vmi._") || len(long) > 128 {
		t.Error(long)
	}
}

func TestFreeBlock(t *testing.T) {
	pool := calicoPool{Spec: calicoPoolSpec{CIDR: "198.51.100.0/24", BlockSize: 26}}
	var blocks []calicoBlock
	seen := map[netip.Prefix]bool{}
	for range 4 {
		b, ok := freeBlock([]calicoPool{pool}, blocks, nil, "n1")
		if !ok || seen[b] || !pool.prefix().Contains(b.Addr()) {
			t.Fatalf("%v %v after %v", b, ok, seen)
		}
		seen[b] = true
		blocks = append(blocks, calicoBlock{Spec: calicoBlockSpec{CIDR: b.String()}})
	}
	if b, ok := freeBlock([]calicoPool{pool}, blocks, nil, "n1"); ok {
		t.Errorf("a fifth block of four: %s", b)
	}
	if b, ok := freeBlock([]calicoPool{pool}, nil, prefixes("198.51.100.0/25", "198.51.100.128/26"), "n1"); !ok || b.String() != "198.51.100.192/26" {
		t.Errorf("reserved blocks: %v %v", b, ok)
	}
	v6 := calicoPool{Spec: calicoPoolSpec{CIDR: "fd00::/48", BlockSize: 122}}
	if _, ok := freeBlock([]calicoPool{v6}, nil, nil, "n1"); !ok {
		t.Error("no block in a /48")
	}
}

func TestValidatePodNetwork(t *testing.T) {
	const ip = "ovn.kubernetes.io/ip_address"
	for value, want := range map[string]string{
		"10.16.0.15": "", "10.16.0.15,fd00::e": "",
		"10.16.0.15, fd00::e": " fd00::e is not a valid " + ip,
		"x,y":                 "[x is not a valid " + ip + ", y is not a valid " + ip + "]",
	} {
		if err := validatePodNetwork(map[string]string{ip: value}); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestMergeRanges(t *testing.T) {
	if got := mergeRanges([]string{"10.0.0.9", "10.0.0.1-10.0.0.4", "10.0.0.5-10.0.0.6", "10.0.0.3"}); !slices.Equal(got, []string{"10.0.0.1-10.0.0.6", "10.0.0.9"}) {
		t.Error(got)
	}
}

func TestCheckItems(t *testing.T) {
	for value, want := range map[string]string{
		`[]`:                                    "value requires at least one item",
		`[{"interface":"eth0"},{}]`:             "NIC should be either all specified or all unspecified",
		`[{"interface":"a"},{"interface":"a"}]`: "duplicate interface a",
		`[{"interface":"net1"}]`:                "interface eth0 must be specified",
		`[{},{}]`:                               "",
		`[{"interface":"eth0","ipv4":["p"]}]`:   "",
	} {
		var items []spiderPoolsItem
		must(t, json.Unmarshal([]byte(value), &items))
		if err := checkItems(items, "eth0"); err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s: %v", value, err)
		}
	}
}
