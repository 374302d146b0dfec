package reservation

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

var (
	now  = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	v4   = netip.MustParseAddr("198.51.100.20")
	v6   = netip.MustParseAddr("2001:db8::20")
	ref  = machine.Ref{Namespace: "tenant-a", Name: "db-1"}
	keys = map[string]string{"ovn.kubernetes.io/ip_address": "198.51.100.20,2001:db8::20", "ovn.kubernetes.io/mac_address": "02:00:00:00:00:20"}
)

func entry(a netip.Addr, state ledger.State, uid types.UID) ledger.Entry {
	return ledger.Entry{Network: "default", Addr: a, Row: ledger.Row{VM: "tenant-a/db-1", UID: uid, Interface: "default", State: state, Op: "op", Since: now, Until: now.Add(time.Minute)}}
}

// vm is db-1 with both addresses reserved.
func vm(t *testing.T) *kubevirtv1.VirtualMachine {
	t.Helper()
	said := &ledger.Reservations{Ledger: "vmip-system", UID: "u-1", Interfaces: map[string]ledger.Reservation{
		"default": {Pool: "lab", Network: "default", Addresses: []string{v4.String(), v6.String()}, Op: "op", Annotations: keys},
	}}
	text, err := said.Encode()
	if err != nil {
		t.Fatal(err)
	}
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "db-1", Namespace: "tenant-a", UID: "u-1", ResourceVersion: "7", Annotations: map[string]string{ledger.AnnotationReservations: text, "example.com/mine": "yes"}}}
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"example.com/keep": "me"}
	for k, v := range keys {
		vm.Spec.Template.ObjectMeta.Annotations[k] = v
	}
	vm.Spec.Template.Spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
	vm.Spec.Template.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{*kubevirtv1.DefaultBridgeNetworkInterface()}
	return vm
}

func TestStrippedTakesOnlyOurs(t *testing.T) {
	both := vm(t)
	// One of two addresses: the annotation that carries it goes, the MAC's stays with the other.
	change, err := stripped(both, entry(v4, ledger.Releasing, "u-1"), nil)
	if err != nil || !slices.Equal(change.RemoveTemplate, []string{"ovn.kubernetes.io/ip_address"}) {
		t.Errorf("first address: %+v, %v", change, err)
	}
	if text := change.Set[ledger.AnnotationReservations]; strings.Contains(text, v4.String()+`"`) || !strings.Contains(text, v6.String()) || change.Set[ledger.AnnotationLastOp] == "" {
		t.Errorf("first address leaves %s", text)
	}
	// The last one takes everything of ours, and nothing else.
	one := vm(t)
	one.Annotations[ledger.AnnotationReservations] = strings.Replace(one.Annotations[ledger.AnnotationReservations], `,"2001:db8::20"]`, "]", 1)
	change, err = stripped(one, entry(v4, ledger.Releasing, "u-1"), nil)
	slices.Sort(change.RemoveTemplate)
	if err != nil || !slices.Equal(change.RemoveTemplate, []string{"ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/mac_address"}) || !slices.Equal(change.Remove, []string{ledger.AnnotationReservations}) {
		t.Errorf("last address: %+v, %v", change, err)
	}
	for name, alter := range map[string]func(*kubevirtv1.VirtualMachine){
		"the user has changed it": func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.Template.ObjectMeta.Annotations["ovn.kubernetes.io/ip_address"] = "198.51.100.99"
		},
		"the annotation is a clone's": func(vm *kubevirtv1.VirtualMachine) {
			vm.UID = "u-2"
			vm.Annotations[ledger.AnnotationReservations] = strings.ReplaceAll(vm.Annotations[ledger.AnnotationReservations], `"u-1"`, `"u-9"`)
		},
		"the VM names another address": func(vm *kubevirtv1.VirtualMachine) {
			vm.Annotations[ledger.AnnotationReservations] = strings.ReplaceAll(vm.Annotations[ledger.AnnotationReservations], v4.String(), "198.51.100.21")
		},
		"the annotation is damaged": func(vm *kubevirtv1.VirtualMachine) { vm.Annotations[ledger.AnnotationReservations] = "{" },
	} {
		vm := vm(t)
		alter(vm)
		change, err := stripped(vm, entry(v4, ledger.Releasing, "u-1"), map[string]string{"ovn.kubernetes.io/ip_address": v4.String()})
		if err != nil || len(change.RemoveTemplate) != 0 || change.Set[ledger.AnnotationLastOp] == "" {
			t.Errorf("%s: %+v, %v", name, change, err)
		}
	}
}

