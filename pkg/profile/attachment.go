package profile

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

var attachmentGVR = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// cniConfig is what is read of spec.config of a NetworkAttachmentDefinition: a CNI configuration or
// a list of them, of which the first makes the interface.
type cniConfig struct {
	Type     string      `json:"type"`
	Name     string      `json:"name"`
	Provider string      `json:"provider"`
	IPAM     ipamConfig  `json:"ipam"`
	Plugins  []cniConfig `json:"plugins"`
}

type ipamConfig struct {
	Type       string `json:"type"`
	Provider   string `json:"provider"`
	RangeStart string `json:"range_start"`
	RangeEnd   string `json:"range_end"`
}

// attachment is a secondary network.
type attachment struct {
	name string // namespace/name
	cniConfig
}

type attachmentResult struct {
	attachment
	err error
}

// attachment reads a NetworkAttachmentDefinition once.
func (c *Cluster) attachment(ctx context.Context, name string) (attachment, error) {
	c.mu.Lock()
	cached, ok := c.attachments[name]
	c.mu.Unlock()
	if ok {
		return cached.attachment, cached.err
	}
	a, err := c.reader.attachment(ctx, name)
	if ctx.Err() == nil {
		c.mu.Lock()
		c.attachments[name] = attachmentResult{a, err}
		c.mu.Unlock()
	}
	return a, err
}

func (r Reader) attachment(ctx context.Context, full string) (attachment, error) {
	namespace, name, _ := strings.Cut(full, "/")
	o, err := r.get(ctx, attachmentGVR, namespace, name)
	if err != nil {
		return attachment{}, err
	}
	return parseAttachment(o)
}

func parseAttachment(o *unstructured.Unstructured) (attachment, error) {
	a := attachment{name: o.GetNamespace() + "/" + o.GetName()}
	config, _, err := unstructured.NestedString(o.Object, "spec", "config")
	switch {
	case err != nil:
		return a, fmt.Errorf("networkattachmentdefinition %s: %w", a.name, err)
	case strings.TrimSpace(config) == "":
		return a, fmt.Errorf("networkattachmentdefinition %s has no spec.config: its configuration is a file on the nodes", a.name)
	}
	if err := json.Unmarshal([]byte(config), &a.cniConfig); err != nil {
		return a, fmt.Errorf("networkattachmentdefinition %s: spec.config is not JSON: %w", a.name, err)
	}
	if len(a.Plugins) > 0 {
		a.cniConfig = a.Plugins[0]
	}
	return a, nil
}

// ofAttachment chooses the profile of a secondary network, or of one that replaces the pod network.
func (c *Cluster) ofAttachment(a attachment, i machine.Interface) Profile {
	evidence := fmt.Sprintf("networkattachmentdefinition %s has type %q and ipam %q", a.name, a.Type, a.IPAM.Type)
	switch {
	case a.Type == "kube-ovn" || a.IPAM.Type == "kube-ovn":
		// The controller goes by the attachment's name, the CNI plugin by the configuration.
		provider, configured := providerName(a.name, a.Type == "kube-ovn"), a.IPAM.Provider
		if a.Type == "kube-ovn" {
			configured = a.Provider
		}
		if configured != provider {
			return refuse(KubeOVN, fmt.Sprintf("networkattachmentdefinition %s names provider %q, and Kube-OVN allocates for %q: a pod on it gets no address", a.name, configured, provider))
		}
		return &kubeOVN{kubeOVNFacts: c.kubeOVN, reader: c.reader, provider: provider, attachment: evidence}
	case a.Type == "calico" && i.MultusDefault:
		return &calico{calicoFacts: c.calico, reader: c.reader, attachment: evidence}
	case a.Type == "calico":
		return calicoSecondary(i)
	case a.IPAM.Type == "spiderpool":
		return &spiderpool{spiderpoolFacts: c.spiderpool, reader: c.reader, plugin: a.Type, attachment: evidence}
	}
	p := pluginWithoutVM(a, i)
	p.evidence = append(p.evidence, evidence)
	return p
}

// pluginWithoutVM is the profile of an attachment whose IPAM knows no VMs. KubeVirt writes the key
// k8s.v1.cni.cncf.io/networks of such pods itself and leaves no room for addresses
// (pkg/network/multus/annotation.go), so the usual way to ask for one is closed (KubeVirt issue 4564).
func pluginWithoutVM(a attachment, i machine.Interface) *refusal {
	why := func(s string) string {
		return fmt.Sprintf("%s on interface %s (networkattachmentdefinition %s), and KubeVirt rewrites k8s.v1.cni.cncf.io/networks", s, i.Name, a.name)
	}
	switch a.IPAM.Type {
	case "static":
		p := refuse("static", why("static addresses are fixed in the attachment and can't be chosen for a VM"))
		p.caps.Restart = Capability{Yes, "static gives every pod the attachment's address"}
		p.caps.Migration = Capability{Yes, "static gives every pod the attachment's address, without looking whether another has it"}
		return p
	case "whereabouts":
		p := refuse("whereabouts", why("IPAM whereabouts is not VM-scoped: it hands addresses to pods, and a VM's next pod gets another"))
		if a.IPAM.RangeStart != "" && a.IPAM.RangeStart == a.IPAM.RangeEnd {
			p.caps.Restart = Capability{Yes, fmt.Sprintf("the range of networkattachmentdefinition %s has one address, %s", a.name, a.IPAM.RangeStart)}
			p.caps.Migration = Capability{No, fmt.Sprintf("the range of networkattachmentdefinition %s has one address, %s, which the source pod holds", a.name, a.IPAM.RangeStart)}
		}
		return p
	case "host-local":
		return refuse("host-local", why("IPAM host-local counts addresses on each node by itself and for pods, not for VMs"))
	case "dhcp":
		return refuse("dhcp", why("addresses come from a DHCP server outside the cluster"))
	case "":
		return refuse(a.Type, fmt.Sprintf("the network of interface %s (networkattachmentdefinition %s, type %s) has no IPAM: the guest configures its address itself", i.Name, a.name, a.Type))
	}
	return refuse(a.IPAM.Type, why(fmt.Sprintf("IPAM %s is not known to hold addresses for VMs", a.IPAM.Type)))
}
