package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/control"
)

func grace(seconds int64) option {
	return func(v *kubevirtv1.VirtualMachine) {
		v.Spec.Template.Spec.TerminationGracePeriodSeconds = &seconds
	}
}

func strategy(s kubevirtv1.VirtualMachineRunStrategy) option {
	return func(v *kubevirtv1.VirtualMachine) { v.Spec.RunStrategy = &s }
}

func (v *vm) stop() {
	v.t.Helper()
	if err := env.kv.KubevirtV1().VirtualMachines(v.ns).Stop(v.t.Context(), v.name, &kubevirtv1.StopOptions{}); err != nil {
		v.t.Fatal(err)
	}
}

func (v *vm) gone() {
	v.t.Helper()
	eventually(v.t, 20*time.Second, "VMI gone", func() error {
		if vmi := v.vmi(); vmi != nil {
			return fmt.Errorf("VMI is %s", vmi.Status.Phase)
		}
		return nil
	})
}

// outcomes watches a VM's VMI and its pods until both are gone, and says how they ended.
func (v *vm) outcomes() (vmi kubevirtv1.VirtualMachineInstancePhase, pod corev1.PodPhase, code int32) {
	v.t.Helper()
	w, err := env.core.CoreV1().Pods(v.ns).Watch(v.t.Context(), metav1.ListOptions{LabelSelector: "kubevirt.io=virt-launcher"})
	if err != nil {
		v.t.Fatal(err)
	}
	defer w.Stop()
	i, err := env.kv.KubevirtV1().VirtualMachineInstances(v.ns).Watch(v.t.Context(), metav1.ListOptions{})
	if err != nil {
		v.t.Fatal(err)
	}
	defer i.Stop()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case e := <-w.ResultChan():
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				v.t.Fatalf("watch: %v", e)
			}
			pod = p.Status.Phase
			if t := p.Status.ContainerStatuses[0].State.Terminated; t != nil {
				code = t.ExitCode
			}
		case e := <-i.ResultChan():
			o, ok := e.Object.(*kubevirtv1.VirtualMachineInstance)
			if !ok {
				v.t.Fatalf("watch: %v", e)
			}
			vmi = o.Status.Phase
			if e.Type == "DELETED" {
				return vmi, pod, code
			}
		case <-timeout:
			v.t.Fatalf("VMI is %s, pod %s", vmi, pod)
		}
	}
}

func TestStop(t *testing.T) {
	for name, c := range map[string]struct {
		options []option
		// forced deletes the pod with a grace of a second, as a forced restart does.
		forced bool
		vmi    kubevirtv1.VirtualMachineInstancePhase
		pod    corev1.PodPhase
		code   int32
		atLeast,
		atMost time.Duration
	}{
		"in order":        {vmi: kubevirtv1.Succeeded, pod: corev1.PodSucceeded, atMost: 2 * time.Second},
		"slowly":          {options: []option{grace(20), annotated("sim.vmip.io/slow-stop", "2s")}, vmi: kubevirtv1.Succeeded, pod: corev1.PodSucceeded, atLeast: 2 * time.Second, atMost: 5 * time.Second},
		"too slowly":      {options: []option{grace(2), annotated("sim.vmip.io/slow-stop", "1h")}, vmi: kubevirtv1.Failed, pod: corev1.PodSucceeded, atLeast: 2 * time.Second, atMost: 6 * time.Second},
		"not at all":      {options: []option{grace(2), annotated("sim.vmip.io/guest-ignores-shutdown", "true")}, vmi: kubevirtv1.Failed, pod: corev1.PodSucceeded, atLeast: 2 * time.Second, atMost: 6 * time.Second},
		"without a grace": {options: []option{grace(0), annotated("sim.vmip.io/guest-ignores-shutdown", "true")}, vmi: kubevirtv1.Succeeded, pod: corev1.PodSucceeded, atMost: 3 * time.Second},
		"by force":        {forced: true, vmi: kubevirtv1.Failed, pod: corev1.PodFailed, code: 137, atMost: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, newNamespace(t), "db", append(c.options, strategy(kubevirtv1.RunStrategyRerunOnFailure))...)
			v.running()
			pod := v.pods()[0].Name
			began := time.Now()
			if c.forced {
				if err := env.core.CoreV1().Pods(v.ns).Delete(t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}); err != nil {
					t.Fatal(err)
				}
			} else {
				v.stop()
			}
			vmi, phase, code := v.outcomes()
			if took := time.Since(began); vmi != c.vmi || phase != c.pod || code != c.code || took < c.atLeast || took > c.atMost {
				t.Errorf("VMI %s, pod %s with %d, after %v", vmi, phase, code, took)
			}
			if got := ops(env.cni.of(pod)); got != "ADD DEL" {
				t.Errorf("CNI calls: %s", got)
			}
		})
	}
}

