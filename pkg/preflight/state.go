package preflight

import (
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Codes of this file.
const (
	CodeNotRunning           = "NotRunning"
	CodeRestartNotSupported  = "RestartNotSupported"
	CodeStateChangeInFlight  = "StateChangeInFlight"
	CodePaused               = "Paused"
	CodeMigrationInFlight    = "MigrationInFlight"
	CodeEvacuationPending    = "EvacuationPending"
	CodeStrayMigrationTarget = "StrayMigrationTarget"
)

// virtctl is a command line of KubeVirt's client about the machine.
func (f *Facts) virtctl(verb string) string {
	ref := f.View.Ref()
	return "virtctl " + verb + " " + ref.Name + " -n " + ref.Namespace
}

// NotStarted refuses to restart what has no instance.
func NotStarted(f *Facts) []Verdict {
	if f.View.Started() {
		return nil
	}
	return []Verdict{f.verdict(Refuse, CodeNotRunning, "start it, which gives it its reserved address: "+f.virtctl("start"), "the machine is not running")}
}

// NotRunning refuses to migrate what does not run.
func NotRunning(f *Facts) []Verdict {
	switch {
	case f.View.Running():
		return nil
	case !f.View.Started():
		return []Verdict{f.verdict(Refuse, CodeNotRunning, f.virtctl("start"), "the machine is not running")}
	}
	return []Verdict{f.verdict(Refuse, CodeNotRunning, "wait until it runs", "the machine does not run yet: its instance is %s", f.View.VMI.Status.Phase)}
}

// RunStrategy refuses a restart that KubeVirt would answer with 409 (pkg/virt-api/rest/lifecycle.go).
func RunStrategy(f *Facts) []Verdict {
	if !f.View.Started() {
		return nil // NotStarted says it
	}
	strategy, err := f.machine().RunStrategy()
	if err != nil {
		return []Verdict{f.verdict(Refuse, CodeRestartNotSupported, "set one of spec.running and spec.runStrategy", "%v", err)}
	}
	remedy := ""
	switch strategy {
	case kubevirtv1.RunStrategyHalted:
		remedy = "wait until it has stopped, then " + f.virtctl("start")
	case kubevirtv1.RunStrategyOnce:
		remedy = f.virtctl("stop") + ", then " + f.virtctl("start") + ", which sets run strategy Always"
	case kubevirtv1.RunStrategyWaitAsReceiver:
		remedy = "it waits for a migration from another cluster: finish that, or set another run strategy"
	default:
		return nil
	}
	return []Verdict{f.verdict(Refuse, CodeRestartNotSupported, remedy, "KubeVirt restarts no machine with run strategy %s", strategy)}
}

// StateChange refuses while a start, stop or restart is being carried out.
func StateChange(f *Facts) []Verdict {
	var actions []string
	for _, r := range f.machine().Status.StateChangeRequests {
		actions = append(actions, string(r.Action))
	}
	switch vmi := f.View.VMI; {
	case len(actions) > 0:
		return []Verdict{f.verdict(Refuse, CodeStateChangeInFlight, "wait until it is done", "a state change is under way: %s", strings.Join(actions, ", "))}
	case f.machine().DeletionTimestamp != nil:
		return []Verdict{f.verdict(Refuse, CodeStateChangeInFlight, "", "the machine is being deleted")}
	case vmi != nil && vmi.DeletionTimestamp != nil:
		return []Verdict{f.verdict(Refuse, CodeStateChangeInFlight, "wait until it has stopped", "the machine is stopping")}
	}
	return nil
}

// PausedGuest warns that the guest can neither shut down nor be asked for its address.
func PausedGuest(f *Facts) []Verdict {
	if !f.View.Paused() {
		return nil
	}
	return []Verdict{f.verdict(Warn, CodePaused, f.virtctl("unpause vm"), "the guest is paused: it can't shut down by itself, nor tell its address")}
}

// MigrationInFlight refuses while a live migration is under way: a restart would kill it, and
// KubeVirt admits no second one.
func MigrationInFlight(f *Facts) []Verdict {
	if !f.View.Migrating() {
		return nil
	}
	if m := f.View.Migration(); m != nil {
		return []Verdict{f.verdict(Refuse, CodeMigrationInFlight, "wait until it has ended, or cancel it: "+f.virtctl("migrate-cancel"),
			"virtualmachineinstancemigration %s is under way (%s)", m.Name, phase(m.Status.Phase))}
	}
	s := f.View.VMI.Status.MigrationState
	return []Verdict{f.verdict(Refuse, CodeMigrationInFlight, "wait until it has ended", "a migration from %s to %s is not completed", s.SourceNode, s.TargetNode)}
}

func phase(p kubevirtv1.VirtualMachineInstanceMigrationPhase) string {
	if p == kubevirtv1.MigrationPhaseUnset {
		return "new"
	}
	return string(p)
}

// Evacuation refuses a second migration where KubeVirt is about to move the machine off its node.
func Evacuation(f *Facts) []Verdict {
	if f.View.VMI == nil || f.View.VMI.Status.EvacuationNodeName == "" {
		return nil
	}
	return []Verdict{f.verdict(Refuse, CodeEvacuationPending, "let KubeVirt migrate it, or "+f.virtctl("evacuate-cancel vm"),
		"KubeVirt is to move the machine off node %s itself", f.View.VMI.Status.EvacuationNodeName)}
}

// StrayTarget refuses while a failed migration's pod is left: KubeVirt would wait for it to go, and
// it holds an address.
func StrayTarget(f *Facts) []Verdict {
	var list []Verdict
	for _, p := range f.View.StrayTargets() {
		list = append(list, f.verdict(Refuse, CodeStrayMigrationTarget, "kubectl delete pod "+p.Name+" -n "+p.Namespace,
			"pod %s on node %s is left of a migration that did not succeed", p.Name, p.Spec.NodeName))
	}
	return list
}
