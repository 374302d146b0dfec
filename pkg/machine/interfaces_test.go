package machine

import (
	"reflect"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func TestInterfaces(t *testing.T) {
	with := func(i kubevirtv1.Interface, change func(*kubevirtv1.Interface)) kubevirtv1.Interface {
		change(&i)
		return i
	}
	named := func(name string) kubevirtv1.Interface { return kubevirtv1.Interface{Name: name} }
	asDefault := func(n kubevirtv1.Network) kubevirtv1.Network { n.Multus.Default = true; return n }
	for name, c := range map[string]struct {
		interfaces []kubevirtv1.Interface
		networks   []kubevirtv1.Network
		auto       *bool
		want       []Interface
	}{
		"implicit":          {want: []Interface{{Name: "default", Pod: true, Binding: Bridge, Implicit: true}}},
		"implicit declined": {auto: new(false)},
		"implicit accepted": {auto: new(true), want: []Interface{{Name: "default", Pod: true, Binding: Bridge, Implicit: true}}},
		"bindings": {
			interfaces: []kubevirtv1.Interface{
				masquerade("a"), bridge("b"), named("c"),
				with(named("d"), func(i *kubevirtv1.Interface) { i.SRIOV = &kubevirtv1.InterfaceSRIOV{} }),
				with(named("e"), func(i *kubevirtv1.Interface) { i.PasstBinding = &kubevirtv1.InterfacePasstBinding{} }),
				with(named("f"), func(i *kubevirtv1.Interface) { i.Binding = &kubevirtv1.PluginBinding{Name: "l2bridge"} }),
			},
			networks: []kubevirtv1.Network{podNetwork("a"), multus("b", "lan"), multus("c", "lan"), multus("d", "fast/vf"), multus("e", "lan"), multus("f", "lan")},
			want: []Interface{
				{Name: "a", Pod: true, Binding: Masquerade},
				{Name: "b", Attachment: "tenant-a/lan", Binding: Bridge, Ordinal: 1},
				{Name: "c", Attachment: "tenant-a/lan", Binding: Bridge, Ordinal: 2},
				{Name: "d", Attachment: "fast/vf", Binding: SRIOV, Ordinal: 3},
				{Name: "e", Attachment: "tenant-a/lan", Binding: Passt, Ordinal: 4},
				{Name: "f", Attachment: "tenant-a/lan", Binding: "plugin:l2bridge", Ordinal: 5},
			},
		},
		"ordinals follow the networks, not the interfaces": {
			interfaces: []kubevirtv1.Interface{bridge("b"), bridge("a")},
			networks:   []kubevirtv1.Network{multus("a", "lan"), podNetwork("x"), multus("b", "lan")},
			want: []Interface{
				{Name: "b", Attachment: "tenant-a/lan", Binding: Bridge, Ordinal: 2},
				{Name: "a", Attachment: "tenant-a/lan", Binding: Bridge, Ordinal: 1},
			},
		},
		"multus default": {
			interfaces: []kubevirtv1.Interface{bridge("a"), bridge("b")},
			networks:   []kubevirtv1.Network{asDefault(multus("a", "lan")), asDefault(multus("b", "net/lan"))},
			want: []Interface{
				{Name: "a", Attachment: "kube-system/lan", MultusDefault: true, Binding: Bridge},
				{Name: "b", Attachment: "net/lan", MultusDefault: true, Binding: Bridge},
			},
		},
		"MACs in other spellings, and what is none": {
			interfaces: []kubevirtv1.Interface{
				with(bridge("a"), func(i *kubevirtv1.Interface) { i.MacAddress = "02-AA-00-00-00-20" }),
				with(bridge("b"), func(i *kubevirtv1.Interface) { i.MacAddress = "nonsense" }),
			},
			networks: []kubevirtv1.Network{podNetwork("a"), multus("b", "lan")},
			want: []Interface{
				{Name: "a", Pod: true, Binding: Bridge, MAC: "02:aa:00:00:00:20"},
				{Name: "b", Attachment: "tenant-a/lan", Binding: Bridge, Ordinal: 1, MAC: "nonsense"},
			},
		},
		"unplugged, and without a network": {
			interfaces: []kubevirtv1.Interface{with(bridge("a"), func(i *kubevirtv1.Interface) { i.State = kubevirtv1.InterfaceStateAbsent }), bridge("lost")},
			networks:   []kubevirtv1.Network{multus("a", "lan")},
			want:       []Interface{{Name: "a", Attachment: "tenant-a/lan", Binding: Bridge, Ordinal: 1, Absent: true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			vm := newVM(c.interfaces, c.networks)
			vm.Spec.Template.Spec.Domain.Devices.AutoattachPodInterface = c.auto
			if got := Interfaces("tenant-a", &vm.Spec.Template.Spec); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
	if Interfaces("tenant-a", nil) != nil {
		t.Error("no spec, no interfaces")
	}
}

// C32: what KubeVirt added is read from the instance, not guessed from the machine.
func TestImplicitInterfaceOfARunningMachine(t *testing.T) {
	v := running(nil, nil)
	v.VMI.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{masquerade("default")}
	v.VMI.Spec.Networks = []kubevirtv1.Network{podNetwork("default")}
	v.VMI.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: "default", PodInterfaceName: "eth0"}}
	got := v.Interfaces()
	want := []Interface{{Name: "default", Pod: true, Binding: Masquerade, Implicit: true, PodInterface: "eth0"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestDefaultNetworkAnnotation(t *testing.T) {
	for value, want := range map[string]string{
		"":                                      "",
		"lan":                                   "kube-system/lan",
		"net/lan":                               "net/lan",
		"net/lan@eth0":                          "net/lan",
		`[{"name":"lan","namespace":"net"}]`:    "net/lan",
		`[{"name":"lan"}]`:                      "kube-system/lan",
		`[{"name":"lan"},{"name":"other"}]`:     "",
		`[{`:                                    "",
		` [{"name":"lan","namespace":"net"}]  `: "net/lan",
	} {
		v := &View{VM: newVM([]kubevirtv1.Interface{bridge("default"), bridge("dmz")}, []kubevirtv1.Network{podNetwork("default"), multus("dmz", "dmz")})}
		v.VM.Spec.Template.ObjectMeta.Annotations = map[string]string{DefaultNetworkAnnotation: value}
		list := v.Interfaces()
		if list[0].Attachment != want || list[0].MultusDefault != (want != "") || !list[0].Primary() {
			t.Errorf("%q: %+v, want attachment %q", value, list[0], want)
		}
		if list[1].Attachment != "tenant-a/dmz" || list[1].Primary() {
			t.Errorf("%q changed the secondary network: %+v", value, list[1])
		}
	}
}

func TestInterfaceByName(t *testing.T) {
	v := &View{VM: newVM([]kubevirtv1.Interface{bridge("lan"), masquerade("default")}, []kubevirtv1.Network{multus("lan", "lan"), podNetwork("default")})}
	for name, want := range map[string]string{"": "default", "lan": "lan", "default": "default"} {
		if i, err := v.Interface(name); err != nil || i.Name != want {
			t.Errorf("%q: %v, %v", name, i, err)
		}
	}
	if _, err := v.Interface("dmz"); err == nil || !strings.Contains(err.Error(), `virtualmachine tenant-a/db-1 has no interface "dmz": it has lan, default`) {
		t.Errorf("error %v", err)
	}
	v.VM = newVM([]kubevirtv1.Interface{bridge("lan")}, []kubevirtv1.Network{multus("lan", "lan")})
	if _, err := v.Interface(""); err == nil || !strings.Contains(err.Error(), "choose one of lan") {
		t.Errorf("error %v", err)
	}
}

// The golden values are those of KubeVirt's own unit test.
func TestHashedInterface(t *testing.T) {
	for network, want := range map[string]string{"network1": "poda7662f44d65", "network2": "pod27f4a77f94e"} {
		if got := HashedInterface(network); got != want {
			t.Errorf("%s: %s, want %s", network, got, want)
		}
	}
}