func TestPoweroff(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db", strategy(kubevirtv1.RunStrategyManual))
	if err := env.kv.KubevirtV1().VirtualMachines(v.ns).Start(t.Context(), v.name, &kubevirtv1.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	v.running()
	patchVMI(t, v, `{"metadata":{"annotations":{"sim.vmip.io/guest-poweroff":"true"}}}`)
	v.await("off", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.Status.Phase == kubevirtv1.Succeeded })
	eventually(t, 10*time.Second, "pod finished", func() error {
		if p := v.pods(); p[0].Status.Phase != corev1.PodSucceeded || ops(env.cni.of(p[0].Name)) != "ADD DEL" {
			return fmt.Errorf("%+v", p[0].Status)
		}
		return nil
	})
}

func TestStuckTermination(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db", annotated("sim.vmip.io/stuck-termination", "true"))
	v.running()
	pod := v.pods()[0].Name
	v.stop()
	v.await("shut down", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.Status.Phase == kubevirtv1.Succeeded })
	time.Sleep(time.Second)
	if p := v.pods(); len(p) != 1 || p[0].DeletionTimestamp == nil || p[0].Status.Phase != corev1.PodRunning || ops(env.cni.of(pod)) != "ADD" {
		t.Fatalf("pod isn't stuck: %+v, %s", p, ops(env.cni.of(pod)))
	}
	v.annotate("sim.vmip.io/stuck-termination", "")
	v.gone()
	if got := ops(env.cni.of(pod)); got != "ADD DEL" {
		t.Errorf("CNI calls: %s", got)
	}
}

func TestSourceLingers(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db", annotated("sim.vmip.io/source-lingers", "true"), containerDisk)
	v.running()
	source := v.pods()[0].Name
	v.migrate().reaches(kubevirtv1.MigrationSucceeded)
	time.Sleep(time.Second)
	if p := v.pods(); len(p) != 2 || p[0].Name != source || p[0].Status.Phase != corev1.PodRunning || ops(env.cni.of(source)) != "ADD" {
		t.Fatalf("source doesn't linger: %+v", p)
	}
	v.annotate("sim.vmip.io/source-lingers", "")
	eventually(t, 10*time.Second, "source finished", func() error {
		if p := v.pods(); p[0].Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("%+v", p[0].Status)
		}
		return nil
	})
}

func containerDisk(v *kubevirtv1.VirtualMachine) {
	spec := &v.Spec.Template.Spec
	spec.Domain.Devices.Disks = []kubevirtv1.Disk{{Name: "root", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}}}}
	spec.Volumes = []kubevirtv1.Volume{{Name: "root", VolumeSource: kubevirtv1.VolumeSource{ContainerDisk: &kubevirtv1.ContainerDiskSource{Image: "registry.example/fedora:43"}}}}
}

func TestWrongAddresses(t *testing.T) {
	t.Parallel()
	ns := newNamespace(t)
	v := newVM(t, ns, "target", annotated("sim.vmip.io/wrong-target-address", "10.16.99.1", "sim.vmip.io/guest-agent", "true"))
	w := newVM(t, ns, "all", annotated("sim.vmip.io/wrong-address", "true"))
	w.running()
	if p := w.pods()[0]; p.Status.PodIP == strings.TrimSuffix(p.Annotations["test/address"], "/16") == false || p.Status.PodIP == env.cni.addressOf(ns+"/all") {
		t.Errorf("pod has %s, annotation %s, plugin's record %s", p.Status.PodIP, p.Annotations["test/address"], env.cni.addressOf(ns+"/all"))
	}
	vmi := v.await("agent", func(i *kubevirtv1.VirtualMachineInstance) bool {
		return vmiCondition(i, kubevirtv1.VirtualMachineInstanceAgentConnected).Status == corev1.ConditionTrue
	})
	if i := vmi.Status.Interfaces[0]; i.InfoSource != "domain, guest-agent" || i.InterfaceName != "eth0" {
		t.Errorf("interface: %+v", i)
	}
	v.migrate().reaches(kubevirtv1.MigrationSucceeded)
	v.await("interfaces of the target", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.Status.Interfaces[0].IP == "10.16.99.1" })
	if p := v.pods(); p[0].Status.PodIP != env.cni.addressOf(ns+"/target") || p[1].Status.PodIP != "10.16.99.1" {
		t.Errorf("source %s, target %s", p[0].Status.PodIP, p[1].Status.PodIP)
	}
}

