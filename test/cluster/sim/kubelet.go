package sim

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/cni"
)

// killed is the exit code of a container that got SIGKILL.
const killed = 137

// kubelet runs the pods of all nodes, with the container runtime and the CNI calls that go with it.
type kubelet struct {
	*cluster
	cni   cni.Driver
	queue *queue
	// orphans are the UIDs of pods whose objects are gone while their sandboxes are not.
	orphans *queue

	mu   sync.Mutex
	pods map[types.UID]*podState
}

// podState is what a node knows about a pod beyond the API. All of it can be rebuilt.
type podState struct {
	// mu is held while something is done to the pod.
	mu  sync.Mutex
	pod *corev1.Pod
	// gone: the object is, and the sandbox too.
	gone    bool
	sandbox *sandbox
	// recorded: the sandbox is written down on the pod.
	recorded bool
	attempt  int
	next     time.Time
	exit     *exit
	// torn: the sandbox is gone, CNI DEL included.
	torn bool
}

func newKubelet(c *cluster, driver cni.Driver) *kubelet {
	k := &kubelet{cluster: c, cni: driver, pods: map[types.UID]*podState{}}
	log := c.log.With("component", "kubelet")
	k.queue = newQueue(log, 32, k.step)
	k.orphans = newQueue(log, 4, k.reap)
	return k
}

func (k *kubelet) step(ctx context.Context, key string) (time.Duration, error) {
	pod := k.pod(key)
	// A silent node does nothing; it is looked at again when the annotation goes.
	if pod == nil || !k.plays(pod.Spec.NodeName) || k.silent(pod.Spec.NodeName) {
		return 0, nil
	}
	state := k.state(pod)
	state.mu.Lock()
	defer state.mu.Unlock()
	if state.gone {
		return 0, nil
	}
	state.pod = pod
	var wait time.Duration
	var err error
	switch {
	case pod.DeletionTimestamp != nil:
		wait, err = k.terminate(ctx, pod, state)
	case !terminal(pod):
		wait, err = k.sync(ctx, pod, state)
	}
	// Deleted by force meanwhile, perhaps before anything of it was known.
	if current := k.pod(key); current == nil || current.UID != pod.UID {
		k.orphans.add(string(pod.UID))
	}
	return wait, err
}

// state returns what is known of a pod, rebuilt from the pod after a restart.
func (k *kubelet) state(pod *corev1.Pod) *podState {
	k.mu.Lock()
	defer k.mu.Unlock()
	state, ok := k.pods[pod.UID]
	if !ok {
		state = &podState{pod: pod, torn: terminal(pod)}
		state.sandbox = recordedSandbox(pod)
		if pod.Spec.HostNetwork && pod.Status.PodIP != "" {
			state.sandbox = &sandbox{IPs: podIPs(pod)}
		}
		state.recorded = state.sandbox != nil
		if e, ok := exited(pod); ok {
			state.exit = &e
			// Nothing is known that could be torn down.
			state.torn = state.torn || state.sandbox == nil
		}
		k.pods[pod.UID] = state
	}
	return state
}

// sync brings up a pod and notices where it ends by itself.
func (k *kubelet) sync(ctx context.Context, pod *corev1.Pod, state *podState) (time.Duration, error) {
	host := k.address(pod.Spec.NodeName)
	faults := k.podFaults(pod)
	if state.exit == nil {
		wait, err := k.ensureSandbox(ctx, pod, state, host, faults)
		if wait > 0 || err != nil {
			return wait, err
		}
		if wait := k.startDelay(pod, faults); wait != 0 {
			return max(wait, 0), nil
		}
		code, ended, err := k.ended(ctx, pod, faults)
		if err != nil {
			return 0, err
		}
		if !ended {
			_, err := patchPodStatus(ctx, k.core, pod, runningStatus(pod, host, state.sandbox.IPs))
			return 0, err
		}
		state.exit = &exit{code, metav1.Now()}
	}
	return k.finish(ctx, pod, state)
}

