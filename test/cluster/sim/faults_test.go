package sim

import (
	"maps"
	"slices"
	"testing"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func TestFaultsGet(t *testing.T) {
	f := faults{
		{FaultSilent: "false", FaultSlowStop: "x"},
		{FaultSilent: "true", FaultSlowStart: "1500ms", FaultMigrationFail: "preparingTarget", GuestAgent: "", FaultSlowStop: "3s"},
	}
	if f.on(FaultSilent) {
		t.Error(`"false" on the more specific object doesn't switch off`)
	}
	if !f.on(GuestAgent) {
		t.Error("an empty value doesn't switch on")
	}
	if got := f.duration(FaultSlowStart); got != 1500*time.Millisecond {
		t.Errorf("duration = %v", got)
	}
	if got := f.duration(FaultSlowStop); got != 0 {
		t.Errorf("unreadable duration = %v", got)
	}
	if !f.at(FaultMigrationFail, kubevirtv1.MigrationPreparingTarget) || f.at(FaultMigrationFail, kubevirtv1.MigrationRunning) {
		t.Error("phase not recognised, or too many")
	}
}

func TestGuestAddresses(t *testing.T) {
	for _, c := range []struct {
		value string
		want  map[string][]string
	}{
		{"192.0.2.7,fd00::7", map[string][]string{"default": {"192.0.2.7", "fd00::7"}}},
		{"192.0.2.7, lan=198.51.100.7,fd00::8", map[string][]string{"default": {"192.0.2.7"}, "lan": {"198.51.100.7", "fd00::8"}}},
		{"lan=none", map[string][]string{"lan": nil}},
	} {
		got := faults{{GuestAddress: c.value}}.guestAddresses("default")
		if !maps.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%q = %v, want %v", c.value, got, c.want)
		}
	}
	if got := (faults{}).guestAddresses("default"); got != nil {
		t.Errorf("without the annotation: %v", got)
	}
}
