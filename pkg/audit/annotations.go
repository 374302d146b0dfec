package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// misplaced finds annotations that pin an address on the machine itself, or on its running pod,
// and not in the template, from which alone KubeVirt copies them.
func misplaced(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, g := range e.machines {
		if g.VM == nil || g.VM.Spec.Template == nil || g.VM.DeletionTimestamp != nil {
			continue
		}
		keys := slices.Collect(maps.Keys(g.VM.Annotations))
		if g.current != nil {
			keys = slices.AppendSeq(keys, maps.Keys(g.current.Annotations))
		}
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			if plugin, ok := profile.PluginOf(key); ok && plugin != "" && !hasKey(g.VM.Spec.Template.ObjectMeta.Annotations, key) {
				found = append(found, e.misplacedKey(g, key, plugin)...)
			}
		}
	}
	return found, nil
}

func (e *estate) misplacedKey(g *guest, key, plugin string) []Finding {
	value, where := "", ""
	switch {
	case hasKey(g.VM.Annotations, key):
		value, where = g.VM.Annotations[key], "metadata.annotations of the virtual machine"
	case plugin == profile.KubeOVN || g.VMI == nil || hasKey(g.VMI.Annotations, key):
		// Kube-OVN writes its keys on the pod itself; an instance that has the key is older than
		// the template: see running.
		return nil
	default:
		value, where = g.current.Annotations[key], "pod "+g.current.Name
	}
	f := e.about(MisplacedAnnotation, g)
	f.Evidence = fmt.Sprintf("%s=%s is on %s, and not in spec.template.metadata.annotations", key, value, where)
	n, claims := e.claims(g, key, value)
	if len(claims) == 0 {
		e.remedy(&f, CheckOf(TemplateMissing).Remedy)
		return []Finding{f}
	}
	e.on(&f, n)
	domain, _ := e.domainOf(n, "", claims[0])
	f.at(domain, claims[0])
	e.remedy(&f, CheckOf(MisplacedAnnotation).Remedy, "{address}", address.Join(claims))
	return []Finding{f}
}

// claims reads a value as whichever plugin has the key for one of the machine's interfaces.
func (e *estate) claims(g *guest, key, value string) (*nic, []netip.Addr) {
	for _, n := range g.nics {
		for _, p := range append([]Plugin{n.plugin}, slices.Collect(maps.Values(e.Networks.Named))...) {
			if p == nil || !slices.Contains(p.Keys(n.Interface), key) {
				continue
			}
			if a, err := p.Claims(map[string]string{key: value}, n.Interface); err == nil && len(a) > 0 {
				return n, a
			}
		}
	}
	return nil, nil
}

// malformed finds template annotations that the interface's plugin can't parse, and machines whose
// own word about their reservations can't be read.
func malformed(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, g := range e.machines {
		if g.VM == nil || g.VM.DeletionTimestamp != nil {
			continue
		}
		if g.unreadable != nil {
			found = append(found, e.unreadable(g))
		}
		for _, n := range g.nics {
			if n.malformed == nil || n.Absent {
				continue
			}
			f := e.about(MalformedAnnotation, g)
			e.on(&f, n)
			f.Evidence = n.malformed.Error()
			if rows := n.families(); len(rows) > 0 {
				// Reserving again writes the annotation as the plugin wants it.
				row := n.reserved(rows[0])
				f.at(row.Network, row.Addr)
				e.remedy(&f, CheckOf(TemplateMissing).Remedy)
			}
			found = append(found, f)
		}
	}
	return found, nil
}

// unreadable is the finding of a machine whose annotation can't be read. Every command refuses the
// machine until it is gone; reserving again writes it anew.
func (e *estate) unreadable(g *guest) Finding {
	f := e.about(MalformedAnnotation, g)
	f.Evidence = fmt.Sprintf("%v: commands refuse the virtual machine", g.unreadable)
	e.remedy(&f, "kubectl annotate virtualmachine {vm} -n {namespace} "+ledger.AnnotationReservations+"-")
	for _, n := range g.nics {
		if len(n.families()) > 0 {
			f.Remedy += " && " + e.command("kubectl vmip reserve {vm} -n {namespace} --interface "+n.Name, g.ref)
		}
	}
	return f
}

const multusNetworks = "k8s.v1.cni.cncf.io/networks"

