package rollout

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

func newRestart() *restartState {
	return &restartState{ref: db1, vm: "u-db1", old: "i-old", expect: expected("198.51.100.20")}
}

// TestRestart drives the state machine through what the watches may show, in order.
func TestRestart(t *testing.T) {
	always, halted, manual := kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyHalted, kubevirtv1.RunStrategyManual
	tests := []struct {
		name  string
		state func(*restartState)
		moves []move
	}{
		{"it goes well", nil, []move{
			see(vm(), vmi("i-old", "n1"), pod("old", "i-old", "n1", "198.51.100.20")).want(PhaseStopping, "old pod old on n1"),
			see(vm(), vmi("i-old", "n1", deleting), pod("old", "i-old", "n1", "198.51.100.20")).want(PhaseStopping, "up to 180s to shut down"),
			see(vm()).want(PhaseStarting, "waiting for KubeVirt to start the new one"),
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling))).want(PhaseStarting, "create the new pod"),
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling)), pod("new", "i-new", "")).want(PhaseStarting, "new pod new, not yet scheduled"),
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling)), pod("new", "i-new", "n2")).want(PhaseStarting, "new pod new on n2"),
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).done("pod 198.51.100.20 = reservation, guest unknown"),
		}},
		{"the watch slept through all of it", nil, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).done("pod 198.51.100.20 = reservation"),
		}},
		{"pods come after the instance", nil, []move{
			see(vm(), vmi("i-new", "n2")).want(PhaseChecking, "waiting for its pod"),
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).done(""),
		}},
		{"C30: another address", nil, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.77")).failed(CodeWrongAddress, "has 198.51.100.77 on interface default, reserved is 198.51.100.20"),
		}},
		{"C26: the sandbox fails for good", nil, []move{
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling)), pod("new", "i-new", "n2"), event("e1", "p-new", "FailedCreatePodSandBox", "198.51.100.20: Address already assigned in block")).want(PhaseStarting, "new pod new on n2"),
			later(4*time.Second).want(PhaseStarting, "new pod new on n2"),
			later(2*time.Second).failed(CodeSandboxFailed, "Address already assigned in block"),
		}},
		{"the sandbox fails once", nil, []move{
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling)), pod("new", "i-new", "n2"), event("e1", "p-new", "FailedCreatePodSandBox", "try again")).want(PhaseStarting, ""),
			later(4*time.Second).want(PhaseStarting, ""),
			see(vm(), vmi("i-new", "n2", phase(kubevirtv1.Scheduled)), pod("new", "i-new", "n2", "198.51.100.20"), event("e1", "p-new", "FailedCreatePodSandBox", "try again")).want(PhaseStarting, ""),
			later(20*time.Second).want(PhaseStarting, ""),
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).done(""),
		}},
		{"C27: admission refuses the pod", nil, []move{
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Pending)), event("e1", "i-new", "FailedCreate", "Error creating pod: denied the request: annotation static-ip 198.51.100.20 is conflict with ip crd db-1.tenant-a")).want(PhaseStarting, ""),
			later(6*time.Second).failed(CodePodRefused, "is conflict with ip crd db-1.tenant-a"),
		}},
		{"C27: and events may not be read", nil, []move{
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Pending), unsynchronized("failed to create virtual machine pod: denied the request"))).want(PhaseStarting, ""),
			later(6*time.Second).failed(CodePodRefused, "denied the request"),
		}},
		{"admission refuses the instance", nil, []move{
			see(vm(), event("e1", "u-db1", "FailedCreate", "Error creating virtual machine instance: denied")).want(PhaseStarting, ""),
			later(6*time.Second).failed(CodeInstanceRefused, "denied"),
		}},
		{"an event of last week", func(s *restartState) { s.known = newWorldOf(event("e1", "u-db1", "FailedCreate", "x")).versions() }, []move{
			see(vm(), event("e1", "u-db1", "FailedCreate", "x")).want(PhaseStarting, ""),
			later(time.Minute).want(PhaseStarting, ""),
		}},
		{"the machine is deleted", nil, []move{
			see(vmi("i-old", "n1", deleting)).failed(CodeMachineDeleted, "virtualmachine tenant-a/db-1 was deleted"),
		}},
		{"the machine is recreated", nil, []move{
			see(vm(func(v *kubevirtv1.VirtualMachine) { v.UID = "u-db1-again" }), vmi("i-new", "n1")).failed(CodeMachineDeleted, ""),
		}},
		{"second actor stops it", nil, []move{
			see(vm(strategyOf(halted), printed(kubevirtv1.VirtualMachineStatusStopped))).want(PhaseStarting, ""),
			later(6*time.Second).failed(CodeStoppedByOther, "run strategy Halted"),
		}},
		{"Manual and the start request is still there", nil, []move{
			see(vm(strategyOf(manual), printed(kubevirtv1.VirtualMachineStatusStopped), requested(kubevirtv1.StartRequest))).want(PhaseStarting, ""),
			later(time.Minute).want(PhaseStarting, ""),
		}},
		{"Manual and nobody will start it", nil, []move{
			see(vm(strategyOf(manual), printed(kubevirtv1.VirtualMachineStatusStopped))).want(PhaseStarting, ""),
			later(6*time.Second).failed(CodeStoppedByOther, ""),
		}},
		{"Always with status Stopped for a moment", nil, []move{
			see(vm(strategyOf(always), printed(kubevirtv1.VirtualMachineStatusStopped))).want(PhaseStarting, ""),
			later(time.Minute).want(PhaseStarting, ""),
		}},
		{"second actor restarts it again", nil, []move{
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling)), pod("new", "i-new", "n2")).want(PhaseStarting, ""),
			see(vm()).want(PhaseStarting, ""),
			see(vm(), vmi("i-newer", "n3"), pod("newer", "i-newer", "n3", "198.51.100.20")).done("somebody else restarted it 1 more times"),
		}},
		{"the new instance fails", nil, []move{
			see(vm(), vmi("i-new", "n2", phase(kubevirtv1.Failed))).failed(CodeInstanceFailed, "ended at once (Failed)"),
		}},
		{"the new instance is stopped while it starts", nil, []move{
			see(vm(), vmi("i-new", "n2", phase(kubevirtv1.Failed), deleting)).want(PhaseStarting, "being stopped again"),
			see(vm()).want(PhaseStarting, ""),
			see(vm(), vmi("i-newer", "n2"), pod("newer", "i-newer", "n2", "198.51.100.20")).done(""),
		}},
		{"the new instance failed between two looks", nil, []move{
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling))).want(PhaseStarting, ""),
			see(vm(startFailure("i-new"))).failed(CodeInstanceFailed, "failed to start"),
		}},
		{"no node fits", nil, []move{
			see(vm(), vmi("i-new", "", phase(kubevirtv1.Scheduling)), pod("new", "i-new", "", func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
			})).want(PhaseStarting, "new pod new finds no node: 0/3 nodes are available"),
		}},
		{"two pods carry it", nil, []move{
			see(vm(), vmi("i-new", "n2"), pod("a", "i-new", "n2", "198.51.100.20"), pod("b", "i-new", "n3", "198.51.100.20")).want(PhaseChecking, ""),
			later(16*time.Second).failed(CodeStrayPod, "2 live pods"),
		}},
		{"C46: finished pods don't count", nil, []move{
			see(vm(), vmi("i-new", "n2"), pod("a", "i-new", "n2", "198.51.100.20"), pod("b", "i-new", "n3", "198.51.100.20", ended(corev1.PodFailed))).done(""),
		}},
		{"pods of another instance don't count", nil, []move{
			see(vm(), vmi("i-new", "n2"), pod("a", "i-new", "n2", "198.51.100.20"), pod("b", "i-other", "n3", "198.51.100.20")).done(""),
		}},
		{"C28: the guest keeps its lease", nil, []move{
			see(vm(), vmi("i-new", "n2", guest("198.51.100.76")), pod("new", "i-new", "n2", "198.51.100.20")).want(PhaseChecking, ""),
			later(31*time.Second).failed(CodeGuestMismatch, "the guest reports 198.51.100.76"),
		}},
		{"C28: the guest renews it", nil, []move{
			see(vm(), vmi("i-new", "n2", guest("198.51.100.76")), pod("new", "i-new", "n2", "198.51.100.20")).want(PhaseChecking, ""),
			later(20*time.Second).want(PhaseChecking, ""),
			see(vm(), vmi("i-new", "n2", guest("198.51.100.20", "172.17.0.1")), pod("new", "i-new", "n2", "198.51.100.20")).done("guest reports an address"),
		}},
		{"C07: the guest stays dark", nil, []move{
			see(vm(), vmi("i-new", "n2", guest()), pod("new", "i-new", "n2", "198.51.100.20")).want(PhaseChecking, "the guest to take its address"),
			later(31*time.Second).failed(CodeGuestNoAddress, "the guest reports no IPv4 address on interface default"),
		}},
		{"C17: a guest without IPv6 is no failure", func(s *restartState) { s.expect = expected("198.51.100.20", "2001:db8::20") }, []move{
			see(vm(), vmi("i-new", "n2", guest("198.51.100.20")), pod("new", "i-new", "n2", "198.51.100.20", "2001:db8::20")).done("guest reports an address"),
		}},
		{"C24: under masquerade the guest has its own address", func(s *restartState) { s.expect[0].Interface.Binding = machine.Masquerade }, []move{
			see(vm(), vmi("i-new", "n2", masquerade, guest("10.0.2.2")), pod("new", "i-new", "n2", "198.51.100.20")).done("pod 198.51.100.20 = reservation"),
		}},
		{"a guest that had an agent is waited for", func(s *restartState) { s.agent = true }, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).want(PhaseChecking, ""),
			see(vm(), vmi("i-new", "n2", guest("198.51.100.20")), pod("new", "i-new", "n2", "198.51.100.20")).done("guest reports an address"),
		}},
		{"but not for ever", func(s *restartState) { s.agent = true }, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).want(PhaseChecking, ""),
			later(61 * time.Second).done("guest unknown"),
		}},
		{"C07: another MAC", func(s *restartState) { s.expect[0].MAC = "02:00:00:00:00:20" }, []move{
			see(vm(), vmi("i-new", "n2", mac("02:00:00:00:00:99")), pod("new", "i-new", "n2", "198.51.100.20")).failed(CodeWrongMAC, "has MAC 02:00:00:00:00:99, the ledger has 02:00:00:00:00:20"),
		}},
		{"the MAC comes late", func(s *restartState) { s.expect[0].MAC = "02:00:00:00:00:20" }, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).want(PhaseChecking, ""),
			see(vm(), vmi("i-new", "n2", mac("02:00:00:00:00:20")), pod("new", "i-new", "n2", "198.51.100.20")).done(""),
		}},
		{"one of two families is missing", func(s *restartState) { s.expect = expected("198.51.100.20", "2001:db8::20") }, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).failed(CodeWrongAddress, "has 198.51.100.20"),
		}},
		{"both families", func(s *restartState) { s.expect = expected("198.51.100.20", "2001:db8::20") }, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20", "2001:db8::20")).done("pod 198.51.100.20,2001:db8::20 = reservation"),
		}},
		{"a family that nobody reserved", nil, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20", "2001:db8::99")).done(""),
		}},
		{"nothing is reserved", func(s *restartState) { s.expect = nil }, []move{
			see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).done("no reservation to check"),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newRestart()
			if tt.state != nil {
				tt.state(s)
			}
			play(t, s, tt.moves)
		})
	}
}

func TestSourcesOrderDoesNotMatter(t *testing.T) {
	// The instance's watch is behind: it still shows the old one, while the pods are the new ones.
	s := newRestart()
	play(t, s, []move{
		see(vm(), vmi("i-old", "n1", deleting), pod("new", "i-new", "n2", "198.51.100.20")).want(PhaseStopping, ""),
		see(vm(), vmi("i-new", "n2"), pod("new", "i-new", "n2", "198.51.100.20")).done(""),
	})
	if s.again != 0 {
		t.Errorf("again = %d", s.again)
	}
}

func startFailure(uid string) func(*kubevirtv1.VirtualMachine) {
	return func(v *kubevirtv1.VirtualMachine) {
		v.Status.StartFailure = &kubevirtv1.VirtualMachineStartFailure{ConsecutiveFailCount: 1, LastFailedVMIUID: uidOf(uid)}
	}
}
