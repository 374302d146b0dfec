package rollout

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// settlePatience is how long a state that looks final but may be the middle of a change is
// watched before it is believed.
const settlePatience = 5 * time.Second

// restartState follows one restart: the old instance goes, KubeVirt starts a new one of another
// UID, and that one has to have the reserved addresses.
type restartState struct {
	ref machine.Ref
	// vm and old are the UIDs of the machine and of the instance that ran before.
	vm, old types.UID
	expect  []Expectation
	// agent is set where the old instance's guest ran an agent.
	agent bool
	// known are the events that were there before the restart was asked for.
	known map[types.UID]string

	current types.UID
	// again counts the instances that came and went since.
	again int
	marks marks
}

// observe looks at the world and says where the restart stands.
func (s *restartState) observe(w *world, now time.Time) decision {
	if s.marks == nil {
		s.marks = marks{}
	}
	switch {
	case w.vm == nil || w.vm.UID != s.vm || w.vm.DeletionTimestamp != nil:
		return failed(CodeMachineDeleted, fmt.Sprintf("virtualmachine %s was deleted during the restart", s.ref))
	case w.instance == nil:
		return s.between(w, now)
	case w.instance.UID == s.old:
		return s.stopping(w)
	}
	if w.instance.UID != s.current {
		if s.current != "" {
			s.again++
		}
		s.current = w.instance.UID
		clear(s.marks)
	}
	if w.instance.Status.Phase == kubevirtv1.Running && w.instance.DeletionTimestamp == nil {
		return s.running(w, now)
	}
	return s.starting(w, now)
}

func (s *restartState) stopping(w *world) decision {
	vmi := w.instance
	pods := live(w.podsOf(vmi.UID))
	if len(pods) == 0 {
		return decision{phase: PhaseStopping, detail: "the old pod has finished, waiting for the old instance to go"}
	}
	d := decision{phase: PhaseStopping, detail: fmt.Sprintf("old pod %s on %s", pods[0].Name, pods[0].Spec.NodeName)}
	if grace := vmi.Spec.TerminationGracePeriodSeconds; grace != nil {
		d.detail += fmt.Sprintf(" (the guest has up to %ds to shut down)", *grace)
	}
	return d
}

// between is the time without an instance.
func (s *restartState) between(w *world, now time.Time) decision {
	d := decision{phase: PhaseStarting, detail: "the old instance is gone, waiting for KubeVirt to start the new one", wake: time.Second}
	if f := w.vm.Status.StartFailure; s.current != "" && f != nil && f.LastFailedVMIUID == s.current {
		return failed(CodeInstanceFailed, fmt.Sprintf("the new instance failed to start; KubeVirt tries again: kubectl describe vm %s -n %s", s.ref.Name, s.ref.Namespace))
	}
	why := w.createTrouble(s.vm, s.known)
	if s.marks.held("refused instance", why != "", now) >= troublePatience {
		return failed(CodeInstanceRefused, fmt.Sprintf("KubeVirt can't start it again: %s; it keeps trying", why))
	}
	if s.marks.held("stopped", stopped(w.vm), now) >= settlePatience {
		return failed(CodeStoppedByOther, fmt.Sprintf("virtualmachine %s was stopped during the restart (run strategy %s): start it with virtctl start %s -n %s", s.ref, strategy(w.vm), s.ref.Name, s.ref.Namespace))
	}
	return d
}

// stopped says whether nobody is going to start the machine.
func stopped(vm *kubevirtv1.VirtualMachine) bool {
	switch strategy(vm) {
	case kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyWaitAsReceiver:
		return false
	}
	return len(vm.Status.StateChangeRequests) == 0 && vm.Status.PrintableStatus == kubevirtv1.VirtualMachineStatusStopped
}

func strategy(vm *kubevirtv1.VirtualMachine) kubevirtv1.VirtualMachineRunStrategy {
	s, err := vm.RunStrategy()
	if err != nil {
		return kubevirtv1.RunStrategyUnknown
	}
	return s
}

