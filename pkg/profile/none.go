package profile

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// refusal is the profile of a network that holds no address for a VM, or of which too little is
// known. It says why, and what would.
type refusal struct {
	// plugin is the plugin that was recognised, "" for none.
	plugin, version string
	caps            Capabilities
	evidence        []string
	// keys are annotations that the plugin reads for the interface though they can't serve it.
	keys []string
}

// refuse makes the profile of a network that can't hold a VM's address.
func refuse(plugin, reason string) *refusal {
	no := Capability{No, reason}
	return &refusal{plugin: plugin, caps: Capabilities{no, no, no, no, no}}
}

// unverified makes the profile of a network of which too little could be read.
func unverified(reason string) *refusal {
	u := Capability{Unverified, reason}
	return &refusal{caps: Capabilities{u, u, u, u, u}}
}

func (p *refusal) Name() string                                { return None }
func (p *refusal) Version() string                             { return p.version }
func (p *refusal) Capabilities(machine.Interface) Capabilities { return p.caps }
func (p *refusal) Keys(machine.Interface) []string             { return p.keys }

func (p *refusal) Evidence() []string { return append([]string{p.caps.Choose.Reason}, p.evidence...) }

// supported is the way out of every refusal.
const supported = "use a network served by Calico with calico-ipam, Kube-OVN, or Spiderpool"

func (p *refusal) Render(vm machine.Ref, i machine.Interface, _ []netip.Addr) (Rendering, error) {
	if p.caps.Choose.Answer == Unverified {
		return Rendering{}, fmt.Errorf("virtualmachine %s interface %s: %s: name the profile with --profile", vm, i.Name, p.caps.Choose.Reason)
	}
	return Rendering{}, fmt.Errorf("virtualmachine %s interface %s: %s: %s", vm, i.Name, p.caps.Choose.Reason, supported)
}

func (p *refusal) Claims(map[string]string, machine.Interface) ([]netip.Addr, error) { return nil, nil }

func (p *refusal) Records(context.Context, machine.Ref, machine.Interface) ([]Record, error) {
	return nil, nil
}

func (p *refusal) InUse(context.Context, machine.Ref, netip.Addr) (string, error) { return "", nil }

// other is a plugin that is recognised in order to say why it can't serve.
type other struct {
	plugin  string
	version string
	present presence
	reason  string
}

func (o other) profile() Profile {
	p := refuse(o.plugin, o.reason)
	p.version = o.version
	return p
}

// otherPlugins are recognised by a DaemonSet. group is an API group without which the plugin can't
// be there, "" where it has none.
var otherPlugins = []struct {
	plugin, group string
	daemonSets    []string
	reason        string
}{
	{"cilium", "cilium.io", []string{"kube-system/cilium", "cilium/cilium"},
		"Cilium reads no annotation that names an address, in any IPAM mode, and can't have one address at two pods during a migration (cilium issues 17026, 38576)"},
	{"antrea", "crd.antrea.io", []string{"kube-system/antrea-agent"},
		"Antrea keeps addresses for StatefulSets only: the address of a VM is free between two pods and refused to a migration's target (docs/antrea-ipam.md)"},
	{"ovn-kubernetes", "k8s.ovn.org", []string{"ovn-kubernetes/ovnkube-node", "openshift-ovn-kubernetes/ovnkube-node"},
		"the default network of OVN-Kubernetes has no way to choose an address (docs/features/live-migration.md)"},
	{"flannel", "", []string{"kube-flannel/kube-flannel-ds", "kube-system/kube-flannel-ds"},
		"Flannel leaves addresses to host-local, which counts them for each node and each pod anew"},
}

// detectOthers returns the plugins that were found, and what could not be looked at of those that
// nothing else speaks for.
func detectOthers(ctx context.Context, r Reader, g groups) (found []other, unseen []error) {
	for _, p := range otherPlugins {
		if p.group != "" && g.missing(p.group) {
			continue
		}
		w, err := r.daemonSet(ctx, p.daemonSets...)
		switch {
		case absent(err):
			continue
		case err != nil && p.group == "":
			unseen = append(unseen, err)
			continue
		}
		o := other{plugin: p.plugin, version: w.version(), present: presenceOf(err), reason: p.reason}
		if p.plugin == "cilium" {
			o.reason = ciliumMode(ctx, r) + o.reason
		}
		found = append(found, o)
	}
	return found, unseen
}

func presenceOf(err error) presence {
	if err != nil {
		return unknown[bool](err)
	}
	return known(true)
}

// ciliumMode names the IPAM mode for the sentence that refuses (key "ipam" of cilium-config).
func ciliumMode(ctx context.Context, r Reader) string {
	m, err := r.Core.CoreV1().ConfigMaps("kube-system").Get(ctx, "cilium-config", metav1.GetOptions{})
	if err != nil || m.Data["ipam"] == "" {
		return ""
	}
	return fmt.Sprintf("Cilium runs with ipam %s: ", strings.TrimSpace(m.Data["ipam"]))
}
