package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// leftovers finds launcher pods that a migration has left running: its source after a success, its
// target after a failure. They are the machine's, and hold its address all the same.
func leftovers(e *estate) ([]Finding, []Skip) {
	var found []Finding
	for _, g := range e.machines {
		if g.VMI == nil || g.current == nil || g.Migrating() {
			continue
		}
		s := g.VMI.Status.MigrationState
		if s != nil && s.Completed && !s.Failed && s.EndTimestamp != nil && e.old(s.EndTimestamp.Time) {
			for _, p := range g.LivePods() {
				if p.Name == s.SourcePod && p.Name != g.current.Name && !machine.Provisioning(p) {
					found = append(found, e.leftover(SourcePodLingers, g, p, fmt.Sprintf("migration ended at %s", moment(s.EndTimestamp.Time))))
				}
			}
		}
		for _, p := range g.StrayTargets() {
			if e.old(ended(g, p)) {
				found = append(found, e.leftover(StrayMigrationTarget, g, p, "its migration failed or is gone"))
			}
		}
	}
	return found, nil
}

// ended is when the last migration of a guest ended, else when the pod was made.
func ended(g *guest, p *corev1.Pod) time.Time {
	if s := g.VMI.Status.MigrationState; s != nil && s.EndTimestamp != nil {
		return s.EndTimestamp.Time
	}
	return p.CreationTimestamp.Time
}

func (e *estate) leftover(code Code, g *guest, p *corev1.Pod, why string) Finding {
	f := e.about(code, g)
	f.Subject = v1alpha1.Subject{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
	f.Evidence = fmt.Sprintf("%s of %s still runs on %s, %s", p.Name, g, p.Spec.NodeName, why)
	if names := stillRunning(p); len(names) > 0 {
		f.Evidence += ", containers " + strings.Join(names, ", ") + " run"
	}
	for _, n := range g.nics {
		if addrs, _ := machine.PodAddresses(p, n.running); n.runs && len(addrs) > 0 {
			f.Interface = n.Name
			domain, _ := e.domainOf(n, podHint(p), addrs[0])
			f.at(domain, addrs[0])
			f.Evidence += ", holds " + address.Join(addrs)
			break
		}
	}
	e.remedy(&f, CheckOf(code).Remedy, "{pod}", p.Name)
	return f
}

// stillRunning are the containers that keep a pod from ending, where some have ended already.
func stillRunning(p *corev1.Pod) []string {
	var names []string
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running != nil {
			names = append(names, c.Name)
		}
	}
	if len(names) == len(p.Status.ContainerStatuses) {
		return nil
	}
	slices.Sort(names)
	return names
}
