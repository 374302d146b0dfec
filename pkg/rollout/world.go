package rollout

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// kind is what a source fills.
type kind int

const (
	kindVM kind = iota
	kindInstance
	kindMigration
	kindPods
	kindEvents
)

// world is what has been observed of one machine: plain objects, for the pure part to look at.
type world struct {
	vm        *kubevirtv1.VirtualMachine
	instance  *kubevirtv1.VirtualMachineInstance
	migration *kubevirtv1.VirtualMachineInstanceMigration
	// departed is a migration as it was when it was removed: one that is being deleted ends and
	// vanishes in the same moment.
	departed *kubevirtv1.VirtualMachineInstanceMigration
	pods     map[types.UID]*corev1.Pod
	// events are of the objects that are watched for them, by the event's UID.
	events map[types.UID]*corev1.Event
	// loaded has the names of the sources whose first list has come.
	loaded map[string]bool
	// owner is which source an event came from, so that a list replaces its own only.
	owner map[types.UID]string
}

func newWorld() *world {
	return &world{
		pods: map[types.UID]*corev1.Pod{}, events: map[types.UID]*corev1.Event{},
		loaded: map[string]bool{}, owner: map[types.UID]string{},
	}
}

// replace makes the items everything that there is of a source.
func (w *world) replace(s source, items []runtime.Object) {
	w.loaded[s.name] = true
	switch s.kind {
	case kindVM:
		w.vm = nil
	case kindInstance:
		w.instance = nil
	case kindMigration:
		w.migration = nil
	case kindPods:
		clear(w.pods)
	case kindEvents:
		for uid, from := range w.owner {
			if from == s.name {
				delete(w.events, uid)
				delete(w.owner, uid)
			}
		}
	}
	for _, item := range items {
		w.put(s, item)
	}
}

func (w *world) put(s source, item runtime.Object) {
	switch o := item.(type) {
	case *kubevirtv1.VirtualMachine:
		w.vm = o
	case *kubevirtv1.VirtualMachineInstance:
		w.instance = o
	case *kubevirtv1.VirtualMachineInstanceMigration:
		w.migration = o
	case *corev1.Pod:
		w.pods[o.UID] = o
	case *corev1.Event:
		w.events[o.UID], w.owner[o.UID] = o, s.name
	}
}

func (w *world) remove(s source, item runtime.Object) {
	about, err := meta.Accessor(item)
	if err != nil {
		return
	}
	uid := about.GetUID()
	switch {
	case s.kind == kindVM && w.vm != nil && w.vm.UID == uid:
		w.vm = nil
	case s.kind == kindInstance && w.instance != nil && w.instance.UID == uid:
		w.instance = nil
	case s.kind == kindMigration && w.migration != nil && w.migration.UID == uid:
		w.migration = nil
		w.departed, _ = item.(*kubevirtv1.VirtualMachineInstanceMigration)
	case s.kind == kindPods:
		delete(w.pods, uid)
	case s.kind == kindEvents:
		// Events expire; what they said stays true.
	}
}

// podsOf returns the pods of the instance that carry its guest or are about to, the oldest first.
// Labels only bound the watch, owner references decide.
func (w *world) podsOf(instance types.UID) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, p := range w.pods {
		if o := metav1.GetControllerOf(p); o != nil && o.UID == instance && !machine.Provisioning(p) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// versions returns the events that are there, to tell later ones from them.
func (w *world) versions() map[types.UID]string {
	known := make(map[types.UID]string, len(w.events))
	for uid, e := range w.events {
		known[uid] = e.ResourceVersion
	}
	return known
}
