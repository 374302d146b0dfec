package profile

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

var kubeOVNIPs = schema.GroupVersionResource{Group: kubeOVNGroup, Version: "v1", Resource: "ips"}

// kubeOVN is Kube-OVN, as the cluster's network or as that of one attachment.
type kubeOVN struct {
	kubeOVNFacts
	reader Reader
	// provider is Kube-OVN's name of the attachment, "" for the pod network. It begins the
	// attachment's annotations (pkg/util/const.go).
	provider string
	// attachment is the evidence for the provider.
	attachment string
}

func (p *kubeOVN) Name() string    { return KubeOVN }
func (p *kubeOVN) Version() string { return p.version.value }

func (p *kubeOVN) Evidence() []string {
	var e []string
	if p.controller.name != "" {
		e = append(e, p.controller.String()+" exists")
	}
	if p.version.failed() == nil {
		e = append(e, "Kube-OVN "+p.version.value)
	}
	if p.keepVMIP.failed() == nil {
		e = append(e, p.keep())
	}
	if p.attachment != "" {
		e = append(e, p.attachment)
	}
	for _, err := range p.unread() {
		if err != nil {
			e = append(e, err.Error())
		}
	}
	return e
}

// keep says what the controller does with a VM's address, and from where that is known.
func (p *kubeOVN) keep() string {
	if p.keepVMIPDefault {
		return fmt.Sprintf("keep-vm-ip is %t by default in Kube-OVN %s", p.keepVMIP.value, p.version.value)
	}
	return fmt.Sprintf("kube-ovn-controller runs with --keep-vm-ip=%t", p.keepVMIP.value)
}

func (p *kubeOVN) Capabilities(machine.Interface) Capabilities {
	c := Capabilities{
		Choose:    Capability{Yes, "Kube-OVN gives a pod the address that ip_address names, if its subnet has it"},
		DualStack: Capability{Yes, "Kube-OVN reads one address of each family in ip_address, if the subnet has both"},
	}
	if p.present.failed() != nil {
		c.Choose = Capability{Unverified, "whether Kube-OVN runs is unknown: " + p.present.failed().Error()}
	}
	switch {
	case p.keepVMIP.failed() != nil:
		why := "whether Kube-OVN keeps a VM's address is unknown: " + p.keepVMIP.failed().Error()
		c.Restart, c.Migration = Capability{Unverified, why}, Capability{Unverified, why}
	case p.keepVMIP.value:
		c.MAC = Capability{Yes, p.keep() + ": the VM's port keeps its MAC while its address stays"}
		c.Restart = Capability{Yes, p.keep() + ": the address belongs to the VM while it exists"}
		c.Migration = Capability{Yes, p.keep() + ": both pods of a migration have the VM's port"}
	default:
		c.Restart = Capability{No, p.keep() + ": the address is free once the VM's pod is gone"}
		c.Migration = Capability{No, p.keep() + ": the target pod of a migration gets a second port with the same address (kube-ovn issue 6634)"}
	}
	return c
}

// keys returns the annotations for addresses and MAC: ovn.kubernetes.io/… for the pod network,
// <provider>.kubernetes.io/… for an attachment. The flat ones never apply to an attachment.
func (p *kubeOVN) keys(i machine.Interface) (ip, mac string) {
	prefix := "ovn.kubernetes.io/"
	if provider := p.providerOf(i); provider != "" {
		prefix = provider + ".kubernetes.io/"
	}
	return prefix + "ip_address", prefix + "mac_address"
}

// providerOf falls back to the name that Kube-OVN's documents use, where a profile was forced on an
// attachment that could not be read.
func (p *kubeOVN) providerOf(i machine.Interface) string {
	if p.provider != "" || i.Attachment == "" {
		return p.provider
	}
	return providerName(i.Attachment, true)
}

// providerName is Kube-OVN's name of an attachment: <name>.<namespace>, and .ovn where Kube-OVN makes
// the interface and not only its address (getPodAttachmentNet in pkg/controller/pod.go).
func providerName(attachment string, ovn bool) string {
	namespace, name, _ := strings.Cut(attachment, "/")
	provider := name + "." + namespace
	if ovn {
		provider += ".ovn"
	}
	return provider
}

func (p *kubeOVN) Keys(i machine.Interface) []string {
	ip, mac := p.keys(i)
	return []string{ip, mac}
}

