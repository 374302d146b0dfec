package rollout

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// troublePatience is how long a pod that can't get its network is given: container runtimes try
// again within a second or two, and an address that the old pod's teardown still holds comes
// free. Whoever waits for the machine knows within ten seconds.
const troublePatience = 5 * time.Second

// podReasons are the reasons of events that say that a pod can't get its network: the kubelet's,
// and those of network plugins that write their own.
var podReasons = []string{"FailedCreatePodSandBox", "AcquireAddressFailed", "ErrorAllocatingPod", "ErrorAddingLogicalPort"}

// reasonFailedCreate is KubeVirt's for a pod, and for an instance, that it may not create.
const reasonFailedCreate = "FailedCreate"

// podTrouble returns what the events say against a pod that has no address yet.
func (w *world) podTrouble(pod *corev1.Pod) string {
	return w.lastEvent(pod.UID, nil, podReasons...)
}

// createTrouble returns why KubeVirt can't create what the object needs, from events that are
// not among the known ones.
func (w *world) createTrouble(of types.UID, known map[types.UID]string) string {
	return w.lastEvent(of, known, reasonFailedCreate)
}

// lastEvent returns the text of the newest event of an object that has one of the reasons.
func (w *world) lastEvent(of types.UID, known map[types.UID]string, reasons ...string) string {
	var last *corev1.Event
	for uid, e := range w.events {
		version, old := known[uid]
		if e.InvolvedObject.UID != of || !slices.Contains(reasons, e.Reason) || old && version == e.ResourceVersion {
			continue
		}
		if last == nil || newer(e, last) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return last.Reason + ": " + ceremony.ReplaceAllString(oneLine(last.Message), "")
}

// ceremony is what event recorders, the kubelet and the container runtime put in front of what a
// network plugin or an admission says.
var ceremony = regexp.MustCompile(`^(\(combined from similar events\): )?(Failed to create pod sandbox: .*for sandbox "[0-9a-f]+": )?`)

func newer(a, b *corev1.Event) bool {
	return cmp.Or(when(a).Compare(when(b)), cmp.Compare(a.UID, b.UID)) > 0
}

func when(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

// syncTrouble is what KubeVirt's own condition says: it is there for users who may not read events.
func syncTrouble(vmi *kubevirtv1.VirtualMachineInstance) string {
	for _, c := range vmi.Status.Conditions {
		if c.Type == kubevirtv1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse && c.Reason == reasonFailedCreate {
			return c.Reason + ": " + oneLine(c.Message)
		}
	}
	return ""
}

// unschedulable returns why the scheduler finds no node for the pod, "" where it does.
func unschedulable(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return oneLine(c.Message)
		}
	}
	return ""
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