func (n *network) addressOf(holder string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.held[holder].String()
}

func TestHang(t *testing.T) {
	for _, phase := range []kubevirtv1.VirtualMachineInstanceMigrationPhase{
		kubevirtv1.MigrationScheduling, kubevirtv1.MigrationPreparingTarget, kubevirtv1.MigrationTargetReady, kubevirtv1.MigrationRunning,
	} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			v := newVM(t, newNamespace(t), "db", annotated("sim.vmip.io/migration-hang", string(phase)))
			v.running()
			m := v.migrate()
			m.reaches(phase)
			time.Sleep(time.Second)
			m.reaches(phase)
			v.annotate("sim.vmip.io/migration-hang", "")
			m.reaches(kubevirtv1.MigrationSucceeded)
		})
	}
}

func TestSlowStart(t *testing.T) {
	t.Parallel()
	v := newVM(t, newNamespace(t), "db", annotated("sim.vmip.io/slow-start", "2s"))
	v.await("scheduled", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.Status.Phase == kubevirtv1.Scheduled })
	began := time.Now()
	v.running()
	if took := time.Since(began); took < 1800*time.Millisecond || took > 4*time.Second {
		t.Errorf("started after %v", took)
	}
}

func plainPod(ns, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}, {Name: "d", Image: "busybox"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestPlainPods(t *testing.T) {
	t.Parallel()
	ns := newNamespace(t)
	pods := env.core.CoreV1().Pods(ns)
	for _, p := range []*corev1.Pod{
		plainPod(ns, "plain"),
		plainPod(ns, "host", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		plainPod(ns, "fixed", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }),
	} {
		if _, err := pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, p.Name, func() error {
			got, err := pods.Get(t.Context(), p.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := podCondition(got, corev1.PodReady); c.Status != corev1.ConditionTrue || got.Status.PodIP == "" {
				return fmt.Errorf("%+v", got.Status)
			}
			if (got.Status.PodIP == got.Status.HostIP) != (p.Name == "host") {
				return fmt.Errorf("%s has %s on %s", p.Name, got.Status.PodIP, got.Status.HostIP)
			}
			return nil
		})
	}
	for name, want := range map[string]string{"plain": "ADD DEL", "host": "", "fixed": "ADD DEL"} {
		o := metav1.DeleteOptions{}
		if name == "fixed" {
			// By force: the object is gone before its sandbox.
			o.GracePeriodSeconds = ptr.To[int64](0)
		}
		if err := pods.Delete(t.Context(), name, o); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, name+" gone", func() error {
			if _, err := pods.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%v", err)
			}
			// Names repeat over namespaces: these don't.
			if got := ops(env.cni.of(name)); got != want {
				return fmt.Errorf("CNI calls: %s", got)
			}
			return nil
		})
	}
}

func TestUnschedulable(t *testing.T) {
	t.Parallel()
	ns := newNamespace(t)
	pods := env.core.CoreV1().Pods(ns)
	wanted := "sim-test/" + ns
	if _, err := pods.Create(t.Context(), plainPod(ns, "picky", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{wanted: "yes"} }), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "unschedulable", func() error {
		p, err := pods.Get(t.Context(), "picky", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := podCondition(p, corev1.PodScheduled); c.Status != corev1.ConditionFalse || c.Reason != "Unschedulable" || !strings.HasPrefix(c.Message, "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.") {
			return fmt.Errorf("%+v", c)
		}
		if len(eventsOf(t, ns, "picky", "FailedScheduling")) == 0 {
			return fmt.Errorf("no event")
		}
		return nil
	})
	patchNode(t, "n3", fmt.Sprintf(`{"metadata":{"labels":{%q:"yes"}}}`, wanted))
	eventually(t, 10*time.Second, "scheduled", func() error {
		p, err := pods.Get(t.Context(), "picky", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Spec.NodeName != "n3" || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%+v", p.Status)
		}
		return nil
	})
}

