package audit_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// large is a cluster of n machines, all reserved and running, with five pods a machine and a pool
// for each hundred machines. One machine in a hundred has a finding.
func large(n int) *world {
	w := newWorld()
	w.Ledger.Pools, w.Ledger.Networks = nil, nil
	w.VMs = make([]kubevirtv1.VirtualMachine, 0, n)
	w.VMIs = make([]kubevirtv1.VirtualMachineInstance, 0, n)
	w.Pods = make([]corev1.Pod, 0, 5*n)
	for i := range n {
		block, host := i/100, i%100+10
		addr := fmt.Sprintf("10.%d.%d.%d", block/250, block%250, host)
		if host == 10 {
			w.pool(fmt.Sprintf("p%d", block), func(p *ledger.Pool) {
				p.CIDRs = []string{fmt.Sprintf("10.%d.%d.0/24", block/250, block%250)}
				p.Ranges, p.Exclude, p.Gateways = nil, nil, nil
			})
		}
		vm := w.vm(fmt.Sprintf("ns-%d/vm-%d", i%50, i))
		vm.UID = types.UID(fmt.Sprintf("u-%d", i))
		names(vm, addr)
		w.row(addr, vm.Namespace+"/"+vm.Name, vm.UID)
		w.start(vm, fmt.Sprintf("n%d", i%3+1), addr)
		if host == 50 {
			delete(vm.Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
		}
		for k := range 4 {
			w.pod(fmt.Sprintf("ns-%d/pod-%d-%d", i%50, i, k), "n1", fmt.Sprintf("172.%d.%d.%d", 16+i/62500, i/250%250, i%250))
		}
	}
	return w
}

// The time a machine should be the same at each size.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		w := large(n)
		b.Run(fmt.Sprintf("%d-VMs", n), func(b *testing.B) {
			for b.Loop() {
				if r := audit.Run(&w.Snapshot, w.Options); len(r.Findings) != n/100 {
					b.Fatalf("%d findings, want %d", len(r.Findings), n/100)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/VM")
		})
	}
}