func (s *restartState) starting(w *world, now time.Time) decision {
	vmi := w.instance
	switch {
	case vmi.DeletionTimestamp != nil:
		return decision{phase: PhaseStarting, detail: "the new instance is being stopped again, not by this command", wake: time.Second}
	case vmi.Status.Phase == kubevirtv1.Failed || vmi.Status.Phase == kubevirtv1.Succeeded:
		return failed(CodeInstanceFailed, fmt.Sprintf("the new instance ended at once (%s): kubectl describe vmi %s -n %s", vmi.Status.Phase, s.ref.Name, s.ref.Namespace))
	}
	d := decision{phase: PhaseStarting, detail: "waiting for KubeVirt to create the new pod", wake: time.Second}
	pods := live(w.podsOf(vmi.UID))
	if len(pods) == 0 {
		why := w.createTrouble(vmi.UID, nil)
		if why == "" {
			why = syncTrouble(vmi)
		}
		if s.marks.held("refused pod", why != "", now) >= troublePatience {
			return failed(CodePodRefused, fmt.Sprintf("the new pod can't be created: %s; the reservation is unchanged and KubeVirt keeps trying", why))
		}
		return d
	}
	pod := pods[len(pods)-1]
	why := ""
	if len(pod.Status.PodIPs) == 0 && pod.Status.PodIP == "" {
		why = w.podTrouble(pod)
	}
	if s.marks.held("sandbox "+string(pod.UID), why != "", now) >= troublePatience {
		return failed(CodeSandboxFailed, fmt.Sprintf("the new pod %s on %s can't get its network: %s; the reservation is unchanged and the kubelet keeps trying", pod.Name, pod.Spec.NodeName, why))
	}
	switch reason := unschedulable(pod); {
	case pod.Spec.NodeName != "":
		d.detail = fmt.Sprintf("new pod %s on %s", pod.Name, pod.Spec.NodeName)
	case reason != "":
		d.detail = fmt.Sprintf("new pod %s finds no node: %s", pod.Name, reason)
	default:
		d.detail = fmt.Sprintf("new pod %s, not yet scheduled", pod.Name)
	}
	return d
}

// running verifies the new instance.
func (s *restartState) running(w *world, now time.Time) decision {
	pods := live(w.podsOf(w.instance.UID))
	var findings []finding
	var carrier *corev1.Pod
	switch len(pods) {
	case 0:
		// The watches of instance and pods are independent: the pod may be a moment late.
		findings = []finding{{code: CodeInstanceFailed, patience: reportPatience, waiting: "its pod", message: "the instance is Running but no pod carries it"}}
	case 1:
		carrier = pods[0]
		expect := onto(s.expect, w.instance)
		findings = append(checkPod(expect, carrier), checkInstance(expect, w.instance, s.agent)...)
	default:
		carrier = pods[len(pods)-1]
		findings = []finding{{code: CodeStrayPod, patience: reportPatience, waiting: "the second pod to finish", message: fmt.Sprintf("%d live pods carry the new instance: %s", len(pods), podNames(pods))}}
	}
	var past *stage
	if carrier != nil {
		past = &stage{PhaseStarting, fmt.Sprintf("new pod %s on %s", carrier.Name, carrier.Spec.NodeName)}
	}
	over, wake := s.marks.settle(findings, now)
	switch {
	case over != nil:
		return failed(over.code, "virtualmachine "+s.ref.String()+" runs again, but "+over.message)
	case wake > 0:
		return decision{phase: PhaseChecking, detail: "the new instance runs, " + waitingFor(findings), past: past, wake: wake}
	}
	said := summary(findings)
	if said == "" {
		said = "no reservation to check"
	}
	if s.again > 0 {
		said += fmt.Sprintf(" (somebody else restarted it %d more times meanwhile)", s.again)
	}
	return decision{phase: PhaseVerified, detail: said, past: past, end: &ending{outcome: v1alpha1.Done, message: said}}
}

// live are the pods that have not finished: those that may hold an address. A pod that is being
// deleted still does.
func live(pods []*corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		if !machine.Finished(p) {
			out = append(out, p)
		}
	}
	return out
}
