package sim

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// scheduler binds pods to nodes.
type scheduler struct {
	*cluster
	queue    *queue
	recorder record.EventRecorder

	mu sync.Mutex
	// assumed are pods whose binding the watch hasn't shown yet.
	assumed map[types.UID]*corev1.Pod
	// requests spares adding up the containers of every pod for every decision.
	requests map[types.UID]amounts
	// unschedulable are the keys of pods that wait for something to change.
	unschedulable map[string]struct{}
}

func newScheduler(c *cluster) *scheduler {
	s := &scheduler{
		cluster: c, recorder: c.recorder("default-scheduler", ""),
		assumed: map[types.UID]*corev1.Pod{}, requests: map[types.UID]amounts{}, unschedulable: map[string]struct{}{},
	}
	s.queue = newQueue(c.log.With("component", "scheduler"), 4, s.step)
	return s
}

func (s *scheduler) step(ctx context.Context, key string) (time.Duration, error) {
	pod := s.pod(key)
	if pod == nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || terminal(pod) || len(pod.Spec.SchedulingGates) > 0 {
		s.settled(key)
		return 0, nil
	}
	node, unfit := s.assume(key, pod)
	if unfit != nil {
		return s.refuse(ctx, pod, unfit)
	}
	if node == "" {
		return 0, nil
	}
	err := s.core.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		s.bound(pod)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return 0, nil // gone or bound: the watch will tell
		}
		return 0, err
	}
	s.settled(key)
	s.recorder.Eventf(pod, corev1.EventTypeNormal, "Scheduled", "Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
	return 0, nil
}

// assume decides, and keeps the place from the next decision on. An empty node means that the pod
// has one already.
func (s *scheduler) assume(key string, pod *corev1.Pod) (string, *unfit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.assumed[pod.UID]; ok {
		return "", nil
	}
	coming := map[string][]*corev1.Pod{}
	for _, p := range s.assumed {
		coming[p.Spec.NodeName] = append(coming[p.Spec.NodeName], p)
	}
	var places []place
	for _, obj := range s.nodes.GetStore().List() {
		p := place{node: obj.(*corev1.Node)}
		for _, other := range s.podsOn(p.node.Name) {
			if _, twice := s.assumed[other.UID]; !twice && !terminal(other) {
				p.add(other, s.requestsOf(other))
			}
		}
		for _, other := range coming[p.node.Name] {
			p.add(other, s.requestsOf(other))
		}
		places = append(places, p)
	}
	node, unfit := choose(pod, places)
	if unfit != nil {
		// Under the same lock as the look at the stores: no change falls between the two.
		s.unschedulable[key] = struct{}{}
		return "", unfit
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	s.assumed[pod.UID] = bound
	return node, nil
}

func (s *scheduler) requestsOf(pod *corev1.Pod) amounts {
	a, ok := s.requests[pod.UID]
	if !ok {
		a = requests(pod)
		s.requests[pod.UID] = a
	}
	return a
}

// refuse says on the pod why it waits.
func (s *scheduler) refuse(ctx context.Context, pod *corev1.Pod, why *unfit) (time.Duration, error) {
	_, err := patchPodStatus(ctx, s.core, pod, func(status *corev1.PodStatus) {
		setCondition(status, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why.Error(),
		})
	})
	if err != nil {
		return 0, err
	}
	s.recorder.Event(pod, corev1.EventTypeWarning, "FailedScheduling", why.Error())
	// kube-scheduler flushes its unschedulable pods after five minutes; changes come earlier.
	return 5 * time.Minute, nil
}

// bound takes note that a binding is known to the stores, or has failed.
func (s *scheduler) bound(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.assumed, pod.UID)
}

// forget is for a pod that is gone.
func (s *scheduler) forget(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.assumed, pod.UID)
	delete(s.requests, pod.UID)
	delete(s.unschedulable, key(pod))
}

func (s *scheduler) settled(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unschedulable, key)
}

// retryUnschedulable looks again at every pod that waits: a node or a pod has changed.
func (s *scheduler) retryUnschedulable() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.unschedulable {
		s.queue.add(key)
	}
	clear(s.unschedulable)
}

// sameForScheduling tells whether nothing has changed on a node that a waiting pod could wait for.
func sameForScheduling(a, b *corev1.Node) bool {
	return a.Spec.Unschedulable == b.Spec.Unschedulable &&
		equality.Semantic.DeepEqual(a.Spec.Taints, b.Spec.Taints) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable)
}
