package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Binding is how a guest interface is joined to the pod's, by KubeVirt's API names: bridge,
// masquerade, sriov, passt, macvtap, slirp, or plugin:NAME.
type Binding string

// The bindings that rules tell apart. Any other value is one that this version does not know.
const (
	Bridge     Binding = "bridge"
	Masquerade Binding = "masquerade"
	SRIOV      Binding = "sriov"
	Passt      Binding = "passt"
	Macvtap    Binding = "macvtap"
	Slirp      Binding = "slirp"
	// PluginPrefix begins the name of a binding plugin.
	PluginPrefix = "plugin:"
)

// Plugin returns the name of the binding plugin, "" for a core binding.
func (b Binding) Plugin() string {
	name, ok := strings.CutPrefix(string(b), PluginPrefix)
	if !ok {
		return ""
	}
	return name
}

// Interface is one network interface of a machine.
type Interface struct {
	// Name is the name of the network in spec.networks, which the interface shares.
	Name string
	// Pod is true for the pod network.
	Pod bool
	// Attachment is "namespace/name" of the NetworkAttachmentDefinition of a Multus network.
	Attachment string
	// MultusDefault is set where the attachment replaces the pod network.
	MultusDefault bool
	Binding       Binding
	// Implicit is set where the spec has no interface and KubeVirt adds the default one.
	Implicit bool
	// MAC is the address pinned in the spec, normalised to lower case with colons.
	MAC string
	// Absent is set where the interface is asked to be unplugged.
	Absent bool
	// Ordinal counts the secondary networks of the spec from 1; pods older than KubeVirt's hashed
	// names call the interface "net" and this number. 0 for the primary network.
	Ordinal int
	// PodInterface is the name in the pod as the VMI's status tells it, "" where it does not.
	PodInterface string
}

// Primary says whether the interface is the one of the pod's own network, eth0 as a rule.
func (i Interface) Primary() bool { return i.Pod || i.MultusDefault }

const (
	primaryInterface = "eth0"
	// defaultNetworkName is the name of the interface that KubeVirt adds to a spec without any
	// (DefaultBridgeNetworkInterface in kubevirt.io/api/core/v1).
	defaultNetworkName = "default"
	// multusNamespace is where Multus looks for an attachment that is named without a namespace in
	// the default-network annotation (option multusNamespace of Multus).
	multusNamespace = "kube-system"
	// DefaultNetworkAnnotation replaces a pod's primary network. KubeVirt lets it through from the
	// template to the pod, and overwrites it where spec.networks has a default of its own
	// (pkg/network/pod/annotations/generator.go).
	DefaultNetworkAnnotation = "v1.multus-cni.io/default-network"
)

// HashedInterface is the name that KubeVirt gives a secondary network's interface in the pod
// (pkg/network/namescheme): "pod" and 11 hex digits of the SHA-256 of the network's name.
func HashedInterface(network string) string {
	sum := sha256.Sum256([]byte(network))
	return "pod" + hex.EncodeToString(sum[:])[:11]
}

// Interfaces returns the interfaces of a spec in a namespace, in the order of the spec. A spec
// with neither interfaces nor networks has KubeVirt's default interface, unless it declines
// (SetDefaultNetworkInterface in pkg/network/vmispec/defaults.go); its binding is then a setting
// of the cluster, bridge unless changed, and the running VMI tells the truth.
func Interfaces(namespace string, spec *kubevirtv1.VirtualMachineInstanceSpec) []Interface {
	if spec == nil {
		return nil
	}
	devices := spec.Domain.Devices
	if len(spec.Networks) == 0 && len(devices.Interfaces) == 0 {
		if auto := devices.AutoattachPodInterface; auto != nil && !*auto {
			return nil
		}
		return []Interface{{Name: defaultNetworkName, Pod: true, Binding: Bridge, Implicit: true}}
	}
	ordinals := ordinals(spec.Networks)
	var list []Interface
	for _, d := range devices.Interfaces {
		n := slices.IndexFunc(spec.Networks, func(n kubevirtv1.Network) bool { return n.Name == d.Name })
		if n < 0 {
			continue // KubeVirt's admission refuses it
		}
		i := Interface{
			Name: d.Name, Binding: bindingOf(d), MAC: NormaliseMAC(d.MacAddress),
			Absent: d.State == kubevirtv1.InterfaceStateAbsent, Ordinal: ordinals[d.Name],
		}
		switch network := spec.Networks[n]; {
		case network.Pod != nil:
			i.Pod = true
		case network.Multus != nil:
			i.MultusDefault = network.Multus.Default
			i.Attachment = qualify(network.Multus.NetworkName, namespace)
			if i.MultusDefault {
				i.Attachment = qualify(network.Multus.NetworkName, multusNamespace)
			}
		}
		list = append(list, i)
	}
	return list
}

