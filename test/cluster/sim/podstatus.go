package sim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// patchPodStatus sends what change does to a pod's status, if anything: like the kubelet's, the
// patch bears the UID and leaves alone what others have written meanwhile.
func patchPodStatus(ctx context.Context, core kubernetes.Interface, pod *corev1.Pod, change func(*corev1.PodStatus)) (*corev1.Pod, error) {
	after := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: *pod.Status.DeepCopy()}
	change(&after.Status)
	a, err := json.Marshal(corev1.Pod{Status: pod.Status})
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(a, b, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	if string(patch) == fmt.Sprintf(`{"metadata":{"uid":%q}}`, pod.UID) {
		return pod, nil
	}
	return core.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// setCondition keeps the transition time where the status stays.
func setCondition(status *corev1.PodStatus, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.Now()
	for i, old := range status.Conditions {
		if old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			status.Conditions[i] = c
			return
		}
	}
	status.Conditions = append(status.Conditions, c)
}

func condition(status *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == t {
			return &status.Conditions[i]
		}
	}
	return nil
}

// waitingStatus is a pod between binding and sandbox.
func waitingStatus(pod *corev1.Pod, host netip.Addr) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		s.Phase = corev1.PodPending
		s.HostIP, s.HostIPs = host.String(), []corev1.HostIP{{IP: host.String()}}
		s.StartTime = ptr.To(metav1.Now())
		waiting := func(reason string) corev1.ContainerState {
			return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
		}
		reason := "ContainerCreating"
		if len(pod.Spec.InitContainers) > 0 {
			reason = "PodInitializing"
		}
		s.InitContainerStatuses, s.ContainerStatuses = nil, nil
		for _, c := range pod.Spec.InitContainers {
			s.InitContainerStatuses = append(s.InitContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: waiting("PodInitializing"), Started: ptr.To(false)})
		}
		for _, c := range pod.Spec.Containers {
			s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: waiting(reason), Started: ptr.To(false)})
		}
		setCondition(s, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse})
		initialized := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
		if len(pod.Spec.InitContainers) > 0 {
			initialized = corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionFalse, Reason: "ContainersNotInitialized", Message: "containers with incomplete status: " + names(pod.Spec.InitContainers)}
		}
		setCondition(s, initialized)
		for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
			setCondition(s, corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", Message: "containers with unready status: " + names(pod.Spec.Containers)})
		}
		setCondition(s, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	}
}

// runningStatus is a pod whose containers all run.
func runningStatus(pod *corev1.Pod, host netip.Addr, ips []string) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		s.HostIP, s.HostIPs = host.String(), []corev1.HostIP{{IP: host.String()}}
		if s.StartTime == nil {
			s.StartTime = ptr.To(metav1.Now())
		}
		s.PodIP, s.PodIPs = "", nil
		for i, ip := range ips {
			if i == 0 {
				s.PodIP = ip
			}
			s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
		}
		s.InitContainerStatuses = started(pod, pod.Spec.InitContainers, s.InitContainerStatuses, true)
		s.ContainerStatuses = started(pod, pod.Spec.Containers, s.ContainerStatuses, false)
		for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodScheduled} {
			setCondition(s, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue})
		}
		setCondition(s, ready(pod, s))
	}
}

// ready honours the readiness gates.
func ready(pod *corev1.Pod, s *corev1.PodStatus) corev1.PodCondition {
	var missing []string
	for _, gate := range pod.Spec.ReadinessGates {
		switch c := condition(s, gate.ConditionType); {
		case c == nil:
			missing = append(missing, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case c.Status != corev1.ConditionTrue:
			missing = append(missing, fmt.Sprintf(`the status of pod readiness gate %q is not "True", but %v`, gate.ConditionType, c.Status))
		}
	}
	if len(missing) > 0 {
		return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady", Message: strings.Join(missing, ", ")}
	}
	return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
}

// started are the statuses of containers that run or, for init containers, have run.
func started(pod *corev1.Pod, containers []corev1.Container, old []corev1.ContainerStatus, init bool) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	now := metav1.Now()
	for _, c := range containers {
		id := containerID(pod, c.Name)
		if i := indexStatus(old, c.Name); i >= 0 && old[i].ContainerID == id {
			statuses = append(statuses, old[i])
			continue
		}
		status := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: imageID(c.Image), ContainerID: id, Ready: true}
		if init && ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
			status.Started = ptr.To(false)
			status.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: id}
		} else {
			status.Started = ptr.To(true)
			status.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
		}
		statuses = append(statuses, status)
	}
	return statuses
}

// exit is how the containers of a pod ended.
type exit struct {
	// Code is the exit code of the main containers.
	Code int32
	At   metav1.Time
}

func (e exit) phase() corev1.PodPhase {
	if e.Code == 0 {
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// exitedStatus is a pod whose containers have ended and whose sandbox may still be there: the
// kubelet doesn't report the phase before the sandbox is gone.
func exitedStatus(e exit) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		for _, statuses := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
			for i := range statuses {
				c := &statuses[i]
				if c.State.Terminated != nil {
					continue
				}
				t := &corev1.ContainerStateTerminated{ExitCode: e.Code, Reason: "Completed", FinishedAt: e.At, ContainerID: c.ContainerID}
				if e.Code != 0 {
					t.Reason = "Error"
				}
				if c.State.Running != nil {
					t.StartedAt = c.State.Running.StartedAt
				}
				c.State = corev1.ContainerState{Terminated: t}
				c.Ready, c.Started = false, ptr.To(false)
			}
		}
		reason := "PodCompleted"
		if e.Code != 0 {
			reason = "PodFailed"
		}
		for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
			setCondition(s, corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason})
		}
	}
}

// terminalStatus is a pod that is over; its addresses stay in it, as they do in a real one.
func terminalStatus(e exit) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		exitedStatus(e)(s)
		s.Phase = e.phase()
		setCondition(s, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse})
	}
}

// exited reads back what exitedStatus has written.
func exited(pod *corev1.Pod) (exit, bool) {
	for _, c := range pod.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil {
			return exit{t.ExitCode, t.FinishedAt}, true
		}
	}
	return exit{}, false
}

// over tells whether a pod has ended, though it may not be finished.
func over(pod *corev1.Pod) bool {
	_, ok := exited(pod)
	return ok || terminal(pod)
}

// computeRuns tells whether virt-launcher itself runs in a launcher pod.
func computeRuns(pod *corev1.Pod) bool {
	i := indexStatus(pod.Status.ContainerStatuses, "compute")
	return i >= 0 && pod.Status.ContainerStatuses[i].State.Running != nil
}

func indexStatus(statuses []corev1.ContainerStatus, name string) int {
	for i := range statuses {
		if statuses[i].Name == name {
			return i
		}
	}
	return -1
}

func names(containers []corev1.Container) string {
	var n []string
	for _, c := range containers {
		n = append(n, c.Name)
	}
	return fmt.Sprint(n)
}

func containerID(pod *corev1.Pod, name string) string {
	return "containerd://" + hash(string(pod.UID), name)
}

// imageID names an image by digest. Without one virt-controller makes no target pod for a VM that
// has container disks.
func imageID(image string) string {
	repository, digest, ok := strings.Cut(image, "@")
	if !ok {
		digest = "sha256:" + hash(image)
		if i := strings.LastIndex(repository, ":"); i > strings.LastIndex(repository, "/") {
			repository = repository[:i]
		}
	}
	return repository + "@" + digest
}

func hash(parts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "/"))))
}
