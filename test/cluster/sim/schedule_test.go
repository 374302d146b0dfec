package sim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: nodeLabels(name)}}
	n.Status.Allocatable = nodeResources()
	for _, c := range change {
		c(n)
	}
	return n
}

func testPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func labelled(k, v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{k: v} }
}

func term(k, v string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{k: v}}, TopologyKey: corev1.LabelHostname}
}

func away(k, v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(k, v)}}}
	}
}

func together(k, v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(k, v)}}}
	}
}

func wants(name corev1.ResourceName, n string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(n)}
	}
}

func TestChoose(t *testing.T) {
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}
	}
	zone := func(z string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = z }
	}
	at := func(n *corev1.Node, pods ...*corev1.Pod) place {
		p := place{node: n}
		for _, pod := range pods {
			p.add(pod, requests(pod))
		}
		return p
	}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		places []place
		want   string
		why    string
	}{
		"fewest pods": {
			pod:    testPod("p"),
			places: []place{at(testNode("n1"), testPod("x")), at(testNode("n2")), at(testNode("n3"))},
			want:   "n2",
		},
		"no nodes": {pod: testPod("p"), why: "0/0 nodes are available: . preemption: 0/0 nodes are available: ."},
		"cordon, taint and selector": {
			pod:    testPod("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n9"} }),
			places: []place{at(testNode("n1", cordoned)), at(testNode("n2", tainted)), at(testNode("n3"))},
			why: "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable. " +
				"preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
		},
		"tolerated": {
			pod:    testPod("p", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }),
			places: []place{at(testNode("n1", cordoned, tainted))},
			want:   "n1",
		},
		"anti-affinity": {
			pod:    testPod("p", away("vmi", "1")),
			places: []place{at(testNode("n1"), testPod("x", labelled("vmi", "1"))), at(testNode("n2"), testPod("y"), testPod("z"))},
			want:   "n2",
		},
		"anti-affinity everywhere": {
			pod:    testPod("p", away("vmi", "1")),
			places: []place{at(testNode("n1"), testPod("x", labelled("vmi", "1")))},
			why: "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. " +
				"preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
		"anti-affinity means its own namespace": {
			pod:    testPod("p", away("vmi", "1")),
			places: []place{at(testNode("n1"), testPod("x", labelled("vmi", "1"), func(p *corev1.Pod) { p.Namespace = "b" }))},
			want:   "n1",
		},
		"anti-affinity of the others": {
			pod:    testPod("p", labelled("vmi", "1")),
			places: []place{at(testNode("n1"), testPod("x", away("vmi", "1"))), at(testNode("n2"), testPod("y"), testPod("z"))},
			want:   "n2",
		},
		"anti-affinity over a zone": {
			pod: testPod("p", away("vmi", "1"), func(p *corev1.Pod) {
				p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = corev1.LabelTopologyZone
			}),
			places: []place{at(testNode("n1", zone("a"))), at(testNode("n2", zone("a")), testPod("x", labelled("vmi", "1"))), at(testNode("n3", zone("b")), testPod("y"))},
			want:   "n3",
		},
		"affinity": {
			pod:    testPod("p", together("app", "x")),
			places: []place{at(testNode("n1")), at(testNode("n2"), testPod("x", labelled("app", "x")))},
			want:   "n2",
		},
		"affinity to nobody": {
			pod:    testPod("p", together("app", "x")),
			places: []place{at(testNode("n1"))},
			why: "0/1 nodes are available: 1 node(s) didn't match pod affinity rules. " +
				"preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
		},
		"affinity to itself": {
			pod:    testPod("p", labelled("app", "x"), together("app", "x")),
			places: []place{at(testNode("n1"))},
			want:   "n1",
		},
		"resources": {
			pod:    testPod("p", wants("devices.kubevirt.io/kvm", "6k")),
			places: []place{at(testNode("n1"), testPod("x", wants("devices.kubevirt.io/kvm", "6k"))), at(testNode("n2"), testPod("y"), testPod("z"))},
			want:   "n2",
		},
		"unknown resource": {
			pod:    testPod("p", wants("devices.kubevirt.io/sev", "1")),
			places: []place{at(testNode("n1"))},
			why: "0/1 nodes are available: 1 Insufficient devices.kubevirt.io/sev. " +
				"preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, unfit := choose(c.pod, c.places)
			switch {
			case c.why == "" && (unfit != nil || got != c.want):
				t.Errorf("got %q, %v; want %s", got, unfit, c.want)
			case c.why != "" && (unfit == nil || unfit.Error() != c.why):
				t.Errorf("got %q, %v; want %s", got, unfit, c.why)
			}
		})
	}
}