// What the machine says of its addresses can be lost, or be another machine's: its template must
// not go on asking for the address all the same.
func TestStrippedWithoutAWordOfTheMachine(t *testing.T) {
	asked := map[string]string{"ovn.kubernetes.io/ip_address": v4.String()}
	for name, c := range map[string]struct {
		alter func(*kubevirtv1.VirtualMachine)
		want  []string
	}{
		"damaged":                  {func(vm *kubevirtv1.VirtualMachine) { vm.Annotations[ledger.AnnotationReservations] = "{" }, []string{"ovn.kubernetes.io/ip_address"}},
		"none":                     {func(vm *kubevirtv1.VirtualMachine) { delete(vm.Annotations, ledger.AnnotationReservations) }, []string{"ovn.kubernetes.io/ip_address"}},
		"of the machine before it": {func(vm *kubevirtv1.VirtualMachine) { vm.UID = "u-2" }, []string{"ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/mac_address"}},
		"none, and another's address": {func(vm *kubevirtv1.VirtualMachine) {
			delete(vm.Annotations, ledger.AnnotationReservations)
			vm.Spec.Template.ObjectMeta.Annotations["ovn.kubernetes.io/ip_address"] = "198.51.100.2"
		}, nil},
	} {
		vm := vm(t)
		vm.Annotations[ledger.AnnotationReservations] = strings.Replace(vm.Annotations[ledger.AnnotationReservations], `,"2001:db8::20"]`, "]", 1)
		vm.Spec.Template.ObjectMeta.Annotations["ovn.kubernetes.io/ip_address"] = v4.String()
		vm.Annotations[ledger.AnnotationReservations] = strings.Replace(vm.Annotations[ledger.AnnotationReservations], "198.51.100.20,2001:db8::20", v4.String(), 1)
		c.alter(vm)
		change, err := stripped(vm, entry(v4, ledger.Releasing, "u-1"), asked)
		slices.Sort(change.RemoveTemplate)
		if err != nil || !slices.Equal(change.RemoveTemplate, c.want) {
			t.Errorf("%s: %+v, %v", name, change, err)
		}
	}
}

func TestStale(t *testing.T) {
	have := map[string]string{"a": "1", "b": "2", "c": "theirs"}
	if got := stale(have, map[string]string{"a": "1", "b": "2", "c": "3", "d": "4"}, map[string]string{"b": "9"}); !slices.Equal(got, []string{"a"}) {
		t.Errorf("stale %v: only what is as it was written and is not written again", got)
	}
}

