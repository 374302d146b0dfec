package reservation

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "kubectl-vmip"
)

// resource finds the client of an object's resource. The plugins whose objects profiles render
// name their resources by the lower-case plural of the kind.
func (s *Service) resource(o *unstructured.Unstructured) dynamic.ResourceInterface {
	gvr, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	if ns := o.GetNamespace(); ns != "" {
		return s.Dynamic.Resource(gvr).Namespace(ns)
	}
	return s.Dynamic.Resource(gvr)
}

// ensure makes the objects that have to be there before the machine starts. One that is there
// and is not ours is left as it is and refused: its owner decides what it says.
func (s *Service) ensure(ctx context.Context, objects []*unstructured.Unstructured) error {
	if s.Preview {
		return nil
	}
	for _, o := range objects {
		o = o.DeepCopy()
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[labelManagedBy] = managedBy
		o.SetLabels(labels)
		_, err := s.resource(o).Create(ctx, o, metav1.CreateOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
		if apierrors.IsAlreadyExists(err) {
			old, gerr := s.resource(o).Get(ctx, o.GetName(), metav1.GetOptions{})
			switch {
			case gerr != nil:
				err = gerr
			case old.GetLabels()[labelManagedBy] != managedBy:
				err = fmt.Errorf("it exists and was not made by this plugin")
			case equality.Semantic.DeepEqual(old.Object["spec"], o.Object["spec"]):
				err = nil
			default:
				// Left by an earlier owner of the address: it says whose it was.
				old.Object["spec"] = o.Object["spec"]
				_, err = s.resource(o).Update(ctx, old, metav1.UpdateOptions{FieldManager: s.FieldManager, DryRun: s.dryRun()})
			}
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", strings.ToLower(o.GetKind()), o.GetName(), err)
		}
	}
	return nil
}

// drop removes objects that a reservation has made. One that the plugin still uses stays: its
// own finalizer sees to that.
func (s *Service) drop(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		old, err := s.resource(o).Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err == nil && old.GetLabels()[labelManagedBy] == managedBy {
			rv := old.GetResourceVersion()
			err = s.resource(o).Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &rv}})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s %s: %w", strings.ToLower(o.GetKind()), o.GetName(), err)
		}
	}
	return nil
}
