package machine

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func TestPodsOfAView(t *testing.T) {
	moving := func(target, node string) *kubevirtv1.VirtualMachineInstanceMigrationState {
		return &kubevirtv1.VirtualMachineInstanceMigrationState{MigrationUID: "m1", SourceNode: "n1", SourcePod: "aaaaa", TargetNode: node, TargetPod: target}
	}
	for name, c := range map[string]struct {
		pods       []corev1.Pod
		migrations []kubevirtv1.VirtualMachineInstanceMigration
		change     func(*kubevirtv1.VirtualMachineInstance)
		current    string
		target     string
		stray      []string
		live       []string
	}{
		"C46 a finished pod newer than the running one, and a failed one": {
			pods: []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), launcher("bbbbb", "n2", corev1.PodSucceeded, 5), launcher("ccccc", "n1", corev1.PodFailed, 9)},
			change: func(v *kubevirtv1.VirtualMachineInstance) {
				v.Status.ActivePods = map[types.UID]string{"p-aaaaa": "n1", "p-bbbbb": "n2", "p-ccccc": "n1"}
			},
			current: "aaaaa", live: []string{"aaaaa"},
		},
		"C46 a pod that is being deleted counts": {
			pods:    []corev1.Pod{deleted(launcher("aaaaa", "n1", corev1.PodRunning, 0))},
			current: "aaaaa", live: []string{"aaaaa"},
		},
		"no pod on the instance's node": {
			pods: []corev1.Pod{launcher("aaaaa", "n2", corev1.PodRunning, 0)},
			live: []string{"aaaaa"},
		},
		"before it is scheduled": {
			pods:    []corev1.Pod{launcher("aaaaa", "", corev1.PodPending, 0)},
			change:  func(v *kubevirtv1.VirtualMachineInstance) { v.Status.NodeName = "" },
			current: "aaaaa", live: []string{"aaaaa"},
		},
		"a provisioning pod is no current pod, and may have an address": {
			pods: []corev1.Pod{provisioning(launcher("prov", "n1", corev1.PodRunning, 0))},
			live: []string{"prov"},
		},
		"target before the instance knows of it": {
			pods:       []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), of("m1", launcher("bbbbb", "", corev1.PodPending, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationScheduling)},
			current:    "aaaaa", target: "bbbbb", live: []string{"aaaaa", "bbbbb"},
		},
		"target on the source's own node": {
			pods:       []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), of("m1", launcher("bbbbb", "n1", corev1.PodRunning, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationPreparingTarget)},
			change: func(v *kubevirtv1.VirtualMachineInstance) {
				v.Status.MigrationState = moving("bbbbb", "n1")
			},
			current: "aaaaa", target: "bbbbb", live: []string{"aaaaa", "bbbbb"},
		},
		"handed over, not yet completed: the target is the current pod": {
			pods:       []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), of("m1", launcher("bbbbb", "n2", corev1.PodRunning, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationRunning)},
			change: func(v *kubevirtv1.VirtualMachineInstance) {
				v.Status.NodeName = "n2"
				v.Status.MigrationState = moving("bbbbb", "n2")
				v.Status.MigrationState.EndTimestamp = &metav1.Time{Time: start}
			},
			current: "bbbbb", target: "bbbbb", live: []string{"aaaaa", "bbbbb"},
		},
		"moving again: the source was a target once and keeps the label": {
			pods: []corev1.Pod{of("m0", launcher("aaaaa", "n1", corev1.PodRunning, 0)), of("m1", launcher("bbbbb", "n2", corev1.PodRunning, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{
				migration("m0", kubevirtv1.MigrationSucceeded), migration("m1", kubevirtv1.MigrationRunning)},
			change:  func(v *kubevirtv1.VirtualMachineInstance) { v.Status.MigrationState = moving("bbbbb", "n2") },
			current: "aaaaa", target: "bbbbb", live: []string{"aaaaa", "bbbbb"},
		},
		"moving again, before the instance knows: only the new migration's pod is its target": {
			pods: []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), of("m1", launcher("bbbbb", "n2", corev1.PodPending, 5)), of("m0", launcher("ccccc", "n3", corev1.PodRunning, 9))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{
				migration("m0", kubevirtv1.MigrationFailed), migration("m1", kubevirtv1.MigrationScheduling)},
			current: "aaaaa", target: "bbbbb", stray: []string{"ccccc"}, live: []string{"aaaaa", "bbbbb", "ccccc"},
		},
		"a source that lingers, its own migration remembered": {
			pods: []corev1.Pod{of("m0", launcher("aaaaa", "n1", corev1.PodRunning, 0)), of("m1", launcher("bbbbb", "n2", corev1.PodRunning, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{
				migration("m0", kubevirtv1.MigrationSucceeded), migration("m1", kubevirtv1.MigrationSucceeded)},
			change:  func(v *kubevirtv1.VirtualMachineInstance) { v.Status.NodeName = "n2" },
			current: "bbbbb", live: []string{"aaaaa", "bbbbb"},
		},
		"the earlier migration is forgotten": {
			pods:    []corev1.Pod{of("m0", launcher("aaaaa", "n1", corev1.PodRunning, 0))},
			current: "aaaaa", live: []string{"aaaaa"},
		},
		"a failed migration leaves its pod": {
			pods:       []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), of("m1", launcher("bbbbb", "n2", corev1.PodRunning, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationFailed)},
			change: func(v *kubevirtv1.VirtualMachineInstance) {
				v.Status.MigrationState = moving("bbbbb", "n2")
				v.Status.MigrationState.Failed, v.Status.MigrationState.Completed = true, true
			},
			current: "aaaaa", stray: []string{"bbbbb"}, live: []string{"aaaaa", "bbbbb"},
		},
		"a failed migration's pod on the same node is not the current one": {
			pods:       []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), of("m1", launcher("bbbbb", "n1", corev1.PodRunning, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationFailed)},
			current:    "aaaaa", stray: []string{"bbbbb"}, live: []string{"aaaaa", "bbbbb"},
		},
		"a finished pod is no stray": {
			pods:       []corev1.Pod{launcher("aaaaa", "n1", corev1.PodRunning, 0), of("m1", launcher("bbbbb", "n2", corev1.PodFailed, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationFailed)},
			current:    "aaaaa", live: []string{"aaaaa"},
		},
		"a source that lingers is no stray": {
			pods:       []corev1.Pod{of("m0", launcher("aaaaa", "n1", corev1.PodRunning, 0)), of("m1", launcher("bbbbb", "n2", corev1.PodRunning, 5))},
			migrations: []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationSucceeded)},
			change: func(v *kubevirtv1.VirtualMachineInstance) {
				v.Status.NodeName = "n2"
				v.Status.MigrationState = moving("bbbbb", "n2")
				v.Status.MigrationState.EndTimestamp, v.Status.MigrationState.Completed = &metav1.Time{Time: start}, true
			},
			current: "bbbbb", live: []string{"aaaaa", "bbbbb"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := running([]kubevirtv1.Interface{bridge("default")}, []kubevirtv1.Network{podNetwork("default")})
			v.Pods, v.Migrations = c.pods, c.migrations
			if c.change != nil {
				c.change(v.VMI)
			}
			if got := podName(v.CurrentPod()); got != c.current {
				t.Errorf("current pod %q, want %q", got, c.current)
			}
			if got := podName(v.TargetPod()); got != c.target {
				t.Errorf("target pod %q, want %q", got, c.target)
			}
			if got := podNames(v.StrayTargets()); !slices.Equal(got, c.stray) {
				t.Errorf("stray targets %v, want %v", got, c.stray)
			}
			if got := podNames(v.LivePods()); !slices.Equal(got, c.live) {
				t.Errorf("live pods %v, want %v", got, c.live)
			}
		})
	}
}

