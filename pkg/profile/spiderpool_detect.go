package profile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

const spiderpoolGroup = "spiderpool.spidernet.io"

var (
	spiderIPPools   = schema.GroupVersionResource{Group: spiderpoolGroup, Version: "v2beta1", Resource: "spiderippools"}
	spiderEndpoints = schema.GroupVersionResource{Group: spiderpoolGroup, Version: "v2beta1", Resource: "spiderendpoints"}
)

// spiderpoolFacts is what was detected of Spiderpool.
type spiderpoolFacts struct {
	present presence
	version setting[string]
	conf    setting[spiderpoolConf]
	// agent is the DaemonSet; its zero value where it was not read.
	agent workload
	// pools are the cluster's pools without those that this project made, which are one an address.
	pools setting[[]spiderIPPool]
}

// spiderpoolConf is what is read of key conf.yml of ConfigMap spiderpool-conf
// (docs/reference/configmap.md).
type spiderpoolConf struct {
	EnableIPv4         bool `json:"enableIPv4"`
	EnableIPv6         bool `json:"enableIPv6"`
	KubeVirtStaticIP   bool `json:"enableKubevirtStaticIP"`
	namespace          string
	missingStaticIPKey bool
}

// spiderIPPool is the part of a SpiderIPPool that matters here.
type spiderIPPool struct {
	Name string `json:"-"`
	Spec struct {
		Subnet     string           `json:"subnet"`
		IPs        []string         `json:"ips"`
		ExcludeIPs []string         `json:"excludeIPs"`
		Gateway    string           `json:"gateway"`
		VLAN       *int64           `json:"vlan"`
		Routes     []map[string]any `json:"routes"`
	} `json:"spec"`
	Status struct {
		AllocatedIPs string `json:"allocatedIPs"`
	} `json:"status"`
}

// subnet is the zero Prefix where the pool's is no CIDR.
func (p spiderIPPool) subnet() netip.Prefix {
	c, err := netip.ParsePrefix(p.Spec.Subnet)
	if err != nil {
		return netip.Prefix{}
	}
	return c.Masked()
}

// hands says whether the pool may hand the address out: in ips and not in excludeIPs.
func (p spiderIPPool) hands(a netip.Addr) bool {
	in := func(s string) bool {
		r, err := address.ParseRange(s)
		return err == nil && r.Contains(a)
	}
	return slices.ContainsFunc(p.Spec.IPs, in) && !slices.ContainsFunc(p.Spec.ExcludeIPs, in)
}

func (f spiderpoolFacts) unread() []error {
	if !f.present.value && f.present.failed() == nil {
		return nil
	}
	return []error{f.present.failed(), f.version.failed(), f.conf.failed(), f.pools.failed()}
}

func detectSpiderpool(ctx context.Context, r Reader, g groups) spiderpoolFacts {
	if g.missing(spiderpoolGroup) {
		none := fmt.Errorf("spiderpool %w", errNotDetected)
		return spiderpoolFacts{present: known(false), version: unknown[string](none), conf: unknown[spiderpoolConf](none), pools: unknown[[]spiderIPPool](none)}
	}
	f := spiderpoolFacts{present: known(true)}
	f.conf = spiderpoolConfOf(ctx, r)
	if f.conf.failed() != nil {
		f.present = unknown[bool](f.conf.failed())
	}
	namespace := f.conf.value.namespace
	if namespace == "" {
		namespace = "kube-system"
	}
	agent, err := r.daemonSet(ctx, namespace+"/spiderpool-agent")
	f.agent, f.version = agent, known(agent.version())
	if err == nil && f.version.value == "" {
		err = fmt.Errorf("the image %q of %s has no version", agent.image, agent)
	}
	if err != nil {
		f.version = unknown[string](err)
	}
	f.pools = spiderIPPoolsOf(ctx, r)
	return f
}

// spiderpoolConfOf finds the configuration where it is installed as a rule, and otherwise by name in
// all namespaces.
func spiderpoolConfOf(ctx context.Context, r Reader) setting[spiderpoolConf] {
	const name = "spiderpool-conf"
	m, err := r.Core.CoreV1().ConfigMaps("kube-system").Get(ctx, name, metav1.GetOptions{})
	if absent(err) {
		list, listErr := r.Core.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if listErr == nil {
			if n := slices.IndexFunc(list.Items, func(m corev1.ConfigMap) bool { return m.Name == name }); n >= 0 {
				m, err = &list.Items[n], nil
			}
		}
	}
	if err != nil {
		return unknown[spiderpoolConf](unreadable("configmap kube-system/"+name, err))
	}
	c := spiderpoolConf{namespace: m.Namespace}
	var keys map[string]any
	if err := errors.Join(yaml.Unmarshal([]byte(m.Data["conf.yml"]), &c), yaml.Unmarshal([]byte(m.Data["conf.yml"]), &keys)); err != nil {
		return unknown[spiderpoolConf](fmt.Errorf("configmap %s/%s: conf.yml can't be parsed: %w", m.Namespace, m.Name, err))
	}
	_, there := keys["enableKubevirtStaticIP"]
	c.missingStaticIPKey = !there
	return known(c)
}

func spiderIPPoolsOf(ctx context.Context, r Reader) setting[[]spiderIPPool] {
	list, err := r.Dynamic.Resource(spiderIPPools).List(ctx, metav1.ListOptions{LabelSelector: managedBy + "!=" + manager})
	if err != nil {
		return unknown[[]spiderIPPool](unreadable("spiderippools", err))
	}
	var pools []spiderIPPool
	for n := range list.Items {
		p, err := newSpiderIPPool(&list.Items[n])
		if err != nil {
			return unknown[[]spiderIPPool](err)
		}
		pools = append(pools, p)
	}
	return known(pools)
}

func newSpiderIPPool(o *unstructured.Unstructured) (spiderIPPool, error) {
	var p spiderIPPool
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
		return p, fmt.Errorf("spiderippool %s can't be parsed: %w", o.GetName(), err)
	}
	p.Name = o.GetName()
	return p, nil
}
