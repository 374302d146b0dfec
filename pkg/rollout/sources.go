package rollout

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// client is the list and watch of one typed client.
type client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func newSource[L runtime.Object](name string, k kind, c client[L], selector metav1.ListOptions) source {
	return source{
		name: name, kind: k, selector: selector,
		list: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, opts)
		},
		watch: c.Watch,
	}
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
}

func (d Deps) machineSource(ref machine.Ref) source {
	return newSource("virtualmachine", kindVM, d.KubeVirt.KubevirtV1().VirtualMachines(ref.Namespace), named(ref.Name))
}

func (d Deps) instanceSource(ref machine.Ref) source {
	return newSource("instance", kindInstance, d.KubeVirt.KubevirtV1().VirtualMachineInstances(ref.Namespace), named(ref.Name))
}

func (d Deps) migrationSource(namespace, name string) source {
	return newSource("migration", kindMigration, d.KubeVirt.KubevirtV1().VirtualMachineInstanceMigrations(namespace), named(name))
}

func podsName(instance types.UID) string { return "pods of " + string(instance) }

// podSource bounds the watch by the label that KubeVirt puts on all launcher pods of an instance
// and lets nobody else put there; whose they are is decided by owner references.
func (d Deps) podSource(namespace string, instance types.UID) source {
	selector := labels.Set{kubevirtv1.CreatedByLabel: string(instance)}.String()
	return newSource(podsName(instance), kindPods, d.Core.CoreV1().Pods(namespace), metav1.ListOptions{LabelSelector: selector})
}

func eventsName(object string) string { return "events of " + object }

// eventSource has the warnings about all objects of one name: the machine and its instance share
// theirs. Whoever may not read events does without.
func (d Deps) eventSource(namespace, object string) source {
	selector := fields.Set{"involvedObject.name": object, "type": "Warning"}.AsSelector().String()
	s := newSource(eventsName(object), kindEvents, d.Core.CoreV1().Events(namespace), metav1.ListOptions{FieldSelector: selector})
	s.optional = true
	return s
}
