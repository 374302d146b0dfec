package preflight

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Codes of this file.
const (
	CodeNodeUnreachable   = "NodeUnreachable"
	CodeNoMigrationTarget = "NoMigrationTarget"
)

// NodeUnreachable refuses while a node that may run the machine can't be asked: the API can't tell a
// dead node from one that is cut off, where the guest still answers for its address. The user's word
// or the out-of-service taint settles it.
func NodeUnreachable(f *Facts) []Verdict {
	names := f.nodesOfMachine()
	if len(names) == 0 || f.NodeFenced {
		return nil
	}
	if f.NodesErr != nil {
		return []Verdict{f.verdict(Unverified, CodeNodeUnreachable, "", "whether node %s is reachable is unknown: %v", strings.Join(names, ", "), f.NodesErr)}
	}
	if f.Nodes == nil {
		return nil
	}
	var list []Verdict
	for _, name := range names {
		why := "node " + name + " does not exist any more"
		if n := slices.IndexFunc(f.Nodes, func(n corev1.Node) bool { return n.Name == name }); n >= 0 {
			if why = unreachable(&f.Nodes[n]); why == "" {
				continue
			}
		}
		list = append(list, f.verdict(Refuse, CodeNodeUnreachable, "make sure that the node is off, then set the taint "+corev1.TaintNodeOutOfService+" on it or give --node-fenced", "%s: the machine may still be running there", why))
	}
	return list
}

// nodesOfMachine are the nodes that the instance or a live pod of it is on.
func (f *Facts) nodesOfMachine() []string {
	var names []string
	if f.View.Started() {
		names = append(names, f.View.VMI.Status.NodeName)
	}
	for _, p := range f.View.LivePods() {
		names = append(names, p.Spec.NodeName)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s == "" })
}

// unreachable says why nothing can be known about what runs on a node, "" where it can. A node that
// reports to be not ready still reports.
func unreachable(n *corev1.Node) string {
	if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
		return ""
	}
	if ready(n) != corev1.ConditionUnknown {
		return ""
	}
	return "node " + n.Name + " is unreachable"
}

func ready(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// NoTarget refuses a migration that no node could take: KubeVirt would create it, and it would hang
// until its pod times out.
func NoTarget(f *Facts) []Verdict {
	if f.View.VMI == nil {
		return nil
	}
	if f.NodesErr != nil {
		return []Verdict{f.verdict(Unverified, CodeNoMigrationTarget, "", "whether another node can take the machine is unknown: %v", f.NodesErr)}
	}
	if f.Nodes == nil {
		return nil
	}
	var reasons []string
	found := false
	for n := range f.Nodes {
		node := &f.Nodes[n]
		why := unfit(node, f.View.VMI)
		switch {
		case why != "":
			reasons = append(reasons, node.Name+" "+why)
		case f.ToNode == "" || f.ToNode == node.Name:
			found = true
		}
		if f.ToNode == node.Name && why != "" {
			return []Verdict{f.verdict(Refuse, CodeNoMigrationTarget, "choose another node, or none", "node %s can't take the machine: it %s", node.Name, why)}
		}
	}
	switch {
	case found:
		return nil
	case f.ToNode != "":
		return []Verdict{f.verdict(Refuse, CodeNoMigrationTarget, "choose another node, or none", "node %s does not exist", f.ToNode)}
	}
	const shown = 5
	if len(reasons) > shown {
		reasons = append(reasons[:shown], fmt.Sprintf("and %d more", len(reasons)-shown))
	}
	return []Verdict{f.verdict(Refuse, CodeNoMigrationTarget, "", "no other node can take the machine: %s", strings.Join(reasons, "; "))}
}

// unfit says why the scheduler would not put a target pod on the node, "" where it might. Free
// resources and pod affinity are not looked at.
func unfit(n *corev1.Node, vmi *kubevirtv1.VirtualMachineInstance) string {
	switch {
	case n.Name == vmi.Status.NodeName:
		return "is where it runs"
	case n.Spec.Unschedulable:
		return "is cordoned"
	case ready(n) != corev1.ConditionTrue:
		return "is not ready"
	case n.Labels[kubevirtv1.NodeSchedulable] != "true":
		return "is not schedulable for KubeVirt (label " + kubevirtv1.NodeSchedulable + ")"
	}
	for _, k := range sortedKeys(vmi.Spec.NodeSelector) {
		if v := vmi.Spec.NodeSelector[k]; n.Labels[k] != v {
			return fmt.Sprintf("lacks label %s=%s of the node selector", k, v)
		}
	}
	if !fits(n, vmi.Spec.Affinity) {
		return "does not match the node affinity"
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(vmi.Spec.Tolerations, func(o corev1.Toleration) bool { return o.ToleratesTaint(&t) }) {
			return "has taint " + t.Key
		}
	}
	return ""
}

// fits evaluates the required node affinity: one of its terms has to match.
func fits(n *corev1.Node, a *corev1.Affinity) bool {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false // an empty term matches nothing
		}
		return matches(t.MatchExpressions, n.Labels) && matches(t.MatchFields, labels.Set{"metadata.name": n.Name})
	})
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

func matches(list []corev1.NodeSelectorRequirement, set labels.Set) bool {
	for _, r := range list {
		req, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil || !req.Matches(set) {
			return false
		}
	}
	return true
}
