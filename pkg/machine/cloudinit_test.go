package machine

import (
	"encoding/base64"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// C09: what the guest configures itself.
func TestGuestConfigs(t *testing.T) {
	v1 := "version: 1\nconfig: [{type: physical, name: eth0, mac_address: '02:AA:00:00:00:20', subnets: [{type: static, address: 198.51.100.26/24}, {type: dhcp}]}]"
	v2 := "network:\n  version: 2\n  ethernets:\n    eth0: {match: {macaddress: '02:aa:00:00:00:20'}, addresses: [198.51.100.26/24, {'2001:db8::26/64': {lifetime: 0}}]}\n    eth1: {dhcp4: true}"
	one := GuestConfig{Addr: addrs("198.51.100.26")[0], MAC: "02:aa:00:00:00:20", Device: "eth0"}
	six := one
	six.Addr = addrs("2001:db8::26")[0]
	for name, c := range map[string]struct {
		source kubevirtv1.CloudInitNoCloudSource
		want   []GuestConfig
		hidden []string
	}{
		"version 1": {source: kubevirtv1.CloudInitNoCloudSource{NetworkData: v1}, want: []GuestConfig{one}},
		"version 2": {source: kubevirtv1.CloudInitNoCloudSource{NetworkData: v2}, want: []GuestConfig{one, six}},
		"base64":    {source: kubevirtv1.CloudInitNoCloudSource{NetworkDataBase64: base64.StdEncoding.EncodeToString([]byte(v1))}, want: []GuestConfig{one}},
		"dhcp only": {source: kubevirtv1.CloudInitNoCloudSource{NetworkData: "version: 2\nethernets: {eth0: {dhcp4: true}}"}},
		"none":      {source: kubevirtv1.CloudInitNoCloudSource{UserData: "#cloud-config"}},
		"secret":    {source: kubevirtv1.CloudInitNoCloudSource{NetworkDataSecretRef: &corev1.LocalObjectReference{Name: "x"}}, hidden: []string{"ci"}},
		"damaged":   {source: kubevirtv1.CloudInitNoCloudSource{NetworkData: "{"}, hidden: []string{"ci"}},
		"no base64": {source: kubevirtv1.CloudInitNoCloudSource{NetworkDataBase64: "%"}, hidden: []string{"ci"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &kubevirtv1.VirtualMachineInstanceSpec{Volumes: []kubevirtv1.Volume{{Name: "ci", VolumeSource: kubevirtv1.VolumeSource{CloudInitNoCloud: &c.source}}}}
			got, hidden := GuestConfigs(spec)
			if !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(hidden, c.hidden) {
				t.Errorf("got %v, hidden %v; want %v, hidden %v", got, hidden, c.want, c.hidden)
			}
		})
	}
}
