package machine

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// GuestConfig is an address that cloud-init gives a guest at its first boot.
type GuestConfig struct {
	Addr netip.Addr
	// MAC is set where the configuration names the interface by it, Device is its name there.
	MAC, Device string
}

// GuestConfigs reads the static addresses from inline networkData of a spec's cloud-init volumes,
// versions 1 and 2 (cloud-init's documents network-config-format-v1 and -v2). hidden names the
// volumes whose networkData is in a Secret or can't be parsed, and which nothing is known about.
func GuestConfigs(spec *kubevirtv1.VirtualMachineInstanceSpec) (configs []GuestConfig, hidden []string) {
	for _, v := range spec.Volumes {
		var text, encoded string
		var secret bool
		switch {
		case v.CloudInitNoCloud != nil:
			c := v.CloudInitNoCloud
			text, encoded, secret = c.NetworkData, c.NetworkDataBase64, c.NetworkDataSecretRef != nil
		case v.CloudInitConfigDrive != nil:
			c := v.CloudInitConfigDrive
			text, encoded, secret = c.NetworkData, c.NetworkDataBase64, c.NetworkDataSecretRef != nil
		}
		if encoded != "" {
			b, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				hidden = append(hidden, v.Name)
				continue
			}
			text = string(b)
		}
		if secret {
			hidden = append(hidden, v.Name)
		}
		found, err := parseNetworkData(text)
		if err != nil {
			hidden = append(hidden, v.Name)
		}
		configs = append(configs, found...)
	}
	return configs, hidden
}

// networkData is what is read of both versions; they may be wrapped in a key "network".
type networkData struct {
	Network   *networkData        `json:"network"`
	Config    []deviceV1          `json:"config"`
	Ethernets map[string]deviceV2 `json:"ethernets"`
}

type deviceV1 struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	MAC     string `json:"mac_address"`
	Subnets []struct {
		Type    string `json:"type"`
		Address string `json:"address"`
	} `json:"subnets"`
}

type deviceV2 struct {
	Match struct {
		MAC string `json:"macaddress"`
	} `json:"match"`
	Addresses []any `json:"addresses"`
}

func parseNetworkData(text string) ([]GuestConfig, error) {
	var d networkData
	if err := yaml.Unmarshal([]byte(text), &d); err != nil {
		return nil, fmt.Errorf("networkData: %w", err)
	}
	if d.Network != nil {
		d = *d.Network
	}
	var configs []GuestConfig
	add := func(s, mac, device string) {
		if a, ok := parse(s); ok {
			configs = append(configs, GuestConfig{Addr: a, MAC: NormaliseMAC(mac), Device: device})
		}
	}
	for _, c := range d.Config {
		for _, s := range c.Subnets {
			add(s.Address, c.MAC, c.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Ethernets)) {
		e := d.Ethernets[name]
		for _, a := range e.Addresses {
			switch a := a.(type) {
			case string:
				add(a, e.Match.MAC, name)
			case map[string]any: // an address with options
				for s := range a {
					add(s, e.Match.MAC, name)
				}
			}
		}
	}
	return configs, nil
}
