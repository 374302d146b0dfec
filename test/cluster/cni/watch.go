package cni

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// watcher follows resources for a plugin's controllers.
type watcher struct {
	f dynamicinformer.DynamicSharedInformerFactory
}

func newWatcher(k *kube) watcher {
	return watcher{dynamicinformer.NewDynamicSharedInformerFactory(k.dyn, 0)}
}

// start begins to follow; what it returns waits for the end, which comes with ctx's.
func (w watcher) start(ctx context.Context) func() {
	w.f.Start(ctx.Done())
	return w.f.Shutdown
}

// on calls changed for every object as it is and after each change, and gone, if any, for what was
// deleted. An error is tried again a few times, as a work queue does.
func on[T any](ctx context.Context, w watcher, t table[T], changed, gone func(context.Context, *T) error) error {
	handle := func(o any, f func(context.Context, *T) error) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		u, ok := o.(*unstructured.Unstructured)
		v := new(T)
		if !ok || f == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v) != nil {
			return
		}
		_ = wait.ExponentialBackoffWithContext(ctx, wait.Backoff{Steps: 5, Duration: 100 * time.Millisecond, Factor: 2},
			func(ctx context.Context) (bool, error) { return f(ctx, v) == nil, nil })
	}
	_, err := w.f.ForResource(t.gvr).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { handle(o, changed) },
		UpdateFunc: func(_, o any) { handle(o, changed) },
		DeleteFunc: func(o any) { handle(o, gone) },
	})
	return err
}