func (p *kubeOVN) Render(vm machine.Ref, i machine.Interface, addrs []netip.Addr) (Rendering, error) {
	addrs, err := oneEach(vm, i, addrs)
	if err != nil {
		return Rendering{}, err
	}
	if err := p.served(vm, i, addrs); err != nil {
		return Rendering{}, err
	}
	ip, mac := p.keys(i)
	// No spaces: the controller splits at commas and does not trim (pkg/controller/pod.go).
	r := Rendering{Annotations: map[string]string{ip: address.Join(addrs)}}
	if i.MAC != "" {
		// Port security drops the frames of a guest whose MAC Kube-OVN was not told.
		r.Annotations[mac] = i.MAC
	}
	return r, nil
}

// served refuses an address that no subnet of the interface's network has: the pod that asks for it
// would not start ("no address allocated", AcquireStaticAddress in pkg/ipam/ipam.go). Where the subnets
// can't be read nothing is known.
func (p *kubeOVN) served(vm machine.Ref, i machine.Interface, addrs []netip.Addr) error {
	if p.subnets.failed() != nil || len(p.subnets.value) == 0 { // Kube-OVN always has its default one
		return nil
	}
	provider := p.providerOf(i)
	if provider == "" {
		provider = "ovn"
	}
	of := p.subnetsOf(provider)
	if len(of) == 0 && strings.HasSuffix(provider, ".ovn") {
		of = p.subnetsOf("ovn") // an attachment without a subnet of its own has the pod network's (getPodAttachmentNet)
	}
	have := []string{}
	for _, s := range of {
		have = append(have, s.String())
	}
	if len(have) == 0 {
		have = append(have, "there is none")
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(of, func(s kubeOVNSubnet) bool {
			return slices.ContainsFunc(s.cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
		}) {
			return fmt.Errorf("virtualmachine %s interface %s: address %s is in no subnet of Kube-OVN for that network (%s): choose one that is, or add a subnet", vm, i.Name, a, strings.Join(have, "; "))
		}
	}
	return nil
}

func (p *kubeOVN) subnetsOf(provider string) (list []kubeOVNSubnet) {
	for _, s := range p.subnets.value {
		if s.provider == provider {
			list = append(list, s)
		}
	}
	return list
}

func (p *kubeOVN) Claims(annotations map[string]string, i machine.Interface) ([]netip.Addr, error) {
	key, _ := p.keys(i)
	value, ok := annotations[key]
	switch {
	case !ok:
		return nil, nil
	case strings.ContainsAny(value, " \t"):
		return nil, fmt.Errorf("annotation %s is %q: Kube-OVN does not accept spaces, write %q", key, value, strings.Join(strings.Fields(value), ""))
	case strings.HasPrefix(value, "["):
		return nil, fmt.Errorf("annotation %s is %q: Kube-OVN reads bare addresses with commas between, and no JSON", key, value)
	case value != strings.ToLower(value):
		return nil, fmt.Errorf("annotation %s is %q: Kube-OVN rejects upper-case IPv6 addresses, write %q", key, value, strings.ToLower(value))
	}
	return parseClaims(key, strings.Split(value, ","))
}

// Records reads the IP object of the VM's port: named <vm>.<namespace>, and .<provider> for an
// attachment. An edited annotation is followed at the next start, so the record never wins.
func (p *kubeOVN) Records(ctx context.Context, vm machine.Ref, i machine.Interface) ([]Record, error) {
	name := vm.Name + "." + vm.Namespace
	if provider := p.providerOf(i); provider != "" {
		name += "." + provider
	}
	o, err := p.reader.get(ctx, kubeOVNIPs, "", name)
	switch {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	r := Record{Object: "ip/" + name, Release: "kubectl delete ips.kubeovn.io " + name}
	for _, field := range []string{"v4IpAddress", "v6IpAddress"} {
		text, _, _ := unstructured.NestedString(o.Object, "spec", field)
		if text == "" {
			continue
		}
		a, err := address.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("ip %s: %s: %w", name, field, err)
		}
		r.Addresses = append(r.Addresses, a)
	}
	if len(r.Addresses) == 0 {
		return nil, nil
	}
	return []Record{r}, nil
}

// InUse says nothing: Kube-OVN's records are named by machine, and asking for an address would
// mean to list all of them.
func (p *kubeOVN) InUse(context.Context, machine.Ref, netip.Addr) (string, error) { return "", nil }
