package preflight

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// A healthy machine meets no verdict in any operation: the look-alike of all of them.
func TestHealthy(t *testing.T) {
	f := healthy()
	for name, got := range map[string][]Verdict{"reserve": Reserve(f), "restart": Restart(f), "migrate": Migrate(f)} {
		if len(got) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	stop(&f)
	if got := Reserve(f); len(got) > 0 {
		t.Errorf("reserve for a stopped machine: %+v", got)
	}
}

func TestOperations(t *testing.T) {
	for name, c := range map[string]struct {
		run    func(Facts) []Verdict
		change func(*Facts)
		want   []string
	}{
		"the gravest come first": {Reserve, func(f *Facts) {
			iface(f).MAC, iface(f).Capabilities.Restart = "", profile.Capability{}
			iface(f).Capabilities.Choose = no("x")
			iface(f).Capabilities.Migration = profile.Capability{}
		}, []string{"CNICannotChoose Refuse", "NotStickyOverRestart Unverified", "MACNotPinned Warn", "CNINotSticky Info"}},
		"a bare instance has one verdict": {Migrate, func(f *Facts) { f.View.VM = nil }, []string{"NotPersistent Refuse"}},
		"restart of a stopped machine":    {Restart, stop, []string{"NotRunning Refuse"}},
		"migration of a stopped machine":  {Migrate, stop, []string{"NotRunning Refuse"}},
		"a restart applies the change": {Restart, func(f *Facts) {
			f.View.VM.Spec.Template.ObjectMeta.Annotations[ipKey] = "198.51.100.30"
			iface(f).Annotations, iface(f).Next = map[string]string{ipKey: "198.51.100.30"}, ips("198.51.100.30")
			iface(f).Rows = []ledger.Entry{row("198.51.100.30", ledger.Reserved), row("198.51.100.20", ledger.Leaving)}
		}, nil},
		"a machine without reservations restarts": {Restart, func(f *Facts) { f.Interfaces = nil }, nil},
		"and migrates": {Migrate, func(f *Facts) { f.Interfaces = nil }, nil},
		"C38 KubeVirt says yes, Calico says no": {Migrate, func(f *Facts) {
			iface(f).Capabilities.Migration = no("Calico 3.27 gives the target pod of a migration no address that the source holds")
		}, []string{"NotStickyOverMigration Refuse"}},
		"C33 KubeVirt's words and the reason behind them": {Migrate, func(f *Facts) {
			delete(f.View.VMI.Annotations, bridgeOptIn)
			f.View.VMI.Status.Conditions[0].Status = corev1.ConditionFalse
		}, []string{"MigrationBlocked Refuse", "MigrationBlocked Refuse"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			c.change(&f)
			got := c.run(f)
			if !slices.Equal(codes(got), c.want) {
				t.Errorf("got %+v, want %v", got, c.want)
			}
			refused := len(c.want) > 0 && c.want[0][len(c.want[0])-len("Refuse"):] == "Refuse"
			if Refused(got) != refused {
				t.Errorf("refused %t", Refused(got))
			}
		})
	}
}

// fake is a network plugin whose answers are fixed.
type fake struct{ profile.Profile }

func (fake) Name() string    { return "fake" }
func (fake) Version() string { return "v1" }
func (fake) Capabilities(machine.Interface) profile.Capabilities {
	return profile.Capabilities{Choose: no("x")}
}
func (fake) Keys(i machine.Interface) []string { return []string{"fake/" + i.Name} }
func (fake) Claims(a map[string]string, i machine.Interface) ([]netip.Addr, error) {
	if a["fake/"+i.Name] == "" {
		return nil, errors.New("nothing")
	}
	return ips(a["fake/"+i.Name]), nil
}
func (fake) Records(context.Context, machine.Ref, machine.Interface) ([]profile.Record, error) {
	panic("NewInterface reads nothing")
}

func TestNewInterface(t *testing.T) {
	f := healthy()
	f.View.VMI.Annotations["fake/default"] = "198.51.100.20"
	f.View.VM.Spec.Template.ObjectMeta.Annotations["fake/default"] = "198.51.100.21"
	i := f.View.Interfaces()[0]
	got := NewInterface(f.View, i, fake{})
	want := Interface{Interface: i, Profile: "fake", Version: "v1", Capabilities: profile.Capabilities{Choose: no("x")}, Keys: []string{"fake/default"}, Asked: ips("198.51.100.20"), Next: ips("198.51.100.21")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	delete(f.View.VMI.Annotations, "fake/default")
	if got := NewInterface(f.View, i, fake{}); got.AskedErr == nil {
		t.Error("a malformed annotation of the instance is lost")
	}
	stop(&f)
	if got := NewInterface(f.View, i, fake{}); got.AskedErr != nil || got.Asked != nil {
		t.Error("a stopped machine asks for nothing")
	}
}

func TestRows(t *testing.T) {
	damaged := ledger.Entry{Addr: ips("198.51.100.99")[0], Err: errors.New("x"), Row: ledger.Row{State: ledger.Reserved}}
	i := Interface{Rows: []ledger.Entry{row("198.51.100.20", ledger.Leaving), row("198.51.100.30", ledger.Reserved), row("198.51.100.40", ledger.Held), damaged}}
	if got := i.Reserved(); !slices.Equal(got, ips("198.51.100.30")) {
		t.Errorf("reserved %v", got)
	}
	if got := i.Leaving(); !slices.Equal(got, ips("198.51.100.20")) {
		t.Errorf("leaving %v", got)
	}
}

// The first seed's instance is blocked, in KubeVirt's words.
func TestSeedIsBlocked(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "seeds", "instance.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Items []map[string]any `json:"items"`
	}
	if err := yaml.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	v := &machine.View{VM: &kubevirtv1.VirtualMachine{}, VMI: &kubevirtv1.VirtualMachineInstance{}, Pods: make([]corev1.Pod, 1)}
	for n, into := range []any{v.VM, v.VMI, &v.Pods[0]} {
		raw, err := yaml.Marshal(all.Items[n])
		if err == nil {
			err = yaml.Unmarshal(raw, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	got := Migrate(Facts{View: v, Nodes: []corev1.Node{node("n1"), node("n2")}})
	if len(got) != 1 || got[0].Code != CodeMigrationBlocked || got[0].Severity != Refuse {
		t.Errorf("got %+v", got)
	}
}

// Rules are for audit too, which meets instances without a machine and machines in all states.
func TestRulesTakeWhatThereIs(t *testing.T) {
	rules := []Rule{NotPersistent, PoolOwned, ManagedByGitOps, CannotChoose, TooManyAddresses, DualStack, SharedKeys, StickyOverRestart,
		StickyOverMigration, MigrationLater, RecordWins, InUse, MACNotPinned, IPv6NotDelivered, BehindNAT, GuestStatic, NotStarted, NotRunning,
		RunStrategy, StateChange, PausedGuest, MigrationInFlight, Evacuation, StrayTarget, TemplateMissing, RestartPending, PendingChange,
		LiveMigratable, BridgeOptIn, NodeUnreachable, NoTarget}
	masquerade := Interface{Interface: machine.Interface{Name: "default", Pod: true, Binding: machine.Masquerade}}
	for name, f := range map[string]Facts{
		"nothing":              {View: &machine.View{}},
		"an instance alone":    {View: &machine.View{VMI: &kubevirtv1.VirtualMachineInstance{}}, Interfaces: []Interface{masquerade}},
		"no template":          {View: &machine.View{VM: &kubevirtv1.VirtualMachine{}}, Interfaces: []Interface{masquerade}},
		"no template, it runs": {View: &machine.View{VM: &kubevirtv1.VirtualMachine{}, VMI: &kubevirtv1.VirtualMachineInstance{}}, Interfaces: []Interface{masquerade}},
	} {
		for n, rule := range rules {
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("%s: rule %d panics: %v", name, n, r)
					}
				}()
				rule(&f)
			}()
		}
	}
}