func deleted(p corev1.Pod) corev1.Pod {
	p.DeletionTimestamp = &metav1.Time{Time: start}
	return p
}

func provisioning(p corev1.Pod) corev1.Pod {
	p.Annotations = map[string]string{kubevirtv1.EphemeralProvisioningObject: "true"}
	return p
}

func TestStates(t *testing.T) {
	stopped := &View{VM: newVM(nil, nil)}
	if stopped.Running() || stopped.Started() || stopped.Migrating() || stopped.Paused() || stopped.CurrentPod() != nil || stopped.TargetPod() != nil || len(stopped.RunningInterfaces()) > 0 {
		t.Error("a stopped machine does none of it")
	}
	v := running(nil, nil)
	if !v.Running() || !v.Started() || v.Migrating() {
		t.Error("a running machine runs")
	}
	v.VMI.Status.Phase = kubevirtv1.Scheduling
	if v.Running() || !v.Started() {
		t.Error("a starting machine is started and does not run")
	}
	v.VMI.Status.Phase = kubevirtv1.Succeeded
	if v.Running() || v.Started() {
		t.Error("an ended instance is not started")
	}
	v.VMI.Status.Phase = kubevirtv1.Running
	v.VMI.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue}}
	if !v.Paused() {
		t.Error("paused")
	}
	// A migration whose object is gone is still one while the instance says so.
	v.VMI.Status.MigrationState = &kubevirtv1.VirtualMachineInstanceMigrationState{TargetNode: "n2"}
	if !v.Migrating() {
		t.Error("migrating by the instance's state")
	}
	v.VMI.Status.MigrationState.Completed = true
	if v.Migrating() {
		t.Error("completed")
	}
	v.Migrations = []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationPhaseUnset), migration("m2", kubevirtv1.MigrationFailed)}
	if !v.Migrating() || v.Migration().UID != "m1" {
		t.Error("a new migration is under way")
	}
}
