package pool

import (
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

func TestOverlap(t *testing.T) {
	lb := ofMetalLB(&unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "metallb-system", "name": "lan"},
		"spec":     map[string]any{"addresses": []any{"198.51.100.150 - 198.51.100.160", "2001:db8::f0/124", "nonsense"}},
	}})
	node := taken{netipx.MustParseIPRange("203.0.113.0-203.0.113.63"), "node n1 by its pod CIDR", true}
	yes, no := profile.Capability{Answer: profile.Yes}, profile.Capability{Answer: profile.No, Reason: "flannel gives any address"}
	for name, c := range map[string]struct {
		pool   ledger.Pool
		sticky profile.Capability
		want   []string
	}{
		"a load balancer's range":         {ledger.Pool{CIDRs: []string{"198.51.100.0/24"}}, yes, []string{"198.51.100.150-198.51.100.160", "metallb-system/lan", "--exclude 198.51.100.150-198.51.100.160"}},
		"a part of it is excluded":        {ledger.Pool{CIDRs: []string{"198.51.100.0/24"}, Exclude: []string{"198.51.100.150-198.51.100.158"}}, yes, []string{"--exclude 198.51.100.159-198.51.100.160"}},
		"all of it is excluded":           {ledger.Pool{CIDRs: []string{"198.51.100.0/24"}, Exclude: []string{"198.51.100.144/28", "198.51.100.160"}}, yes, nil},
		"outside the automatic range too": {ledger.Pool{CIDRs: []string{"198.51.100.0/24"}, Ranges: []string{"198.51.100.10-198.51.100.20"}}, yes, []string{"198.51.100.150"}},
		"IPv6":                            {ledger.Pool{CIDRs: []string{"2001:db8::/64"}}, yes, []string{"2001:db8::f0-2001:db8::ff"}},
		"elsewhere":                       {ledger.Pool{CIDRs: []string{"192.0.2.0/24"}}, no, nil},
		"a node's pod CIDR":               {ledger.Pool{CIDRs: []string{"203.0.113.0/27"}}, no, []string{"node n1", "203.0.113.0-203.0.113.63", "flannel gives any address", "choose a CIDR that no node has"}},
		"a node's, not established":       {ledger.Pool{CIDRs: []string{"203.0.113.0/27"}}, profile.Capability{}, []string{"node n1"}},
		"a node's, the plugin holds it":   {ledger.Pool{CIDRs: []string{"203.0.113.0/27"}}, yes, nil},
	} {
		c.pool.Name = "lab"
		p, err := c.pool.Normalise()
		if err != nil {
			t.Fatal(err)
		}
		err = overlap(p, append(lb, node), c.sticky)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range c.want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v lacks %q", name, err, text)
			}
		}
	}
}