// TestResume stops the simulator in the middle of things. Not parallel: it is everybody's.
func TestResume(t *testing.T) {
	ns := newNamespace(t)
	slow := annotated("sim.vmip.io/slow-migration", "2s")
	moving, stopping, lost := newVM(t, ns, "moving", slow), newVM(t, ns, "stopping"), newVM(t, ns, "starting")
	moving.running()
	stopping.running()
	lost.running()
	source, stopped := moving.pods()[0].Name, stopping.pods()[0].Name
	m := moving.migrate()
	m.reaches(kubevirtv1.MigrationRunning)
	env.player.stop()
	stopping.stop()
	stopping.await("terminating", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.DeletionTimestamp != nil })
	fresh := newVM(t, ns, "fresh")
	fresh.await("has a pod", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.Status.Phase == kubevirtv1.Scheduling })
	env.player = play()
	m.reaches(kubevirtv1.MigrationSucceeded)
	stopping.gone()
	fresh.running()
	eventually(t, 10*time.Second, "source finished", func() error {
		if p := moving.pods()[0]; p.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("%+v", p.Status)
		}
		return nil
	})
	for _, pod := range []string{source, stopped} {
		calls := env.cni.of(pod)
		if got := ops(calls); got != "ADD DEL" || calls[0].id != calls[1].id {
			t.Errorf("CNI calls of %s: %s", pod, got)
		}
	}
	if got := ops(env.cni.of(lost.pods()[0].Name)); got != "ADD" {
		t.Errorf("CNI calls of the VM that was left alone: %s", got)
	}
}

// TestAPIServerRestart kills the API server under a running simulator.
func TestAPIServerRestart(t *testing.T) {
	ns := newNamespace(t)
	v := newVM(t, ns, "db", annotated("sim.vmip.io/slow-migration", "2s"))
	v.running()
	m := v.migrate()
	m.reaches(kubevirtv1.MigrationRunning)
	state, err := control.Load(env.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := control.Restart(t.Context(), state, "kube-apiserver", true, time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "migrated", func() error {
		vmim, err := m.get()
		if err == nil && vmim.Status.Phase != kubevirtv1.MigrationSucceeded {
			err = fmt.Errorf("%s", vmim.Status.Phase)
		}
		return err
	})
	eventually(t, time.Minute, "webhooks", func() error {
		_, err := env.kv.KubevirtV1().VirtualMachineInstances(ns).List(context.Background(), metav1.ListOptions{})
		return err
	})
	w := newVM(t, ns, "after")
	w.awaitFor(time.Minute, "running", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.Status.Phase == kubevirtv1.Running })
	// The stores come back one after the other: none may be taken for the truth meanwhile.
	got, err := env.kv.KubevirtV1().VirtualMachines(ns).Get(t.Context(), "after", metav1.GetOptions{})
	if err != nil || got.Status.StartFailure != nil {
		t.Errorf("%v, %+v", err, got.Status.StartFailure)
	}
}

// TestMany starts VMs at once.
func TestMany(t *testing.T) {
	ns := newNamespace(t)
	const count = 30
	began := time.Now()
	var vms []*vm
	for i := range count {
		vms = append(vms, newVM(t, ns, fmt.Sprintf("many-%d", i)))
	}
	created := time.Since(began)
	perNode := map[string]int{}
	for _, v := range vms {
		perNode[v.awaitFor(time.Minute, "running", func(i *kubevirtv1.VirtualMachineInstance) bool { return i.Status.Phase == kubevirtv1.Running }).Status.NodeName]++
	}
	t.Logf("%d VMs created in %v, running after %v, per node %v", count, created, time.Since(began), perNode)
	var counts []int
	for _, n := range perNode {
		counts = append(counts, n)
	}
	if len(counts) != nodeCount || slices.Max(counts)-slices.Min(counts) > 6 {
		t.Errorf("per node: %v", perNode)
	}
}
