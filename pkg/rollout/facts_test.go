package rollout

import (
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

func TestRestarting(t *testing.T) {
	stop := func(uid string) kubevirtv1.VirtualMachineStateChangeRequest {
		return kubevirtv1.VirtualMachineStateChangeRequest{Action: kubevirtv1.StopRequest, UID: new(uidOf(uid))}
	}
	start := kubevirtv1.VirtualMachineStateChangeRequest{Action: kubevirtv1.StartRequest}
	tests := []struct {
		name     string
		requests []kubevirtv1.VirtualMachineStateChangeRequest
		vmi      *kubevirtv1.VirtualMachineInstance
		want     bool
	}{
		{"nothing asked for", nil, vmi("i-1", "n1"), false},
		{"just asked for", []kubevirtv1.VirtualMachineStateChangeRequest{stop("i-1"), start}, vmi("i-1", "n1"), true},
		{"of an instance that is gone", []kubevirtv1.VirtualMachineStateChangeRequest{stop("i-0"), start}, vmi("i-1", "n1"), false},
		{"the instance is on its way out", []kubevirtv1.VirtualMachineStateChangeRequest{start}, vmi("i-1", "n1", deleting), true},
		{"the instance is gone", []kubevirtv1.VirtualMachineStateChangeRequest{start}, nil, true},
		{"a start of what runs", []kubevirtv1.VirtualMachineStateChangeRequest{start}, vmi("i-1", "n1"), false},
		{"a stop alone", []kubevirtv1.VirtualMachineStateChangeRequest{stop("i-1")}, vmi("i-1", "n1"), false},
		{"stopping by itself", nil, vmi("i-1", "n1", deleting), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := &machine.View{VM: vm(), VMI: tt.vmi}
			v.VM.Status.StateChangeRequests = tt.requests
			if got := restarting(v); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