// startDelay is how long the containers of a pod take to start; negative is for ever.
func (k *kubelet) startDelay(pod *corev1.Pod, faults faults) time.Duration {
	if pod.Status.Phase == corev1.PodRunning {
		return 0
	}
	if isLauncher(pod) {
		// A launcher starts at once: what is slow with a slow VM is its guest.
		if !hosted(pod) && faults.at(FaultMigrationHang, kubevirtv1.MigrationScheduling) {
			return -1
		}
		return 0
	}
	return max(faults.duration(FaultSlowStart)-k.watch.since(pod.UID, "sandbox", pod.CreationTimestamp.Time), 0)
}

// ended tells whether the containers of a pod that nobody deletes have ended, and how.
func (k *kubelet) ended(ctx context.Context, pod *corev1.Pod, faults faults) (code int32, ok bool, err error) {
	if !isLauncher(pod) {
		return 0, false, nil
	}
	if !hosted(pod) {
		if code, ok := k.targetDies(pod, faults); ok {
			return code, true, nil
		}
	}
	if _, ok := launcherExit(pod, k.instance(pod), faults); !ok {
		return 0, false, nil
	}
	vmi, err := k.liveInstance(ctx, pod)
	if err != nil {
		return 0, false, err
	}
	code, ok = launcherExit(pod, vmi, faults)
	return code, ok, nil
}

// targetDies is a migration's target whose launcher crashes in the phase that a fault names. Later
// than PreparingTarget a migration fails on its source.
func (k *kubelet) targetDies(pod *corev1.Pod, faults faults) (code int32, ok bool) {
	vmim := k.migration(pod)
	if vmim == nil {
		return 0, false
	}
	switch vmim.Status.Phase {
	case kubevirtv1.MigrationScheduling:
		ok = faults.at(FaultMigrationFail, kubevirtv1.MigrationScheduling)
	case kubevirtv1.MigrationScheduled, kubevirtv1.MigrationPreparingTarget:
		ok = faults.at(FaultMigrationFail, kubevirtv1.MigrationPreparingTarget) && vmim.Status.Phase == kubevirtv1.MigrationPreparingTarget ||
			// virt-controller may be through with Scheduled before anybody can see it.
			faults.at(FaultMigrationFail, kubevirtv1.MigrationScheduled)
	}
	return 1, ok
}

// hosted tells whether the guest is, or has been, in a launcher pod: the first pod of a VMI, or a
// target that a migration has reached.
func hosted(pod *corev1.Pod) bool {
	_, reached := pod.Annotations[kubevirtv1.MigrationTargetReadyTimestamp]
	return pod.Labels[kubevirtv1.MigrationJobLabel] == "" || reached
}

// launcherExit tells whether virt-launcher has no reason left to run. vmi is nil if it is gone.
func launcherExit(pod *corev1.Pod, vmi *kubevirtv1.VirtualMachineInstance, faults faults) (code int32, ok bool) {
	if vmi == nil || vmi.IsFinal() {
		return 0, true
	}
	m := vmi.Status.MigrationState
	if m == nil {
		return 0, false
	}
	switch {
	case m.EndTimestamp == nil || !m.Completed && !m.Failed:
		return 0, false
	case m.TargetPod == pod.Name && m.Failed:
		// virt-handler signals the launcher to clean up. One that has seen its domain ends in
		// order, one that still waits for it panics.
		if m.TargetNodeDomainDetected {
			return 0, true
		}
		return 2, true
	case hosted(pod) && vmi.Status.NodeName != pod.Spec.NodeName:
		// The guest has moved away.
		return 0, !faults.on(FaultSourceLingers)
	}
	return 0, false
}

// terminate ends a pod that is being deleted.
func (k *kubelet) terminate(ctx context.Context, pod *corev1.Pod, state *podState) (time.Duration, error) {
	if state.sandbox != nil && state.exit == nil {
		code, wait, err := k.stopping(ctx, pod)
		if wait > 0 || err != nil {
			return wait, err
		}
		state.exit = &exit{code, metav1.Now()}
	}
	if state.exit != nil {
		wait, err := k.finish(ctx, pod, state)
		if wait > 0 || err != nil || !state.torn {
			return wait, err
		}
	}
	if k.stuck(pod) {
		return 0, nil
	}
	err := k.core.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return 0, err
}

