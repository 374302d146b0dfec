package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

const kubeSystem = "kube-system"

// kube is a driver's way to the API server.
type kube struct {
	core kubernetes.Interface
	crds apiextensions.Interface
	dyn  dynamic.Interface

	vms  table[machine]
	vmis table[instance]
}

func newKube(cfg *rest.Config) (*kube, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // every node is a client of its own in a real cluster
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	crds, err := apiextensions.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	k := &kube{core: core, crds: crds, dyn: dyn}
	k.vms = newTable[machine](k, schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}, "VirtualMachine")
	k.vmis = newTable[instance](k, schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}, "VirtualMachineInstance")
	return k, nil
}

// machine is what plugins read of a VirtualMachine.
type machine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// instance is what plugins read of a VirtualMachineInstance.
type instance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		MigrationState *struct {
			TargetPod            string       `json:"targetPod,omitempty"`
			DomainReadyTimestamp *metav1.Time `json:"targetNodeDomainReadyTimestamp,omitempty"`
		} `json:"migrationState,omitempty"`
	} `json:"status"`
}

// settings is a configuration object that no driver reads.
type settings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              map[string]any `json:"spec"`
}

// owner returns the owner reference of a kind of KubeVirt's.
func owner(o metav1.Object, kind string) *metav1.OwnerReference {
	for _, r := range o.GetOwnerReferences() {
		if r.APIVersion == "kubevirt.io/v1" && r.Kind == kind {
			return &r
		}
	}
	return nil
}

// table is one resource of the API, its objects as a struct of this package. Objects carry their
// resourceVersion through update, so every change is a compare and swap.
type table[T any] struct {
	client dynamic.NamespaceableResourceInterface
	gvr    schema.GroupVersionResource
	kind   schema.GroupVersionKind
}

func newTable[T any](k *kube, gvr schema.GroupVersionResource, kind string) table[T] {
	return table[T]{client: k.dyn.Resource(gvr), gvr: gvr, kind: gvr.GroupVersion().WithKind(kind)}
}

func (t table[T]) get(ctx context.Context, namespace, name string) (*T, error) {
	u, err := t.client.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	return t.decode(u, err)
}

// list returns the objects of a namespace, of all for "", sorted by name as the server sorts them.
func (t table[T]) list(ctx context.Context, namespace string) ([]T, error) {
	l, err := t.client.Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	items := make([]T, len(l.Items))
	for i := range l.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(l.Items[i].Object, &items[i]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func (t table[T]) create(ctx context.Context, namespace string, o *T) (*T, error) {
	u, err := t.encode(o)
	if err != nil {
		return nil, err
	}
	return t.decode(t.client.Namespace(namespace).Create(ctx, u, metav1.CreateOptions{}))
}

func (t table[T]) update(ctx context.Context, namespace string, o *T) (*T, error) {
	u, err := t.encode(o)
	if err != nil {
		return nil, err
	}
	return t.decode(t.client.Namespace(namespace).Update(ctx, u, metav1.UpdateOptions{}))
}

func (t table[T]) updateStatus(ctx context.Context, namespace string, o *T) (*T, error) {
	u, err := t.encode(o)
	if err != nil {
		return nil, err
	}
	return t.decode(t.client.Namespace(namespace).UpdateStatus(ctx, u, metav1.UpdateOptions{}))
}

// patch is a merge patch. It compares nothing unless it names a resourceVersion.
func (t table[T]) patch(ctx context.Context, namespace, name string, patch any, subresource ...string) error {
	b, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = t.client.Namespace(namespace).Patch(ctx, name, types.MergePatchType, b, metav1.PatchOptions{}, subresource...)
	return err
}

func (t table[T]) delete(ctx context.Context, namespace, name string, p ...metav1.Preconditions) error {
	o := metav1.DeleteOptions{}
	if len(p) > 0 {
		o.Preconditions = &p[0]
	}
	return ignoreNotFound(t.client.Namespace(namespace).Delete(ctx, name, o))
}

// ensure creates an object where there is none. What is there is left alone: its owner may have changed it.
func (t table[T]) ensure(ctx context.Context, namespace string, o *T) error {
	_, err := t.create(ctx, namespace, o)
	return ignoreExists(err)
}

func (t table[T]) encode(o *T) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(t.kind)
	return u, nil
}

func (t table[T]) decode(u *unstructured.Unstructured, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	o := new(T)
	return o, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o)
}

// ensureCRDs creates definitions and waits until the API server serves them.
func (k *kube) ensureCRDs(ctx context.Context, defs ...crd) error {
	client := k.crds.ApiextensionsV1().CustomResourceDefinitions()
	for _, d := range defs {
		if _, err := client.Create(ctx, d.object(), metav1.CreateOptions{}); ignoreExists(err) != nil {
			return fmt.Errorf("customresourcedefinition %s: %w", d.name(), err)
		}
	}
	for _, d := range defs {
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
			o, err := client.Get(ctx, d.name(), metav1.GetOptions{})
			return err == nil && d.established(o), ignoreNotFound(err)
		}); err != nil {
			return fmt.Errorf("customresourcedefinition %s is not served: %w", d.name(), err)
		}
	}
	return nil
}

func (k *kube) ensureNamespace(ctx context.Context, name string) error {
	_, err := k.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return ignoreExists(err)
}

func (k *kube) ensureConfigMap(ctx context.Context, m *corev1.ConfigMap) error {
	_, err := k.core.CoreV1().ConfigMaps(m.Namespace).Create(ctx, m, metav1.CreateOptions{})
	return ignoreExists(err)
}

// withoutFinalizer is the patch that takes one finalizer from an object and leaves others'.
func withoutFinalizer(finalizers []string, name string) any {
	left := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == name })
	return map[string]any{"metadata": map[string]any{"finalizers": left}}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// raced says that somebody else changed or created the object first.
func raced(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// swap repeats f, which reads and writes, until nobody came between.
func swap(ctx context.Context, f func() error) error {
	b := wait.Backoff{Steps: 100, Duration: 2 * time.Millisecond, Factor: 1.1, Jitter: 1, Cap: 100 * time.Millisecond}
	return retry.OnError(b, func(err error) bool { return ctx.Err() == nil && raced(err) }, f)
}

// background calls f at once and then every period, until ctx ends. An error of one round is
// the next round's business, as it is in a controller.
func background(ctx context.Context, period time.Duration, f func(context.Context) error) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { _ = f(ctx) }, period)
}

// persist tries f until it succeeds; false means that ctx ended first.
func persist(ctx context.Context, f func() error) bool {
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) { return f() == nil, nil }) == nil
}

var (
	getOptions  = metav1.GetOptions{}
	listOptions = metav1.ListOptions{}
)
