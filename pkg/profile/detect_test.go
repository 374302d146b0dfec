package profile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

func TestCapabilities(t *testing.T) {
	masquerade := podNet
	masquerade.Binding = machine.Masquerade
	plugin := podNet
	plugin.Binding = "plugin:l2bridge"
	for name, c := range map[string]struct {
		file             string
		change           []string
		forbid           [][2]string
		i                machine.Interface
		profile, version string
		// answers: choose, restart, migration, dual stack
		answers string
		// reasons are parts of the four reasons.
		reasons [4]string
	}{
		"C38 calico 3.27": {
			file: "calico-3.27.yaml", i: podNet, profile: Calico, version: "v3.27.3", answers: "yes yes no yes",
			reasons: [4]string{"Calico 3.27 gives a pod the address that ipAddrs names", "others may take it", "Calico 3.27 gives the target pod of a migration no address that the source holds", "one address of each family"},
		},
		"calico 3.27 without an IPv6 pool": {
			file: "calico-3.27.yaml", change: []string{"2001:db8:1::/64", "203.0.113.0/24"}, i: podNet, profile: Calico, version: "v3.27.3", answers: "yes yes no no",
			reasons: [4]string{3: "no IPv6 ippool"},
		},
		"C38 calico of unknown version": {
			file: "calico-3.27.yaml", change: []string{"calicoVersion: v3.27.3", "calicoVersion: master", "node:v3.27.3", "node:latest"}, i: podNet, profile: Calico, answers: "yes yes unverified unverified",
			reasons: [4]string{2: "names no version"},
		},
		"calico 3.27 by its image": {
			file: "calico-3.27.yaml", change: []string{"calicoVersion: v3.27.3", "calicoVersion: ''"}, i: podNet, profile: Calico, version: "v3.27.3", answers: "yes yes no yes",
		},
		"C38 calico 3.32": {
			file: "calico-3.32.yaml", i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes yes unverified",
			reasons: [4]string{1: "keeps a VM's address while the VM exists", 2: "no overlay", 3: "two families at once are not known to work"},
		},
		"C38 calico 3.32, persistence disabled": {
			file: "calico-3.32.yaml", change: []string{"kind: FelixConfiguration, metadata: {name: default}, spec: {logSeverityScreen: Info}", "kind: IPAMConfig, metadata: {name: default}, spec: {kubeVirtVMAddressPersistence: Disabled}"},
			i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes no no",
			reasons: [4]string{2: "KubeVirtVMAddressPersistence is Disabled", 3: "no IPv6 ippool"},
		},
		"calico 3.32, persistence enabled in writing": {
			file: "calico-3.32.yaml", change: []string{"kind: FelixConfiguration, metadata: {name: default}, spec: {logSeverityScreen: Info}", "kind: IPAMConfig, metadata: {name: default}, spec: {kubeVirtVMAddressPersistence: Enabled}"},
			i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes yes unverified",
		},
		"C38 calico 3.32, overlay": {
			file: "calico-3.32.yaml", change: []string{"vxlanMode: Never", "vxlanMode: Always"}, i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes no unverified",
			reasons: [4]string{2: "ippool default-ipv4-ippool (VXLAN Always)"},
		},
		"calico 3.32, wireguard": {
			file: "calico-3.32.yaml", change: []string{"logSeverityScreen: Info", "wireguardEnabled: true"}, i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes no unverified",
			reasons: [4]string{2: "WireGuard"},
		},
		"calico 3.32, masquerade": {
			file: "calico-3.32.yaml", i: masquerade, profile: Calico, version: "v3.32.1", answers: "yes yes no unverified", reasons: [4]string{2: "the interface has masquerade"},
		},
		"calico 3.32, binding plugin": {
			file: "calico-3.32.yaml", i: plugin, profile: Calico, version: "v3.32.1", answers: "yes yes unverified unverified", reasons: [4]string{2: "the interface has plugin:l2bridge"},
		},
		"calico 3.32, persistence unreadable": {
			file: "calico-3.32.yaml", forbid: [][2]string{{"get", "ipamconfigs"}}, i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes unverified unverified", reasons: [4]string{2: "forbidden"},
		},
		"calico 3.32, pools unreadable": {
			file: "calico-3.32.yaml", forbid: [][2]string{{"list", "ippools"}}, i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes unverified unverified", reasons: [4]string{2: "overlay is unknown"},
		},
		"calico, daemonsets unreadable, named by its operator": {
			file: "calico-3.32.yaml", forbid: [][2]string{{"get", "daemonsets"}}, i: podNet, profile: Calico, version: "v3.32.1", answers: "yes yes yes unverified",
		},
		"calico, nothing readable": {
			file: "calico-3.27.yaml", forbid: [][2]string{{"*", "daemonsets"}, {"*", "configmaps"}, {"*", "clusterinformations"}, {"*", "ippools"}, {"*", "ipamconfigs"}, {"*", "felixconfigurations"}}, i: podNet, profile: Calico, answers: "unverified unverified unverified unverified", reasons: [4]string{"forbidden", "forbidden", "forbidden", "forbidden"},
		},
		"calico with host-local by its operator": {
			file: "calico-3.32.yaml", change: []string{"ipam: {type: Calico}", "ipam: {type: HostLocal}"}, i: podNet, profile: Calico, version: "v3.32.1", answers: "no no no no", reasons: [4]string{"ipam host-local"},
		},
		"canal":                  {file: "canal.yaml", i: podNet, profile: Calico, version: "v3.31.0", answers: "no no no no", reasons: [4]string{"ipAddrs is not compatible with"}},
		"canal as RKE2 names it": {file: "canal.yaml", change: []string{"name: canal", "name: rke2-canal"}, i: podNet, profile: Calico, version: "v3.31.0", answers: "no no no no", reasons: [4]string{"ipam host-local"}},
		"calico for policy only": {
			file: "calico-policy-only.yaml", i: podNet, profile: None, answers: "no no no no", reasons: [4]string{"no network plugin that this version knows"},
		},
		"calico's CRDs without calico": {
			file: "calico-3.27.yaml", change: []string{"name: calico-node}", "name: another}"}, i: podNet, profile: None, answers: "no no no no",
		},
		"kube-ovn": {
			file: "kube-ovn.yaml", i: podNet, profile: KubeOVN, version: "v1.14.10", answers: "yes yes yes yes", reasons: [4]string{2: "--keep-vm-ip=true"},
		},
		"C37 kube-ovn without keep-vm-ip": {
			file: "kube-ovn.yaml", change: []string{"--keep-vm-ip=true", "--keep-vm-ip=false"}, i: podNet, profile: KubeOVN, version: "v1.14.10", answers: "yes no no yes",
			reasons: [4]string{1: "--keep-vm-ip=false", 2: "--keep-vm-ip=false"},
		},
		"kube-ovn, the flag alone": {
			file: "kube-ovn.yaml", change: []string{"--keep-vm-ip=true", "--keep-vm-ip"}, i: podNet, profile: KubeOVN, version: "v1.14.10", answers: "yes yes yes yes",
		},
		"kube-ovn, default of 1.14": {
			file: "kube-ovn.yaml", change: []string{"--keep-vm-ip=true", "--v=3"}, i: podNet, profile: KubeOVN, version: "v1.14.10", answers: "yes yes yes yes", reasons: [4]string{2: "true by default in Kube-OVN v1.14.10"},
		},
		"kube-ovn, default of 1.11": {
			file: "kube-ovn.yaml", change: []string{"--keep-vm-ip=true", "--v=3", "v1.14.10", "v1.11.16"}, i: podNet, profile: KubeOVN, version: "v1.11.16", answers: "yes no no yes", reasons: [4]string{2: "false by default"},
		},
		"kube-ovn, default of an unknown version": {
			file: "kube-ovn.yaml", change: []string{"--keep-vm-ip=true", "--v=3", ":v1.14.10", ""}, i: podNet, profile: KubeOVN, answers: "yes unverified unverified yes", reasons: [4]string{2: "version, which is unknown"},
		},
		"kube-ovn, a flag that is none": {
			file: "kube-ovn.yaml", change: []string{"--keep-vm-ip=true", "--keep-vm-ip=maybe"}, i: podNet, profile: KubeOVN, version: "v1.14.10", answers: "yes unverified unverified yes",
		},
		"C37 kube-ovn, controller unreadable": {
			file: "kube-ovn.yaml", forbid: [][2]string{{"*", "deployments"}}, i: podNet, profile: KubeOVN, answers: "unverified unverified unverified yes", reasons: [4]string{2: "forbidden"},
		},
		"kube-ovn in another namespace": {
			file: "kube-ovn.yaml", change: []string{"namespace: kube-system", "namespace: kube-ovn"}, i: podNet, profile: KubeOVN, version: "v1.14.10", answers: "yes yes yes yes",
		},
		"kube-ovn for attachments only": {
			file: "kube-ovn.yaml", change: []string{"--default-cidr=198.51.100.0/24", "--non-primary-cni-mode=true"}, i: podNet, profile: None, answers: "no no no no",
		},
		"kube-ovn for attachments only, on one": {
			file: "kube-ovn.yaml", change: []string{"--default-cidr=198.51.100.0/24", "--non-primary-cni-mode=true"}, i: secondary("x", "tenant-a/net-x"), profile: KubeOVN, version: "v1.14.10", answers: "yes yes yes yes",
		},
		"spiderpool": {
			file: "spiderpool.yaml", i: podNet, profile: Spiderpool, version: "v1.0.3", answers: "yes yes yes no", reasons: [4]string{2: "is unverified", 3: "enableIPv6 false"},
		},
		"spiderpool, both families": {
			file: "spiderpool.yaml", change: []string{"enableIPv6: false", "enableIPv6: true"}, i: podNet, profile: Spiderpool, version: "v1.0.3", answers: "yes yes yes yes",
		},
		"spiderpool, static addresses off": {
			file: "spiderpool.yaml", change: []string{"enableKubevirtStaticIP: true", "enableKubevirtStaticIP: false"}, i: podNet, profile: Spiderpool, version: "v1.0.3", answers: "yes no no no", reasons: [4]string{1: "enableKubevirtStaticIP false"},
		},
		"spiderpool that does not say": {
			file: "spiderpool.yaml", change: []string{`enableKubevirtStaticIP: true\n`, ""}, i: podNet, profile: Spiderpool, version: "v1.0.3", answers: "yes unverified unverified no",
		},
		"spiderpool too old": {
			file: "spiderpool.yaml", change: []string{"v1.0.3", "v0.7.4"}, i: podNet, profile: Spiderpool, version: "v0.7.4", answers: "no no no no", reasons: [4]string{"since 0.8"},
		},
		"spiderpool, configuration unreadable": {
			file: "spiderpool.yaml", forbid: [][2]string{{"get", "configmaps"}}, i: podNet, profile: Spiderpool, answers: "unverified unverified unverified unverified",
		},
		"C11 spiderpool with bridge on macvlan": {
			file: "spiderpool.yaml", i: secondary("lan", "tenant-a/macvlan"), profile: Spiderpool, version: "v1.0.3", answers: "no no no no", reasons: [4]string{"bridge binding on a macvlan network drops the guest's frames"},
		},
		"spiderpool with bridge on ovs": {file: "spiderpool.yaml", i: secondary("lan", "tenant-a/ovs"), profile: Spiderpool, version: "v1.0.3", answers: "yes yes yes no"},
		"C10 cilium": {
			file: "cilium.yaml", i: podNet, profile: None, version: "v1.18.2", answers: "no no no no", reasons: [4]string{"Cilium runs with ipam cluster-pool: Cilium reads no annotation"},
		},
		"nothing": {file: "nothing.yaml", i: podNet, profile: None, answers: "no no no no", reasons: [4]string{"no network plugin"}},
		"nothing readable": {
			file: "nothing.yaml", forbid: [][2]string{{"*", "*"}}, i: podNet, profile: None, answers: "unverified unverified unverified unverified", reasons: [4]string{"forbidden"},
		},

		"kube-ovn on a second interface": {file: "kube-ovn.yaml", i: secondary("x", "tenant-a/net-x"), profile: KubeOVN, version: "v1.14.10", answers: "yes yes yes yes"},
		"kube-ovn as IPAM of macvlan":    {file: "kube-ovn.yaml", i: secondary("x", "tenant-a/macvlan"), profile: KubeOVN, version: "v1.14.10", answers: "yes yes yes yes"},
		"kube-ovn without provider":      {file: "kube-ovn.yaml", i: secondary("x", "tenant-a/nameless"), profile: None, answers: "no no no no", reasons: [4]string{`names provider "", and Kube-OVN allocates for "nameless.tenant-a.ovn"`}},
		"C02 calico on a second interface": {
			file: "kube-ovn.yaml", i: secondary("dmz", "tenant-a/calico-dmz"), profile: None, answers: "no no no no", reasons: [4]string{"ipAddrs is pod-wide"},
		},
		"C01 C30 whereabouts": {
			file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/lan"), profile: None, answers: "no no no no", reasons: [4]string{"KubeVirt rewrites k8s.v1.cni.cncf.io/networks", "IPAM whereabouts is not VM-scoped"},
		},
		"C36 whereabouts with one address": {
			file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/one"), profile: None, answers: "no yes no no", reasons: [4]string{2: "has one address, 203.0.113.20, which the source pod holds"},
		},
		"static":     {file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/static"), profile: None, answers: "no yes yes no"},
		"host-local": {file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/local"), profile: None, answers: "no no no no", reasons: [4]string{"host-local counts addresses on each node"}},
		"no IPAM":    {file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/bare"), profile: None, answers: "no no no no", reasons: [4]string{"type ovs) has no IPAM"}},
		"on disk":    {file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/on-disk"), profile: None, answers: "unverified unverified unverified unverified", reasons: [4]string{"file on the nodes"}},
		"damaged":    {file: "kube-ovn.yaml", i: secondary("lan", "tenant-a/damaged"), profile: None, answers: "unverified unverified unverified unverified", reasons: [4]string{"is not JSON"}},
		"unreadable": {
			file: "kube-ovn.yaml", forbid: [][2]string{{"get", "network-attachment-definitions"}}, i: secondary("x", "tenant-a/net-x"), profile: None, answers: "unverified unverified unverified unverified", reasons: [4]string{"forbidden"},
		},
		"multus default served by calico": {
			file: "kube-ovn.yaml", i: machine.Interface{Name: "default", MultusDefault: true, Attachment: "tenant-a/calico-dmz"}, profile: Calico, answers: "unverified unverified unverified unverified", reasons: [4]string{"calico was not found"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := load(t, c.file, c.change...)
			for _, f := range c.forbid {
				w.forbid(f[0], f[1])
			}
			p := w.on(t, c.i)
			caps := p.Capabilities(c.i)
			if p.Name() != c.profile || p.Version() != c.version || answers(caps) != c.answers {
				t.Errorf("got %s %s: %s; want %s %s: %s", p.Name(), p.Version(), answers(caps), c.profile, c.version, c.answers)
			}
			for n, got := range []Capability{caps.Choose, caps.Restart, caps.Migration, caps.DualStack} {
				contains(t, "reason", got.Reason, c.reasons[n])
				if got.Reason == "" {
					t.Errorf("answer %d has no reason", n)
				}
			}
			if len(p.Evidence()) == 0 {
				t.Error("no evidence")
			}
		})
	}
}

// A cluster's native mode keeps the records in the other group.
func TestCalicoNativeGroup(t *testing.T) {
	w := load(t, "calico-3.32.yaml", "crd.projectcalico.org/v1", "projectcalico.org/v3", "kind: FelixConfiguration, metadata: {name: default}, spec: {logSeverityScreen: Info}", "kind: IPAMConfiguration, metadata: {name: default}, spec: {kubeVirtVMAddressPersistence: Disabled}")
	p := w.on(t, podNet)
	if got := answers(p.Capabilities(podNet)); got != "yes yes no no" || p.Version() != "v3.32.1" {
		t.Errorf("%s %s", p.Version(), got)
	}
}

func TestSeveralPlugins(t *testing.T) {
	// Spiderpool beside Calico serves attachments, and Calico the pod network.
	w := load(t, "calico-3.27.yaml")
	spider := load(t, "spiderpool.yaml")
	merge(t, w, spider)
	if p := w.on(t, podNet); p.Name() != Calico {
		t.Errorf("pod network: %s", p.Name())
	}
	if p := w.on(t, secondary("lan", "tenant-a/ovs")); p.Name() != Spiderpool {
		t.Errorf("attachment: %s", p.Name())
	}
	var names []string
	for _, p := range w.detect(t).Profiles() {
		names = append(names, p.Name())
	}
	if strings.Join(names, " ") != "calico spiderpool" {
		t.Errorf("profiles %v", names)
	}

	// Two that may both serve the pod network: nothing is claimed.
	w = load(t, "calico-3.27.yaml")
	merge(t, w, load(t, "kube-ovn.yaml"))
	p := w.on(t, podNet)
	if got := answers(p.Capabilities(podNet)); p.Name() != None || got != "unverified unverified unverified unverified" {
		t.Errorf("%s: %s", p.Name(), got)
	}
	contains(t, "reason", p.Capabilities(podNet).Choose.Reason, "several network plugins may serve the pod network: calico, kube-ovn")
	if _, err := p.Render(db1, podNet, ips("198.51.100.20")); err == nil || !strings.Contains(err.Error(), "--profile") {
		t.Errorf("error %v", err)
	}
	forced, err := w.detect(t).Named(KubeOVN)
	if err != nil || answers(forced.Capabilities(podNet)) != "yes yes yes yes" {
		t.Errorf("forced: %v, %v", forced, err)
	}
}

// merge copies the objects of one cluster into another.
func merge(t *testing.T, into, from world) {
	t.Helper()
	ctx := context.Background()
	into.core.Resources = append(into.core.Resources, from.core.Resources...)
	for gvr := range listKinds {
		list, err := from.dyn.Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for n := range list.Items {
			into.add(t, &list.Items[n])
		}
	}
	add := func(o runtime.Object) {
		if err := into.core.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	maps, _ := from.core.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
	for n := range maps.Items {
		add(&maps.Items[n])
	}
	daemons, _ := from.core.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	for n := range daemons.Items {
		add(&daemons.Items[n])
	}
	deployments, _ := from.core.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	for n := range deployments.Items {
		add(&deployments.Items[n])
	}
}

func TestNamed(t *testing.T) {
	c := load(t, "nothing.yaml").detect(t)
	for _, name := range Names() {
		p, err := c.Named(name)
		if err != nil || p.Name() != name {
			t.Errorf("%s: %v, %v", name, p, err)
			continue
		}
		if got := p.Capabilities(podNet); got.Migration.Answer == Yes || got.Restart.Answer == Yes {
			t.Errorf("%s: a plugin that was not found promises %s", name, answers(got))
		}
		// A Cluster that was never detected promises as little, and still reads annotations.
		blank, err := new(Cluster).Named(name)
		if err != nil || blank.Capabilities(podNet).Migration.Answer != Unverified {
			t.Errorf("%s: %v, %v", name, blank.Capabilities(podNet), err)
		}
	}
	if _, err := c.Named("weave"); err == nil || !strings.Contains(err.Error(), `unknown profile "weave": choose one of calico, kube-ovn, spiderpool`) {
		t.Errorf("error %v", err)
	}
}

func TestForReportsAMissingAttachment(t *testing.T) {
	c := load(t, "kube-ovn.yaml").detect(t)
	_, err := c.For(context.Background(), secondary("lan", "tenant-a/gone"))
	if err == nil || !strings.Contains(err.Error(), "interface lan: networkattachmentdefinition tenant-a/gone does not exist") {
		t.Errorf("error %v", err)
	}
}

// What is read for many machines at once is what one read says, attachments too.
func TestBatch(t *testing.T) {
	for file, attached := range map[string]string{"kube-ovn.yaml": "", "calico-3.27.yaml": "", "spiderpool.yaml": "tenant-a/ovs"} {
		c := load(t, file).detect(t)
		batch := c.Batch()
		for _, i := range []machine.Interface{podNet, secondary("lan", attached), secondary("lan", "tenant-a/gone")} {
			if i.Attachment == "" && !i.Pod {
				continue
			}
			one, oneErr := c.For(context.Background(), i)
			many, manyErr := batch.For(context.Background(), i)
			if fmt.Sprint(oneErr) != fmt.Sprint(manyErr) || oneErr == nil && (one.Name() != many.Name() || answers(one.Capabilities(i)) != answers(many.Capabilities(i))) {
				t.Errorf("%s, %s: %v %v; in a batch %v %v", file, i.Name, one, oneErr, many, manyErr)
			}
		}
	}
}

func TestDetectIsBounded(t *testing.T) {
	for _, file := range []string{"calico-3.32.yaml", "kube-ovn.yaml", "spiderpool.yaml", "cilium.yaml", "nothing.yaml"} {
		w := load(t, file)
		c := w.detect(t)
		for range 5 {
			if _, err := c.For(context.Background(), podNet); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for _, a := range append(w.core.Actions(), w.dyn.Actions()...) {
			n++
			if a.GetVerb() == "list" && (a.GetResource().Resource == "pods" || a.GetResource().Resource == "ipamblocks" || a.GetResource().Resource == "ips") {
				t.Errorf("%s: lists %s", file, a.GetResource())
			}
		}
		if n > 20 {
			t.Errorf("%s: %d requests", file, n)
		}
	}
}

func TestDetectWithoutDiscovery(t *testing.T) {
	w := load(t, "calico-3.32.yaml")
	w.core.PrependReactor("get", "group", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no answer")
	})
	// Nothing is known to be missing: what is there is found all the same.
	c := w.detect(t)
	if len(c.Unread()) == 0 || !strings.Contains(strings.Join(c.Unread(), "\n"), "no answer") {
		t.Errorf("unread %v", c.Unread())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Detect(ctx, Reader{Core: w.core, Dynamic: w.dyn}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestReads(t *testing.T) {
	c := load(t, "calico-3.27.yaml").detect(t)
	for key, want := range map[string]Answer{
		"cni.projectcalico.org/ipAddrs":                       Yes,
		"ovn.kubernetes.io/ip_address":                        No,
		"net-x.tenant-a.ovn.kubernetes.io/ip_address":         No,
		"macvlan.default.kubernetes.io/ip_address.pod0123":    No,
		"ipam.spidernet.io/ippool":                            No,
		"cni.cilium.io/ipAddrs":                               No,
		"ipam.cilium.io/ip-pool":                              No,
		"network.kubevirt.io/addresses":                       No,
		"kubevirt.io/allow-pod-bridge-network-live-migration": Yes,
		"example.org/ip_address":                              Yes,
		"kubernetes.io/description":                           Yes,
	} {
		got := c.Reads(key)
		if got.Answer != want || got.Answer == No && !strings.Contains(got.Reason, key) {
			t.Errorf("%s: %+v, want %s", key, got, want)
		}
	}
	w := load(t, "kube-ovn.yaml")
	w.forbid("*", "deployments")
	if got := w.detect(t).Reads("ovn.kubernetes.io/ip_address"); got.Answer != Unverified {
		t.Errorf("unreadable: %+v", got)
	}
	if got := new(Cluster).Reads("ovn.kubernetes.io/ip_address"); got.Answer != Unverified {
		t.Errorf("never detected: %+v", got)
	}
}

// C02: an attachment that Calico serves obeys the pod network's annotation.
func TestCalicoKeysArePodWide(t *testing.T) {
	w := load(t, "kube-ovn.yaml")
	p := w.on(t, secondary("dmz", "tenant-a/calico-dmz"))
	if keys := p.Keys(secondary("dmz", "tenant-a/calico-dmz")); !strings.Contains(strings.Join(keys, " "), calicoIPAddrs) {
		t.Errorf("keys %v", keys)
	}
	if keys := w.on(t, secondary("lan", "tenant-a/lan")).Keys(podNet); len(keys) > 0 {
		t.Errorf("whereabouts reads %v", keys)
	}
}
