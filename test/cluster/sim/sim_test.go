package sim_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/cni"
)

func TestStartStopRestart(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db")
	began := time.Now()
	vmi := v.running()
	t.Logf("running after %v", time.Since(began))

	pod := v.pods()[0]
	if got := vmi.Status.Interfaces; len(got) != 1 || got[0].IP != pod.Status.PodIP || got[0].InfoSource != "domain" || got[0].PodInterfaceName != "eth0" || got[0].QueueCount != 1 || got[0].MAC == "" {
		t.Errorf("interfaces: %+v", got)
	}
	if c := vmiCondition(vmi, kubevirtv1.VirtualMachineInstanceIsMigratable); c.Status != corev1.ConditionTrue {
		t.Errorf("LiveMigratable: %+v", c)
	}
	if vmi.Status.SelinuxContext != "none" || vmi.Status.MigrationMethod != kubevirtv1.LiveMigration {
		t.Errorf("status: %+v", vmi.Status)
	}
	eventually(t, 10*time.Second, "pod ready", func() error {
		if c := podCondition(&v.pods()[0], corev1.PodReady); c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})

	if err := env.kv.KubevirtV1().VirtualMachines(v.ns).Restart(t.Context(), v.name, &kubevirtv1.RestartOptions{}); err != nil {
		t.Fatal(err)
	}
	again := v.await("restarted", func(i *kubevirtv1.VirtualMachineInstance) bool {
		return i.UID != vmi.UID && i.Status.Phase == kubevirtv1.Running
	})
	if got := ops(env.cni.of(pod.Name)); got != "ADD DEL" {
		t.Errorf("CNI calls of the first pod: %s", got)
	}
	if pods := v.pods(); len(pods) != 1 || pods[0].Status.PodIP != pod.Status.PodIP {
		t.Errorf("pods after the restart: %+v", pods)
	}

	if err := env.kv.KubevirtV1().VirtualMachines(v.ns).Stop(t.Context(), v.name, &kubevirtv1.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "stopped", func() error {
		if vmi := v.vmi(); vmi != nil {
			return fmt.Errorf("%s is %s", vmi.UID, vmi.Status.Phase)
		}
		return nil
	})
	if n := len(eventsOf(t, v.ns, v.name, "Stopped")); n == 0 {
		t.Errorf("no event for the end of %s", again.UID)
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db", bridge)
	vmi := v.running()
	source := v.pods()[0]

	c := vmiCondition(vmi, kubevirtv1.VirtualMachineInstanceIsMigratable)
	if want := "cannot migrate VMI which does not use masquerade or a migratable plugin to connect to the pod network"; c.Status != corev1.ConditionFalse || c.Reason != "InterfaceNotLiveMigratable" || c.Message != want {
		t.Errorf("LiveMigratable of a VM with bridge binding: %+v", c)
	}
	patchVMI(t, v, `{"metadata":{"annotations":{"kubevirt.io/allow-pod-bridge-network-live-migration":""}}}`)
	vmi = v.await("migratable", func(i *kubevirtv1.VirtualMachineInstance) bool {
		return vmiCondition(i, kubevirtv1.VirtualMachineInstanceIsMigratable).Status == corev1.ConditionTrue
	})
	from, mac := vmi.Status.NodeName, vmi.Status.Interfaces[0].MAC

	v.annotate("sim.vmip.io/slow-migration", "1500ms")
	m := v.migrate()
	m.reaches(kubevirtv1.MigrationRunning)
	target := m.target()
	if target.Status.PodIP != source.Status.PodIP {
		t.Errorf("target has %s, source %s", target.Status.PodIP, source.Status.PodIP)
	}
	if c := podCondition(target, corev1.PodReady); c.Status != corev1.ConditionFalse || c.Reason != "ReadinessGatesNotReady" {
		t.Errorf("target before the hand-over: %+v", c)
	}
	v.await("domain on the target", func(i *kubevirtv1.VirtualMachineInstance) bool {
		return i.Status.MigrationState.TargetNodeDomainDetected
	})
	time.Sleep(500 * time.Millisecond)
	if got := ops(env.cni.of(source.Name)); got != "ADD" || v.pods()[0].Status.Phase != corev1.PodRunning {
		t.Errorf("source before the hand-over: %s, CNI calls %s", v.pods()[0].Status.Phase, got)
	}
	vmim := m.reaches(kubevirtv1.MigrationSucceeded)
	if got, want := phases(vmim), "Pending Scheduling Scheduled PreparingTarget TargetReady Running Succeeded"; got != want {
		t.Errorf("phases: %s", got)
	}
	vmi = v.await("cleaned up", func(i *kubevirtv1.VirtualMachineInstance) bool {
		return i.Labels[kubevirtv1.MigrationTargetNodeNameLabel] == ""
	})
	ms := vmi.Status.MigrationState
	if vmi.Status.NodeName == from || vmi.Labels[kubevirtv1.NodeNameLabel] != vmi.Status.NodeName || !ms.Completed || ms.Failed || ms.TargetNodeDomainReadyTimestamp == nil || ms.Mode != kubevirtv1.MigrationPreCopy {
		t.Errorf("VMI on %s (was %s), migration state %+v", vmi.Status.NodeName, from, ms)
	}
	if got := vmi.Status.Interfaces[0]; got.MAC != mac || got.IP != source.Status.PodIP {
		t.Errorf("interface after the migration: %+v", got)
	}
	eventually(t, 10*time.Second, "source finished, target ready", func() error {
		pods := v.pods()
		if len(pods) != 2 || pods[0].Status.Phase != corev1.PodSucceeded || pods[0].Status.PodIP == "" {
			return fmt.Errorf("source: %+v", pods[0].Status)
		}
		if c := podCondition(&pods[1], corev1.PodReady); c.Status != corev1.ConditionTrue {
			return fmt.Errorf("target: %+v", c)
		}
		return nil
	})
	calls := env.cni.of(source.Name)
	if got := ops(calls); got != "ADD DEL" {
		t.Fatalf("CNI calls of the source: %s", got)
	}
	if !calls[1].at.After(ms.EndTimestamp.Time) {
		t.Errorf("DEL of the source at %v, hand-over at %v", calls[1].at, ms.EndTimestamp)
	}
	if target := m.target(); target.Annotations[kubevirtv1.MigrationTargetReadyTimestamp] == "" {
		t.Error("target has no ready timestamp")
	}
}

func patchVMI(t *testing.T, v *vm, patch string) {
	t.Helper()
	if _, err := env.kv.KubevirtV1().VirtualMachineInstances(v.ns).Patch(t.Context(), v.name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAbort(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db", annotated("sim.vmip.io/migration-hang", "Running"))
	from := v.running().Status.NodeName
	m := v.migrate()
	m.reaches(kubevirtv1.MigrationRunning)
	v.await("domain on the target", func(i *kubevirtv1.VirtualMachineInstance) bool {
		return i.Status.MigrationState.TargetNodeDomainDetected
	})
	if err := env.kv.KubevirtV1().VirtualMachineInstanceMigrations(v.ns).Delete(t.Context(), m.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	vmi := v.await("aborted", func(i *kubevirtv1.VirtualMachineInstance) bool {
		return i.Status.MigrationState.EndTimestamp != nil && i.Labels[kubevirtv1.MigrationTargetNodeNameLabel] == ""
	})
	ms := vmi.Status.MigrationState
	if !ms.Failed || ms.Completed || ms.AbortStatus != kubevirtv1.MigrationAbortSucceeded || ms.FailureReason != "Live migration aborted " || vmi.Status.NodeName != from {
		t.Errorf("VMI on %s, migration state %+v", vmi.Status.NodeName, ms)
	}
	eventually(t, 10*time.Second, "migration gone, target finished", func() error {
		if _, err := m.get(); !apierrors.IsNotFound(err) {
			return fmt.Errorf("migration: %v", err)
		}
		if pod := m.target(); pod == nil || pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("target: %+v", pod.Status)
		}
		return nil
	})
	if got := ops(env.cni.of(m.target().Name)); got != "ADD DEL" {
		t.Errorf("CNI calls of the target: %s", got)
	}
}

func TestMigrationFails(t *testing.T) {
	for _, c := range []struct {
		phase kubevirtv1.VirtualMachineInstanceMigrationPhase
		// phases that the migration is in before it fails
		phases string
		target corev1.PodPhase
	}{
		{kubevirtv1.MigrationScheduling, "Pending Scheduling Failed", corev1.PodFailed},
		{kubevirtv1.MigrationScheduled, "", corev1.PodFailed}, // virt-controller may be in PreparingTarget by then
		{kubevirtv1.MigrationPreparingTarget, "Pending Scheduling Scheduled PreparingTarget Failed", corev1.PodFailed},
		{kubevirtv1.MigrationTargetReady, "Pending Scheduling Scheduled PreparingTarget TargetReady Failed", corev1.PodFailed},
		{kubevirtv1.MigrationRunning, "Pending Scheduling Scheduled PreparingTarget TargetReady Running Failed", corev1.PodSucceeded},
	} {
		t.Run(string(c.phase), func(t *testing.T) {
			t.Parallel()
			v := newVM(t, newNamespace(t), "db", annotated("sim.vmip.io/migration-fail", string(c.phase)))
			vmi := v.running()
			m := v.migrate()
			vmim := m.reaches(kubevirtv1.MigrationFailed)
			if got := phases(vmim); c.phases != "" && got != c.phases {
				t.Errorf("phases: %s", got)
			}
			eventually(t, 10*time.Second, "target finished", func() error {
				if pod := m.target(); pod == nil || pod.Status.Phase != c.target {
					return fmt.Errorf("%+v", pod)
				}
				return nil
			})
			after := v.await("clean", func(i *kubevirtv1.VirtualMachineInstance) bool {
				return i.Labels[kubevirtv1.MigrationTargetNodeNameLabel] == ""
			})
			if after.Status.NodeName != vmi.Status.NodeName || after.Status.Phase != kubevirtv1.Running {
				t.Errorf("VMI is %s on %s", after.Status.Phase, after.Status.NodeName)
			}
			// The fault off, the next one works.
			v.annotate("sim.vmip.io/migration-fail", "")
			v.migrate().reaches(kubevirtv1.MigrationSucceeded)
		})
	}
}

func TestSandboxFailure(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db", annotated("sim.vmip.io/sandbox-failure", "no address is free"))
	var pod corev1.Pod
	eventually(t, 20*time.Second, "events", func() error {
		pods := v.pods()
		if len(pods) != 1 {
			return errors.New("no pod")
		}
		pod = pods[0]
		if n := len(eventsOf(t, v.ns, pod.Name, "FailedCreatePodSandBox")); n < 2 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
	e := eventsOf(t, v.ns, pod.Name, "FailedCreatePodSandBox")[0]
	var id string
	if _, err := fmt.Sscanf(e.Message, `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox %q: plugin type="test" failed (add): no address is free`, &id); err != nil || len(id) != 64 || e.Source.Component != "kubelet" || e.Type != "Warning" {
		t.Errorf("event: %+v: %v", e, err)
	}
	if s := pod.Status.ContainerStatuses[0].State.Waiting; pod.Status.Phase != corev1.PodPending || s == nil {
		t.Errorf("pod: %+v", pod.Status)
	}
	if got := ops(env.cni.of(pod.Name)); len(got) < 7 || got[:7] != "DEL DEL" {
		t.Errorf("CNI calls: %s", got) // the fault is before the driver: only the clean-up reaches it
	}
	v.annotate("sim.vmip.io/sandbox-failure", "")
	v.running()
}

// TestRefusedADD is a plugin that says no, with an event of its own.
func TestRefusedADD(t *testing.T) {
	ns := newNamespace(t)
	env.cni.setRefuse(func(req cni.Request) error {
		if req.Pod.Namespace != ns {
			return nil
		}
		return &cni.Error{
			Message: `plugin type="test" failed (add): address 10.16.0.1 is taken`,
			Events:  []cni.Event{{Type: "Warning", Reason: "AddressConflict", Message: "address 10.16.0.1 is taken", Component: "test-controller"}},
		}
	})
	t.Cleanup(func() { env.cni.setRefuse(nil) })
	v := newVM(t, ns, "db")
	var pod corev1.Pod
	eventually(t, 20*time.Second, "events", func() error {
		if pods := v.pods(); len(pods) == 1 {
			pod = pods[0]
		}
		own, kubelet := eventsOf(t, ns, pod.Name, "AddressConflict"), eventsOf(t, ns, pod.Name, "FailedCreatePodSandBox")
		// The same words again are counted, other sandboxes are other words.
		if len(own) != 1 || own[0].Count < 2 || len(kubelet) < 2 {
			return fmt.Errorf("%+v and %d of the kubelet", own, len(kubelet))
		}
		return nil
	})
	calls := env.cni.of(pod.Name)
	if len(calls) < 4 || ops(calls[:4]) != "ADD DEL ADD DEL" || calls[0].id != calls[1].id || calls[1].id == calls[2].id {
		t.Errorf("CNI calls: %+v", calls)
	}
	env.cni.setRefuse(nil)
	v.running()
}

func TestSilentNode(t *testing.T) {
	// Not parallel: the others need all nodes.
	v := newVM(t, newNamespace(t), "db")
	node := v.running().Status.NodeName
	pod := v.pods()[0]
	if _, err := env.core.CoreV1().Pods(v.ns).Create(t.Context(), plainPod(v.ns, "silenced", func(p *corev1.Pod) { p.Spec.NodeName = node }), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "plain pod", func() error {
		if got := ops(env.cni.of("silenced")); got != "ADD" {
			return errors.New(got)
		}
		return nil
	})
	patchNode(t, node, `{"metadata":{"annotations":{"sim.vmip.io/silent":"true"}}}`)
	t.Cleanup(func() { patchNode(t, node, `{"metadata":{"annotations":{"sim.vmip.io/silent":null}}}`) })
	eventually(t, 10*time.Second, "unreachable", func() error {
		n := getNode(t, node)
		if c := nodeCondition(n, corev1.NodeReady); c.Status != corev1.ConditionUnknown || c.Reason != "NodeStatusUnknown" {
			return fmt.Errorf("%+v", c)
		}
		if len(n.Spec.Taints) != 2 || n.Spec.Taints[0].Key != corev1.TaintNodeUnreachable {
			return fmt.Errorf("taints: %+v", n.Spec.Taints)
		}
		if c := podCondition(&v.pods()[0], corev1.PodReady); c.Status != corev1.ConditionFalse {
			return fmt.Errorf("pod: %+v", c)
		}
		return nil
	})
	if err := env.kv.KubevirtV1().VirtualMachines(v.ns).Stop(t.Context(), v.name, &kubevirtv1.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := env.core.CoreV1().Pods(v.ns).Delete(t.Context(), "silenced", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	v.await("terminating", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.DeletionTimestamp != nil })
	time.Sleep(2 * time.Second)
	if vmi := v.vmi(); vmi == nil || vmi.Status.Phase != kubevirtv1.Running || ops(env.cni.of(pod.Name)) != "ADD" || ops(env.cni.of("silenced")) != "ADD" {
		t.Fatalf("the silent node did something: %+v, %s", vmi, ops(env.cni.of(pod.Name)))
	}
	patchNode(t, node, `{"metadata":{"annotations":{"sim.vmip.io/silent":null}}}`)
	eventually(t, 20*time.Second, "stopped", func() error {
		if vmi := v.vmi(); vmi != nil {
			return fmt.Errorf("VMI is %s", vmi.Status.Phase)
		}
		if n := getNode(t, node); nodeCondition(n, corev1.NodeReady).Status != corev1.ConditionTrue || len(n.Spec.Taints) != 0 {
			return fmt.Errorf("node: %+v", n)
		}
		return nil
	})
}

func TestNode(t *testing.T) {
	t.Parallel()
	newNamespace(t)
	eventually(t, 20*time.Second, "signs of life", func() error {
		n := getNode(t, "n1")
		lease, err := env.core.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		beat, err := time.Parse(time.RFC3339, n.Annotations[kubevirtv1.VirtHandlerHeartbeat])
		if err != nil || time.Since(beat) > 3*time.Minute || time.Since(lease.Spec.RenewTime.Time) > 20*time.Second {
			return fmt.Errorf("heartbeat %v, lease %v: %v", beat, lease.Spec.RenewTime, err)
		}
		if len(n.Status.Addresses) == 0 || n.Status.Addresses[0].Address != "192.0.2.11" || n.Labels[kubevirtv1.NodeSchedulable] != "true" {
			return fmt.Errorf("%+v, %v", n.Status.Addresses, n.Labels)
		}
		return nil
	})
}

func patchNode(t *testing.T, name, patch string) {
	t.Helper()
	if _, err := env.core.CoreV1().Nodes().Patch(t.Context(), name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil && t.Context().Err() == nil {
		t.Fatal(err)
	}
}

func getNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := env.core.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func nodeCondition(n *corev1.Node, t corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NodeCondition{}
}
