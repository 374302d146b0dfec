package profile

import (
	"fmt"
	"strings"
)

// Annotation keys that ask a network plugin for an address, and who reads them. Audit needs the keys
// of plugins that this project doesn't serve too: a key that nobody reads is how most fixed
// addresses fail (cilium issue 39799).
var addressKeys = []struct {
	plugin string
	match  func(key string) bool
}{
	{Calico, in("cni.projectcalico.org/", "ipAddrs", "ipAddrsNoIpam", "ipv4pools", "ipv6pools", "hwAddr")},
	{KubeOVN, isKubeOVN},
	{Spiderpool, in("ipam.spidernet.io/", "ippool", "ippools", "subnet", "subnets")},
	{"antrea", in("ipam.antrea.io/", "ippools", "pod-ips")},
	{"cilium", in("ipam.cilium.io/", "ip-pool")},
	{"", in("cni.cilium.io/", "ipAddrs", "ipAddress")}, // believed in, and read by nobody
	{"ovn-kubernetes", in("network.kubevirt.io/", "addresses")},
}

func in(prefix string, names ...string) func(string) bool {
	return func(key string) bool {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok {
			return false
		}
		for _, n := range names {
			if n == name {
				return true
			}
		}
		return false
	}
}

// isKubeOVN recognises ovn.kubernetes.io/ip_address and the forms with a provider before it.
func isKubeOVN(key string) bool {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok || prefix != "ovn.kubernetes.io" && !strings.HasSuffix(prefix, ".kubernetes.io") {
		return false
	}
	name, _, _ = strings.Cut(name, ".") // ip_address.<interface>, since 1.16
	return name == "ip_address" || name == "mac_address" || name == "ip_pool"
}

// PluginOf names the plugin whose annotation a key is. ok is false for a key that asks no plugin for
// an address; plugin is empty for one that no plugin reads.
func PluginOf(key string) (plugin string, ok bool) {
	for _, k := range addressKeys {
		if k.match(key) {
			return k.plugin, true
		}
	}
	return "", false
}

// Reads says whether a plugin of this cluster reads an annotation that asks for an address. Keys
// that ask for none are read by definition: they are somebody else's business.
func (c *Cluster) Reads(key string) Capability {
	plugin, ok := PluginOf(key)
	if !ok {
		return Capability{Yes, ""}
	}
	if plugin == "" {
		return Capability{No, fmt.Sprintf("no network plugin reads %s", key)}
	}
	is := c.presenceOf(plugin)
	switch {
	case is.failed() != nil:
		return Capability{Unverified, fmt.Sprintf("whether this cluster has %s, which reads %s, is unknown: %v", plugin, key, is.failed())}
	case !is.value:
		return Capability{No, fmt.Sprintf("%s is read by %s, which this cluster does not have", key, plugin)}
	}
	return Capability{Yes, fmt.Sprintf("%s is read by %s", key, plugin)}
}

func (c *Cluster) presenceOf(plugin string) presence {
	switch plugin {
	case Calico:
		return c.calico.present
	case KubeOVN:
		return c.kubeOVN.present
	case Spiderpool:
		return c.spiderpool.present
	}
	for _, o := range c.others {
		if o.plugin == plugin {
			return o.present
		}
	}
	switch {
	case c.groups.err != nil:
		return unknown[bool](c.groups.err)
	case c.groups.versions == nil:
		return presence{} // never detected
	}
	return known(false)
}
