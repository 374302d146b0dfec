package preflight

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// CodeMigrationBlocked is the code of everything that keeps KubeVirt from migrating.
const CodeMigrationBlocked = "MigrationBlocked"

// LiveMigratable refuses what KubeVirt refuses, in its words.
func LiveMigratable(f *Facts) []Verdict {
	if f.View.VMI == nil {
		return nil
	}
	c := machine.Condition(f.View.VMI, kubevirtv1.VirtualMachineInstanceIsMigratable)
	switch c.Status {
	case corev1.ConditionTrue:
		return nil
	case corev1.ConditionFalse:
		remedy := ""
		if c.Reason == kubevirtv1.VirtualMachineInstanceReasonInterfaceNotMigratable {
			remedy = "if the network keeps addresses over migration (" + f.command("profile") + "), annotate spec.template.metadata with " + bridgeOptIn + " and restart"
		}
		return []Verdict{f.verdict(Refuse, CodeMigrationBlocked, remedy, "KubeVirt says %s: %s", c.Reason, c.Message)}
	}
	return []Verdict{f.verdict(Unverified, CodeMigrationBlocked, "wait until the instance has a condition LiveMigratable", "KubeVirt has not said yet whether the machine can be migrated")}
}

const bridgeOptIn = kubevirtv1.AllowPodBridgeNetworkLiveMigrationAnnotation

// BridgeOptIn explains an opt-in to migration of bridge binding that has no effect, or an effect that
// its value denies. KubeVirt looks at the running instance's annotations, and only whether the key is
// there (VerifyVMIMigratable in pkg/network/vmispec). It concerns the pod network alone.
func BridgeOptIn(f *Facts) []Verdict {
	interfaces := f.View.RunningInterfaces()
	if f.View.VMI == nil {
		interfaces = f.View.Interfaces()
	}
	var list []Verdict
	for _, i := range interfaces {
		if i.Pod && i.Binding == machine.Bridge {
			list = append(list, f.bridgeOptIn(Interface{Interface: i})...)
		}
	}
	return list
}

func (f *Facts) bridgeOptIn(i Interface) []Verdict {
	value, effective := "", false
	template, onTemplate := f.template().ObjectMeta.Annotations[bridgeOptIn]
	_, onVM := f.machine().Annotations[bridgeOptIn]
	if f.View.VMI != nil {
		value, effective = f.View.VMI.Annotations[bridgeOptIn]
	} else {
		value, effective = template, onTemplate
	}
	no, err := strconv.ParseBool(value)
	switch {
	case effective && err == nil && !no:
		return []Verdict{f.about(i, Warn, CodeMigrationBlocked, "remove the annotation to forbid migration", "%s is %q, and KubeVirt takes its presence for a yes whatever its value", bridgeOptIn, value)}
	case effective:
		return nil
	case onTemplate:
		return []Verdict{f.about(i, Refuse, CodeMigrationBlocked, f.command("restart"), "the template has %s, the running instance does not: it takes effect at a restart", bridgeOptIn)}
	case onVM:
		return []Verdict{f.about(i, Refuse, CodeMigrationBlocked, "move it to spec.template.metadata.annotations, then "+f.command("restart"), "%s is on the virtualmachine's own metadata, where KubeVirt does not look", bridgeOptIn)}
	}
	return nil
}
