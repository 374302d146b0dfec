package profile

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/pager"
)

// listed answers single reads from lists, made at the first read of each resource.
type listed struct {
	mu        sync.Mutex
	resources map[schema.GroupVersionResource]func() (map[string]*unstructured.Unstructured, error)
}

// get answers a read; ok is false where the resource can't be listed, and has to be asked for by name.
func (l *listed) get(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource, namespace, name string) (o *unstructured.Unstructured, err error, ok bool) {
	l.mu.Lock()
	read, known := l.resources[gvr]
	if !known {
		read = sync.OnceValues(func() (map[string]*unstructured.Unstructured, error) { return listAll(ctx, client, gvr) })
		l.resources[gvr] = read
	}
	l.mu.Unlock()
	all, err := read()
	if err != nil {
		return nil, nil, false
	}
	if o = all[namespace+"/"+name]; o == nil {
		return nil, unreadable(gvr.GroupResource().String()+"/"+name, apierrors.NewNotFound(gvr.GroupResource(), name)), true
	}
	return o, nil, true
}

func listAll(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) (map[string]*unstructured.Unstructured, error) {
	all := map[string]*unstructured.Unstructured{}
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return client.Resource(gvr).List(ctx, opts)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		u := o.(*unstructured.Unstructured)
		all[u.GetNamespace()+"/"+u.GetName()] = u
		return nil
	})
	return all, err
}
