package machine

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Finished says that a pod's sandbox is gone: Succeeded or Failed. Its status keeps showing the
// addresses that it had.
func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Provisioning says that the pod is KubeVirt's stand-in for a volume that waits for its first
// consumer: it carries the machine's annotations and gets an address, but no guest
// (RenderLaunchManifestNoVm in pkg/virt-controller/services/template.go).
func Provisioning(p *corev1.Pod) bool {
	_, ok := p.Annotations[kubevirtv1.EphemeralProvisioningObject]
	return ok
}

// CurrentPod is the pod that the guest runs in, or will: on the node that the VMI's status names,
// not finished, no migration target. nil where there is none or where it can't be told.
//
// Age decides last: the pod of a failed migration is newer than the one that runs.
func (v *View) CurrentPod() *corev1.Pod {
	if v.VMI == nil {
		return nil
	}
	node := v.VMI.Status.NodeName
	var best *corev1.Pod
	for n := range v.Pods {
		p := &v.Pods[n]
		switch {
		case Finished(p), Provisioning(p):
			continue
		case node != "" && p.Spec.NodeName != node:
			continue
		case v.notYetCurrent(p):
			continue
		}
		if best == nil || v.better(p, best) {
			best = p
		}
	}
	return best
}

// notYetCurrent says that the pod is the target of a migration that has not handed over, or of
// one that never will. The label of a migration stays on a pod for ever, so it has to be compared
// with what became of the migration.
func (v *View) notYetCurrent(p *corev1.Pod) bool {
	job := migrationOf(p)
	s := v.VMI.Status.MigrationState
	if s != nil && s.TargetPod == p.Name {
		handedOver := s.EndTimestamp != nil && !s.Failed && s.TargetNode == v.VMI.Status.NodeName
		return !handedOver
	}
	if job == "" {
		return false
	}
	for n := range v.Migrations {
		if m := &v.Migrations[n]; m.UID == job {
			return m.Status.Phase != kubevirtv1.MigrationSucceeded
		}
	}
	return false // an earlier migration, forgotten since: the pod has become a source
}

// better orders two pods on the VMI's node, which only disorder puts there: known to the VMI,
// then running, then newer.
func (v *View) better(a, b *corev1.Pod) bool {
	_, activeA := v.VMI.Status.ActivePods[a.UID]
	_, activeB := v.VMI.Status.ActivePods[b.UID]
	runsA, runsB := a.Status.Phase == corev1.PodRunning, b.Status.Phase == corev1.PodRunning
	switch {
	case activeA != activeB:
		return activeA
	case runsA != runsB:
		return runsA
	}
	return b.CreationTimestamp.Before(&a.CreationTimestamp)
}

// TargetPod is the pod that a migration moves to, from its creation until the migration is
// complete: also while it is the current pod already, and also where it has failed.
func (v *View) TargetPod() *corev1.Pod {
	if v.VMI == nil {
		return nil
	}
	if s := v.VMI.Status.MigrationState; s != nil && s.TargetPod != "" && !s.Completed && !s.Failed {
		if p := v.pod(s.TargetPod); p != nil {
			return p
		}
	}
	// The VMI learns of its target only when that is ready; until then the label tells.
	m := v.Migration()
	if m == nil {
		return nil
	}
	var target *corev1.Pod
	for n := range v.Pods {
		p := &v.Pods[n]
		if migrationOf(p) == m.UID && (target == nil || target.CreationTimestamp.Before(&p.CreationTimestamp)) {
			target = p
		}
	}
	return target
}

// StrayTargets are unfinished pods of migrations that are over and did not succeed: KubeVirt does
// not delete them (before v1.9 never), and they hold an address.
func (v *View) StrayTargets() []*corev1.Pod {
	current, target := v.CurrentPod(), v.TargetPod()
	var stray []*corev1.Pod
	for n := range v.Pods {
		p := &v.Pods[n]
		switch {
		case Finished(p), Provisioning(p), same(p, current), same(p, target), migrationOf(p) == "":
			continue
		case current == nil || !v.failed(p):
			continue
		}
		stray = append(stray, p)
	}
	return stray
}

// failed says that the pod was the target of a migration that is known to have failed, or that
// nobody knows any more while the VMI runs on another node than the pod.
func (v *View) failed(p *corev1.Pod) bool {
	job := migrationOf(p)
	for n := range v.Migrations {
		if m := &v.Migrations[n]; m.UID == job {
			return m.Status.Phase == kubevirtv1.MigrationFailed
		}
	}
	s := v.VMI.Status.MigrationState
	if s != nil && s.SourcePod == p.Name {
		return false // a source that lingers, the target of an earlier migration
	}
	return p.Spec.NodeName != v.VMI.Status.NodeName
}

// LivePods may use an address: all pods that are not finished, those that are being deleted and
// provisioning pods among them.
func (v *View) LivePods() []*corev1.Pod {
	var live []*corev1.Pod
	for n := range v.Pods {
		if p := &v.Pods[n]; !Finished(p) {
			live = append(live, p)
		}
	}
	return live
}

// Running says that the guest runs, by the VMI's phase.
func (v *View) Running() bool { return v.VMI != nil && v.VMI.IsRunning() }

// Started says that there is an instance that has not ended: it runs, or is on its way to.
func (v *View) Started() bool { return v.VMI != nil && !v.VMI.IsFinal() }

// Paused says that the guest is paused by its user.
func (v *View) Paused() bool {
	return v.VMI != nil && Condition(v.VMI, kubevirtv1.VirtualMachineInstancePaused).Status == corev1.ConditionTrue
}

// Migrating says that a migration is under way: an object that has not ended, or a state on the
// VMI that is not completed.
func (v *View) Migrating() bool {
	if v.VMI == nil {
		return false
	}
	s := v.VMI.Status.MigrationState
	return v.Migration() != nil || s != nil && !s.Completed && !s.Failed
}

// Migration is the newest migration of the VMI that has not ended, nil where there is none.
func (v *View) Migration() *kubevirtv1.VirtualMachineInstanceMigration {
	for _, m := range slices.Backward(v.Migrations) {
		if !m.IsFinal() {
			return &m
		}
	}
	return nil
}

// Condition returns a condition of a VMI, the zero value where it is not there.
func Condition(vmi *kubevirtv1.VirtualMachineInstance, t kubevirtv1.VirtualMachineInstanceConditionType) kubevirtv1.VirtualMachineInstanceCondition {
	for _, c := range vmi.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return kubevirtv1.VirtualMachineInstanceCondition{}
}

func (v *View) pod(name string) *corev1.Pod {
	for n := range v.Pods {
		if v.Pods[n].Name == name {
			return &v.Pods[n]
		}
	}
	return nil
}

func migrationOf(p *corev1.Pod) types.UID {
	return types.UID(p.Labels[kubevirtv1.MigrationJobLabel])
}

func same(a, b *corev1.Pod) bool { return a != nil && b != nil && a.UID == b.UID && a.Name == b.Name }

func controlledBy(o metav1.Object, kind string) *metav1.OwnerReference {
	r := metav1.GetControllerOf(o)
	if r == nil || r.Kind != kind {
		return nil
	}
	return r
}
