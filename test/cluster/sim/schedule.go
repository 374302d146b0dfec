package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	componentresource "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Why a node is no place for a pod, in kube-scheduler's words.
const (
	reasonUnschedulable        = "node(s) were unschedulable"
	reasonTaint                = "node(s) had untolerated taint(s)"
	reasonNodeAffinity         = "node(s) didn't match Pod's node affinity/selector"
	reasonPodAffinity          = "node(s) didn't match pod affinity rules"
	reasonPodAntiAffinity      = "node(s) didn't match pod anti-affinity rules"
	reasonExistingAntiAffinity = "node(s) didn't satisfy existing pods anti-affinity rules"
)

// unresolvable are the reasons that no other pod's absence would mend.
var unresolvable = map[string]bool{
	reasonUnschedulable: true, reasonTaint: true, reasonNodeAffinity: true, reasonPodAffinity: true,
}

// place is a node with the pods that are on it or on their way to it, finished ones left out.
type place struct {
	node *corev1.Node
	pods []*corev1.Pod
	used amounts
}

func (p *place) add(pod *corev1.Pod, requests amounts) {
	p.pods = append(p.pods, pod)
	if p.used == nil {
		p.used = amounts{}
	}
	for name, n := range requests {
		p.used[name] += n
	}
}

// amounts of resources: thousandths of a CPU, whole units of everything else.
type amounts map[corev1.ResourceName]int64

func requests(pod *corev1.Pod) amounts {
	a := amounts{}
	for name, q := range componentresource.PodRequests(pod, componentresource.PodResourcesOptions{}) {
		a[name] = amount(name, q)
	}
	return a
}

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// unfit says why no place took a pod.
type unfit struct {
	reasons []string // one or more for each place
	places  int
	// preempt is how many places could have been helped by evicting somebody.
	preempt int
}

func (u *unfit) Error() string {
	counts := map[string]int{}
	for _, r := range u.reasons {
		counts[r]++
	}
	var parts []string
	for r, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, r))
	}
	slices.Sort(parts)
	none := fmt.Sprintf("0/%d nodes are available", u.places)
	var preemption []string
	if u.preempt > 0 {
		preemption = append(preemption, fmt.Sprintf("%d No preemption victims found for incoming pod", u.preempt))
	}
	if n := u.places - u.preempt; n > 0 {
		preemption = append(preemption, fmt.Sprintf("%d Preemption is not helpful for scheduling", n))
	}
	slices.Sort(preemption)
	return fmt.Sprintf("%s: %s. preemption: %s: %s.", none, strings.Join(parts, ", "), none, strings.Join(preemption, ", "))
}

// choose returns the node with the fewest pods among those that fit.
func choose(pod *corev1.Pod, places []place) (string, *unfit) {
	u := &unfit{places: len(places)}
	var best *place
	for i := range places {
		reasons := misfits(pod, &places[i], places)
		if len(reasons) == 0 {
			if best == nil || cmp.Or(cmp.Compare(len(places[i].pods), len(best.pods)), cmp.Compare(places[i].node.Name, best.node.Name)) < 0 {
				best = &places[i]
			}
			continue
		}
		u.reasons = append(u.reasons, reasons...)
		if !slices.ContainsFunc(reasons, func(r string) bool { return unresolvable[r] }) {
			u.preempt++
		}
	}
	if best == nil {
		return "", u
	}
	return best.node.Name, nil
}

// misfits are the reasons against a place; like kube-scheduler's, they stop at the first filter that objects.
func misfits(pod *corev1.Pod, at *place, places []place) []string {
	tolerations := pod.Spec.Tolerations
	if at.node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(tolerations, &corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}) {
		return []string{reasonUnschedulable}
	}
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(at.node.Spec.Taints, tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}); untolerated {
		return []string{reasonTaint}
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(at.node); err != nil || !ok {
		return []string{reasonNodeAffinity}
	}
	if reasons := shortages(pod, at); len(reasons) > 0 {
		return reasons
	}
	for _, other := range at.pods {
		for _, term := range antiAffinity(other) {
			if matches(term, other.Namespace, pod) {
				return []string{reasonExistingAntiAffinity}
			}
		}
	}
	for _, term := range affinity(pod) {
		if !near(term, pod, at, places) && !firstOfItsKind(term, pod, places) {
			return []string{reasonPodAffinity}
		}
	}
	for _, term := range antiAffinity(pod) {
		if near(term, pod, at, places) {
			return []string{reasonPodAntiAffinity}
		}
	}
	return nil
}

// shortages are what a pod requests and a node has not got left.
func shortages(pod *corev1.Pod, at *place) []string {
	var reasons []string
	if n := at.node.Status.Allocatable.Pods(); !n.IsZero() && int64(len(at.pods)) >= n.Value() {
		reasons = append(reasons, "Too many pods")
	}
	for name, wanted := range requests(pod) {
		if wanted > 0 && at.used[name]+wanted > amount(name, at.node.Status.Allocatable[name]) {
			reasons = append(reasons, "Insufficient "+string(name))
		}
	}
	return reasons
}

func affinity(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func antiAffinity(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// near tells whether a pod that a term means is in the topology domain of a node.
func near(term corev1.PodAffinityTerm, pod *corev1.Pod, at *place, places []place) bool {
	domain, ok := at.node.Labels[term.TopologyKey]
	if !ok {
		return false
	}
	if term.TopologyKey == corev1.LabelHostname {
		places = []place{*at}
	}
	for _, p := range places {
		if p.node.Labels[term.TopologyKey] == domain && slices.ContainsFunc(p.pods, func(other *corev1.Pod) bool {
			return matches(term, pod.Namespace, other)
		}) {
			return true
		}
	}
	return false
}

// firstOfItsKind lets the first of a group of pods in that all want to be near each other.
func firstOfItsKind(term corev1.PodAffinityTerm, pod *corev1.Pod, places []place) bool {
	return matches(term, pod.Namespace, pod) && !slices.ContainsFunc(places, func(p place) bool {
		return slices.ContainsFunc(p.pods, func(other *corev1.Pod) bool { return matches(term, pod.Namespace, other) })
	})
}

// matches tells whether a term of a pod in namespace means another pod. A namespace selector that
// selects by labels is taken for one that selects all.
func matches(term corev1.PodAffinityTerm, namespace string, other *corev1.Pod) bool {
	namespaces := term.Namespaces
	if len(namespaces) == 0 && term.NamespaceSelector == nil {
		namespaces = []string{namespace}
	}
	if term.NamespaceSelector == nil && !slices.Contains(namespaces, other.Namespace) {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	return err == nil && selector.Matches(labels.Set(other.Labels))
}