// stopping is how the containers of a pod that is being deleted end, and how long that still takes.
func (k *kubelet) stopping(ctx context.Context, pod *corev1.Pod) (code int32, wait time.Duration, err error) {
	deadline := pod.DeletionTimestamp.Time
	left := time.Until(deadline)
	if !isLauncher(pod) {
		faults := k.podFaults(pod)
		grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
		took := k.watch.since(pod.UID, "stop", deadline.Add(-grace))
		slow := faults.duration(FaultSlowStop)
		if faults.on(FaultIgnoresShutdown) || slow > grace {
			return killed, max(left, 0), nil
		}
		return 0, max(slow-took, 0), nil
	}
	// The launcher ends with its guest, which is virt-handler's to shut down; one without a guest ends at once.
	if vmi := k.instance(pod); vmi == nil || !hosts(vmi, pod) {
		if vmi, err = k.liveInstance(ctx, pod); err != nil || vmi == nil || !hosts(vmi, pod) {
			return 0, 0, err
		}
	}
	if left <= 0 {
		return killed, 0, nil
	}
	return 0, left, nil
}

// hosts tells whether a VMI's guest runs on the node of a pod.
func hosts(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) bool {
	return vmi.Status.Phase == kubevirtv1.Running && vmi.Status.NodeName == pod.Spec.NodeName
}

// stuck tells whether what is left of a pod can't be taken down: one that is being deleted, or will
// be because its VMI is.
func (k *kubelet) stuck(pod *corev1.Pod) bool {
	if !k.podFaults(pod).on(FaultStuckTermination) {
		return false
	}
	vmi := k.instance(pod)
	return pod.DeletionTimestamp != nil || vmi != nil && (vmi.IsFinal() || vmi.DeletionTimestamp != nil)
}

// finish takes down what is left of a pod whose containers have ended: statuses, sandbox, phase.
func (k *kubelet) finish(ctx context.Context, pod *corev1.Pod, state *podState) (time.Duration, error) {
	if !state.torn {
		if _, err := patchPodStatus(ctx, k.core, pod, exitedStatus(*state.exit)); err != nil {
			return 0, err
		}
		if k.stuck(pod) {
			return 0, nil
		}
		if wait := time.Until(state.next); wait > 0 {
			return wait, nil
		}
		if err := k.teardown(ctx, pod, state); err != nil {
			return k.backoff(state), nil
		}
	}
	_, err := patchPodStatus(ctx, k.core, pod, terminalStatus(*state.exit))
	return 0, err
}

// deleted is called when a pod's object is gone, by force or in order.
func (k *kubelet) deleted(pod *corev1.Pod) {
	k.watch.drop(pod.UID)
	k.orphans.add(string(pod.UID))
}

// reap forgets a pod whose object is gone. If that was by force, its sandbox is still there.
func (k *kubelet) reap(ctx context.Context, uid string) (time.Duration, error) {
	k.mu.Lock()
	state := k.pods[types.UID(uid)]
	k.mu.Unlock()
	if state == nil {
		return 0, nil
	}
	state.mu.Lock()
	defer state.mu.Unlock()
	if state.sandbox != nil && !state.torn {
		if k.silent(state.pod.Spec.NodeName) {
			return time.Second, nil
		}
		if wait := time.Until(state.next); wait > 0 {
			return wait, nil
		}
		if err := k.teardown(ctx, state.pod, state); err != nil {
			return k.backoff(state), nil
		}
	}
	state.gone = true
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, types.UID(uid))
	return 0, nil
}

// address is a node's own.
func (c *cluster) address(node string) netip.Addr {
	return nodeAddress(slices.Index(c.nodeNames, node) + 1)
}

func podIPs(pod *corev1.Pod) []string {
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips
}