// ordinals numbers the secondary Multus networks as KubeVirt's ordinal name scheme does.
func ordinals(networks []kubevirtv1.Network) map[string]int {
	m := map[string]int{}
	for _, n := range networks {
		if n.Multus != nil && !n.Multus.Default {
			m[n.Name] = len(m) + 1
		}
	}
	return m
}

func qualify(name, namespace string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return namespace + "/" + name
}

func bindingOf(d kubevirtv1.Interface) Binding {
	switch {
	case d.Binding != nil:
		return Binding(PluginPrefix + d.Binding.Name)
	case d.Masquerade != nil:
		return Masquerade
	case d.SRIOV != nil:
		return SRIOV
	case d.PasstBinding != nil, d.DeprecatedPasst != nil:
		return Passt
	case d.DeprecatedMacvtap != nil:
		return Macvtap
	case d.DeprecatedSlirp != nil:
		return Slirp
	}
	return Bridge // the default of an interface that names none
}

// NormaliseMAC writes a MAC in lower case with colons, so that spellings compare equal. What is
// no MAC is returned as it stands: it is for KubeVirt to refuse.
func NormaliseMAC(s string) string {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return s
	}
	return hw.String()
}

// Interfaces returns the interfaces of the VM's template: what the next start will have. What only
// the running instance knows is taken from it: the binding of an implicit interface, and the
// names in the pod.
func (v *View) Interfaces() []Interface {
	if v.VM == nil || v.VM.Spec.Template == nil {
		return nil
	}
	t := v.VM.Spec.Template
	list := withDefaultNetwork(Interfaces(v.VM.Namespace, &t.Spec), t.ObjectMeta.Annotations)
	running := map[string]Interface{}
	for _, i := range v.RunningInterfaces() {
		running[i.Name] = i
	}
	for n := range list {
		r, ok := running[list[n].Name]
		if !ok {
			continue
		}
		list[n].PodInterface = r.PodInterface
		if list[n].Implicit {
			list[n].Binding = r.Binding
		}
	}
	return list
}

// RunningInterfaces returns the interfaces of the running instance; none where there is none.
func (v *View) RunningInterfaces() []Interface {
	if v.VMI == nil {
		return nil
	}
	return InstanceInterfaces(v.VMI)
}

// InstanceInterfaces returns the interfaces of a VMI with their names in the pod.
func InstanceInterfaces(vmi *kubevirtv1.VirtualMachineInstance) []Interface {
	list := withDefaultNetwork(Interfaces(vmi.Namespace, &vmi.Spec), vmi.Annotations)
	for n := range list {
		if s := statusOf(vmi, list[n].Name); s != nil {
			list[n].PodInterface = s.PodInterfaceName
		}
	}
	return list
}

// Interface returns the template's interface of that name. An empty name stands for the primary
// interface.
func (v *View) Interface(name string) (Interface, error) {
	list := v.Interfaces()
	var names []string
	for _, i := range list {
		if i.Name == name || name == "" && i.Primary() {
			return i, nil
		}
		names = append(names, i.Name)
	}
	switch {
	case len(list) == 0:
		return Interface{}, fmt.Errorf("virtualmachine %s has no network interface", v.Ref())
	case name == "":
		return Interface{}, fmt.Errorf("virtualmachine %s has no interface on the pod network: choose one of %s", v.Ref(), strings.Join(names, ", "))
	}
	return Interface{}, fmt.Errorf("virtualmachine %s has no interface %q: it has %s", v.Ref(), name, strings.Join(names, ", "))
}

// withDefaultNetwork applies a default-network annotation of the template: the pod network is
// then the attachment's, though the spec says "pod".
func withDefaultNetwork(list []Interface, annotations map[string]string) []Interface {
	name := defaultNetwork(annotations[DefaultNetworkAnnotation])
	if name == "" {
		return list
	}
	for n := range list {
		if list[n].Pod {
			list[n].Attachment, list[n].MultusDefault = name, true
		}
	}
	return list
}

// defaultNetwork reads the annotation in both forms that Multus accepts: a name, or a JSON list
// of one selection element. "" where it names nothing readable.
func defaultNetwork(value string) string {
	value = strings.TrimSpace(value)
	if value == "" {
		return ""
	}
	if strings.HasPrefix(value, "[") {
		var elements []struct{ Name, Namespace string }
		if err := json.Unmarshal([]byte(value), &elements); err != nil || len(elements) != 1 || elements[0].Name == "" {
			return ""
		}
		if e := elements[0]; e.Namespace != "" {
			return e.Namespace + "/" + e.Name
		}
		return qualify(elements[0].Name, multusNamespace)
	}
	name, _, _ := strings.Cut(value, "@") // "name@interface"
	return qualify(name, multusNamespace)
}
