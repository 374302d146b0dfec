package sim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt/fake"
)

// A store that has not come back yet after a restart of the API server doesn't show the VMI of a
// new pod. That is no reason to end its launcher.
func TestEndedAsksTheAPI(t *testing.T) {
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "db", UID: "new"}}
	client := fake.NewSimpleClientset(vmi)
	store := func(o interface{ metav1.Object }) cache.SharedIndexInformer {
		i := cache.NewSharedIndexInformer(&cache.ListWatch{}, nil, 0, nil)
		if o != nil {
			if err := i.GetStore().Add(o); err != nil {
				t.Fatal(err)
			}
		}
		return i
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: "virt-launcher-db", Labels: map[string]string{kubevirtv1.AppLabel: "virt-launcher"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachineInstance", Name: "db", UID: "new", Controller: ptr.To(true)}},
	}}
	old := vmi.DeepCopy()
	old.UID = "old"
	final := vmi.DeepCopy()
	final.Status.Phase = kubevirtv1.Failed
	for name, known := range map[string]metav1.Object{"nothing": nil, "the VMI before": old, "a version that is ahead": final} {
		k := &kubelet{cluster: &cluster{kubevirt: client, vmis: store(known), vmims: store(nil)}}
		if code, ended, err := k.ended(t.Context(), pod, nil); ended || err != nil {
			t.Errorf("with %s in the store: ended with %d, %v", name, code, err)
		}
	}
	if err := client.KubevirtV1().VirtualMachineInstances("a").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	k := &kubelet{cluster: &cluster{kubevirt: client, vmis: store(nil), vmims: store(nil)}}
	if code, ended, err := k.ended(t.Context(), pod, nil); !ended || code != 0 || err != nil {
		t.Errorf("gone: %v with %d, %v", ended, code, err)
	}
}

func TestLauncherExit(t *testing.T) {
	now := metav1.Now()
	source := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "source"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "target", Labels: map[string]string{kubevirtv1.MigrationJobLabel: "m"}}, Spec: corev1.PodSpec{NodeName: "n2"}}
	reached := target.DeepCopy()
	reached.Annotations = map[string]string{kubevirtv1.MigrationTargetReadyTimestamp: "now"}
	vmi := func(node string, m *kubevirtv1.VirtualMachineInstanceMigrationState) *kubevirtv1.VirtualMachineInstance {
		i := &kubevirtv1.VirtualMachineInstance{}
		i.Status.Phase, i.Status.NodeName, i.Status.MigrationState = kubevirtv1.Running, node, m
		if m != nil {
			m.TargetPod, m.SourcePod = "target", "source"
		}
		return i
	}
	type state = kubevirtv1.VirtualMachineInstanceMigrationState
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		vmi   *kubevirtv1.VirtualMachineInstance
		fault string
		ok    bool
		code  int32
	}{
		"no VMI":                        {pod: source, ok: true},
		"no migration":                  {pod: source, vmi: vmi("n1", nil)},
		"source while migrating":        {pod: source, vmi: vmi("n1", &state{StartTimestamp: &now, TargetNodeDomainReadyTimestamp: &now})},
		"source, handed over":           {pod: source, vmi: vmi("n2", &state{StartTimestamp: &now, EndTimestamp: &now})},
		"source, completed":             {pod: source, vmi: vmi("n2", &state{StartTimestamp: &now, EndTimestamp: &now, Completed: true}), ok: true},
		"source that lingers":           {pod: source, vmi: vmi("n2", &state{StartTimestamp: &now, EndTimestamp: &now, Completed: true}), fault: FaultSourceLingers},
		"target, completed":             {pod: reached, vmi: vmi("n2", &state{StartTimestamp: &now, EndTimestamp: &now, Completed: true})},
		"source, failed":                {pod: source, vmi: vmi("n1", &state{StartTimestamp: &now, EndTimestamp: &now, Failed: true})},
		"target without domain, failed": {pod: target, vmi: vmi("n1", &state{StartTimestamp: &now, EndTimestamp: &now, Failed: true}), ok: true, code: 2},
		"target with domain, failed":    {pod: target, vmi: vmi("n1", &state{StartTimestamp: &now, EndTimestamp: &now, Failed: true, TargetNodeDomainDetected: true}), ok: true},
		"next target, not handed off":   {pod: func() *corev1.Pod { p := target.DeepCopy(); p.Name = "next"; return p }(), vmi: vmi("n1", &state{StartTimestamp: &now, EndTimestamp: &now, Completed: true})},
	} {
		t.Run(name, func(t *testing.T) {
			f := faults{{}}
			if c.fault != "" {
				f[0][c.fault] = "true"
			}
			if code, ok := launcherExit(c.pod, c.vmi, f); ok != c.ok || code != c.code {
				t.Errorf("got %v with %d", ok, code)
			}
		})
	}
}
