package rollout

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
)

func TestSteps(t *testing.T) {
	p := Plan{
		Verb: VerbRestart, Ref: db1, Instance: "i-1", Node: "n1", Pod: "src", Expect: expected("198.51.100.20"),
		Before: []netip.Addr{netip.MustParseAddr("198.51.100.143")},
	}
	p.Expect[0].MAC = "02:00:00:00:00:20"
	migrate := p
	migrate.Verb, migrate.ToNode = VerbMigrate, "n3"
	resumed := migrate
	resumed.Resume = "kubectl-vmip-x"
	joined := p
	joined.Joins = true
	free := p
	free.Expect = nil
	tests := []struct {
		name string
		plan Plan
		want []string
	}{
		{"restart", p, []string{
			"restart | virtualmachine/db-1 | with the guest's own grace period",
			"watch | virtualmachineinstance/db-1 | UID i-1 goes with pod src on n1, a new one starts",
			"verify | new pod | 198.51.100.20 on default with MAC 02:00:00:00:00:20 (now 198.51.100.143)",
			"settle | ledger | rows that the machine has left turn held",
		}},
		{"join", joined, []string{"join | virtualmachine/db-1 | its restart is under way already"}},
		{"migrate", migrate, []string{
			"create | virtualmachineinstancemigration | kubernetes.io/hostname=n3",
			"watch | target pod | abort before the hand-over unless it gets 198.51.100.20 on default with MAC 02:00:00:00:00:20 on a node other than n1",
			"watch | virtualmachineinstance/db-1 | leaves n1 (pod src)",
			"verify | target pod | 198.51.100.20 on default with MAC 02:00:00:00:00:20, one owner, source pod finished",
		}},
		{"resume", resumed, []string{"go on with | virtualmachineinstancemigration/kubectl-vmip-x | created by an earlier run"}},
		{"nothing reserved", free, []string{
			"restart | virtualmachine/db-1 | with the guest's own grace period",
			"watch | virtualmachineinstance/db-1 | UID i-1 goes with pod src on n1, a new one starts",
			"verify | new pod | any address (nothing is reserved) (now 198.51.100.143)",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i, s := range tt.plan.Steps()[:len(tt.want)] {
				if got := strings.Join([]string{s.Action, s.Object, s.Value}, " | "); got != tt.want[i] {
					t.Errorf("step %d: %s, want %s", i, got, tt.want[i])
				}
			}
		})
	}
}

// TestExpectation: C34, a migration keeps what runs while a change waits for its restart.
func TestExpectation(t *testing.T) {
	addr := netip.MustParseAddr
	row := func(a string, s ledger.State, mac string) ledger.Entry {
		return ledger.Entry{Addr: addr(a), Row: ledger.Row{State: s, MAC: mac}}
	}
	both := []ledger.Entry{row("198.51.100.20", ledger.Leaving, ""), row("198.51.100.30", ledger.Reserved, "02:00:00:00:00:30")}
	tests := []struct {
		name  string
		verb  Verb
		rows  []ledger.Entry
		asked string
		want  string
	}{
		{"restart takes the new one", VerbRestart, both, "198.51.100.20", "198.51.100.30"},
		{"migrate keeps the old one", VerbMigrate, both, "198.51.100.20", "198.51.100.20"},
		{"migrate after the restart", VerbMigrate, both, "198.51.100.30", "198.51.100.30"},
		{"the instance asks for a stranger's", VerbMigrate, both, "198.51.100.99", "198.51.100.30"},
		{"nothing is leaving", VerbMigrate, both[1:], "198.51.100.20", "198.51.100.30"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := expectationOf(tt.verb, preflight.Interface{Rows: tt.rows, Asked: []netip.Addr{addr(tt.asked)}})
			if !slices.Equal(e.Addresses, []netip.Addr{addr(tt.want)}) || e.MAC != "02:00:00:00:00:30" {
				t.Errorf("%v %s", e.Addresses, e.MAC)
			}
		})
	}
}