func TestCompleteBelievesUIDsOnly(t *testing.T) {
	pool, err := ledger.Pool{Name: "lab", CIDRs: []string{"198.51.100.0/24", "2001:db8::/64"}}.Normalise()
	if err != nil {
		t.Fatal(err)
	}
	base := func() *intent {
		said, err := ledger.ReservationsOf(vm(t).Annotations)
		if err != nil {
			t.Fatal(err)
		}
		return &intent{vm: vm(t), said: said, ref: ref, iface: machine.Interface{Name: "default", Pod: true}, pool: pool, families: address.Families, wanted: map[address.Family]netip.Addr{},
			owner: ledger.Owner{Namespace: "tenant-a", Name: "db-1", UID: "u-1", Interface: "default"}}
	}
	rows := []ledger.Entry{entry(v4, ledger.Reserved, "u-1"), entry(v6, ledger.Reserved, "u-1")}
	for name, c := range map[string]struct {
		change func(*intent, []ledger.Entry)
		want   bool
	}{
		"all there":                   {func(*intent, []ledger.Entry) {}, true},
		"the one wanted":              {func(in *intent, _ []ledger.Entry) { in.wanted[address.IPv4] = v4 }, true},
		"another one wanted":          {func(in *intent, _ []ledger.Entry) { in.wanted[address.IPv4] = v4.Next() }, false},
		"a family is missing":         {func(_ *intent, r []ledger.Entry) { r[1].Row.State = ledger.Held }, false},
		"the row is an earlier VM's":  {func(_ *intent, r []ledger.Entry) { r[0].Row.UID = "u-0" }, false},
		"the annotation is a clone's": {func(in *intent, _ []ledger.Entry) { in.said = nil }, false},
		"another one in exchange":     {func(in *intent, _ []ledger.Entry) { in.req.Replace = true }, false},
		"another MAC to record":       {func(in *intent, _ []ledger.Entry) { in.req.MAC = "02:00:00:00:00:99" }, false},
		"the row is not named":        {func(_ *intent, r []ledger.Entry) { r[0].Addr = v4.Next() }, false},
		"another network":             {func(_ *intent, r []ledger.Entry) { r[0].Network = "isolated" }, false},
	} {
		in, r := base(), slices.Clone(rows)
		c.change(in, r)
		in.rows = r
		if got := (&Service{}).complete(in); (got != nil) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestPick(t *testing.T) {
	pod, lan := machine.Interface{Name: "default", Pod: true}, machine.Interface{Name: "lan", Attachment: "tenant-a/lan"}
	dmz := machine.Interface{Name: "dmz", Attachment: "tenant-a/dmz"}
	for _, c := range []struct {
		all        []machine.Interface
		name, want string
	}{
		{[]machine.Interface{lan, pod}, "", "default"},
		{[]machine.Interface{lan, pod}, "lan", "lan"},
		{[]machine.Interface{lan}, "", "lan"},
		{[]machine.Interface{lan, dmz}, "", "error: choose one of lan, dmz"},
		{nil, "", "error: no network interface"},
		{[]machine.Interface{pod}, "nosuch", `error: no interface "nosuch": its interfaces are default`},
	} {
		got, err := pick(ref, c.all, c.name)
		if want, isErr := strings.CutPrefix(c.want, "error: "); isErr {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "virtualmachine tenant-a/db-1") {
				t.Errorf("%v %q: %v, want %q", c.all, c.name, err, want)
			}
		} else if err != nil || got.Name != c.want {
			t.Errorf("%v %q: %v, %v", c.all, c.name, got, err)
		}
	}
}

func TestStatusOf(t *testing.T) {
	type world struct {
		entry ledger.Entry
		view  *machine.View
	}
	running := func(podIP string, annotated bool) *machine.View {
		v := &machine.View{VM: vm(t), VMI: &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "db-1", Namespace: "tenant-a", UID: "i-1"}}}
		v.VMI.Spec = v.VM.Spec.Template.Spec
		v.VMI.Status.Phase, v.VMI.Status.NodeName = kubevirtv1.Running, "n1"
		v.VMI.Status.ActivePods = map[types.UID]string{"p-1": "n1"}
		if annotated {
			v.VMI.Annotations = keys
		}
		yes := true
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-db-1-aaaaa", Namespace: "tenant-a", UID: "p-1", Labels: map[string]string{"kubevirt.io": "virt-launcher"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "db-1", UID: "i-1", Controller: &yes}}}}
		p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning
		if podIP != "" {
			p.Status.PodIP, p.Status.PodIPs = podIP, []corev1.PodIP{{IP: podIP}}
		}
		v.Pods = []corev1.Pod{p}
		return v
	}
	stopped := &machine.View{VM: vm(t)}
	reserved := entry(v4, ledger.Reserved, "u-1")
	unnamed := entry(v4.Next(), ledger.Reserved, "u-1")
	early := entry(v4, ledger.Reserved, "")
	old := entry(v4, ledger.Reserved, "u-0")
	expired := entry(v4, ledger.Held, "u-1")
	expired.Row.Until = now.Add(-time.Second)
	for want, list := range map[string][]world{
		StateInUse:          {{reserved, running(v4.String(), true)}},
		StateStopped:        {{reserved, stopped}},
		StateStarting:       {{reserved, running("", true)}},
		StateRestartPending: {{reserved, running("198.51.100.143", false)}},
		StateDrift:          {{reserved, running("198.51.100.143", true)}},
		StateIncomplete:     {{unnamed, stopped}},
		StateMissing:        {{reserved, nil}},
		StateNotCreated:     {{early, nil}},
		StateRecreated:      {{old, stopped}},
		StateHeld:           {{entry(v4, ledger.Held, "u-1"), nil}},
		StateHeldExpired:    {{expired, nil}},
		StateLeaving:        {{entry(v4, ledger.Leaving, "u-1"), stopped}},
		StateReleasing:      {{entry(v4, ledger.Releasing, "u-1"), stopped}},
	} {
		for _, w := range list {
			if got := StatusOf(w.entry, w.view, now); got.State != want {
				t.Errorf("%s: %+v", want, got)
			}
		}
	}
	if s := StatusOf(reserved, running("198.51.100.143", false), now); s.Pod.String() != "198.51.100.143" || s.Node != "n1" || s.Guest.IsValid() {
		t.Errorf("what the pod has: %+v", s)
	}
}