// ineffective finds template annotations that nothing reads, and addresses in the one that
// KubeVirt overwrites.
func ineffective(e *estate) ([]Finding, []Skip) {
	var found []Finding
	var unknown []string
	for _, g := range e.machines {
		if g.VM == nil || g.VM.Spec.Template == nil || g.VM.DeletionTimestamp != nil {
			continue
		}
		annotations := g.VM.Spec.Template.ObjectMeta.Annotations
		if addrs := overwritten(annotations, g.nics); len(addrs) > 0 {
			f := e.about(IneffectiveAnnotation, g)
			f.Evidence = fmt.Sprintf("%s names %s, and KubeVirt overwrites it from spec.networks", multusNetworks, strings.Join(addrs, ", "))
			found = append(found, f)
		}
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			if e.Networks.Reads == nil || g.reads(key) {
				continue
			}
			switch c := e.Networks.Reads(key); c.Answer {
			case profile.No:
				f := e.about(IneffectiveAnnotation, g)
				f.Evidence = fmt.Sprintf("%s=%s: %s", key, annotations[key], c.Reason)
				found = append(found, f)
			case profile.Unverified:
				unknown = append(unknown, c.Reason)
			}
		}
	}
	var skipped []Skip
	if e.Networks.Reads == nil {
		unknown = append(unknown, "which network plugins the cluster has was not established")
	}
	slices.Sort(unknown)
	for _, why := range slices.Compact(unknown) {
		skipped = append(skipped, Skip{[]Code{IneffectiveAnnotation}, why})
	}
	return found, skipped
}

// reads says whether the plugin of one of the machine's interfaces reads a key: the one that was
// detected, or that a pool names.
func (g *guest) reads(key string) bool {
	return slices.ContainsFunc(g.nics, func(n *nic) bool {
		_, any := n.plugin.(anyPlugin)
		return n.plugin != nil && !any && slices.Contains(n.plugin.Keys(n.Interface), key)
	})
}

// overwritten are the addresses in the Multus annotation of a machine that has Multus networks.
// Without one KubeVirt generates nothing and the annotation passes (KubeVirt issue 4564).
func overwritten(annotations map[string]string, nics []*nic) []string {
	secondary := slices.ContainsFunc(nics, func(n *nic) bool { return n.Attachment != "" && !n.MultusDefault })
	if !secondary {
		return nil
	}
	var elements []struct {
		IPs []string `json:"ips"`
	}
	if json.Unmarshal([]byte(annotations[multusNetworks]), &elements) != nil {
		return nil // names only, or nothing: no address is lost
	}
	var addrs []string
	for _, el := range elements {
		addrs = append(addrs, el.IPs...)
	}
	return addrs
}

// optIn finds opt-ins to live migration with bridge on the pod network that are not what they
// seem. KubeVirt looks whether the instance has the annotation, and never at its value.
func optIn(e *estate) ([]Finding, []Skip) {
	const key = kubevirtv1.AllowPodBridgeNetworkLiveMigrationAnnotation
	var found []Finding
	for _, g := range e.machines {
		bridge := slices.ContainsFunc(g.nics, bridged)
		if g.VM == nil || g.VM.Spec.Template == nil || !bridge {
			continue
		}
		inTemplate, ok := g.VM.Spec.Template.ObjectMeta.Annotations[key]
		evidence, remedy := "", CheckOf(MigrationBlocked).Remedy
		switch {
		case ok && strings.EqualFold(inTemplate, "false"):
			evidence = fmt.Sprintf("%s is %q in the template, which KubeVirt takes for allowed: remove it to forbid migration", key, inTemplate)
		case !ok && hasKey(g.VM.Annotations, key):
			evidence = fmt.Sprintf("%s is on metadata.annotations of the virtual machine, and KubeVirt looks for it in spec.template.metadata.annotations", key)
		case ok && g.started() && !hasKey(g.VMI.Annotations, key):
			evidence, remedy = key+" is in the template, and the running instance was started without it", CheckOf(RestartPending).Remedy
		default:
			continue
		}
		f := e.about(MigrationBlocked, g)
		f.Evidence = evidence
		e.remedy(&f, remedy)
		found = append(found, f)
	}
	return found, nil
}

// bridged says that an interface joins the pod network by a bridge. An interface that KubeVirt adds
// by itself has the cluster's default binding, which only a running instance tells.
func bridged(n *nic) bool {
	return n.Pod && !n.MultusDefault && n.Binding == machine.Bridge && (!n.Implicit || n.runs)
}

func hasKey(annotations map[string]string, key string) bool {
	_, ok := annotations[key]
	return ok
}
