package patch

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestEscape(t *testing.T) {
	if got := Escape("a/b~c~1"); got != "a~1b~0c~01" {
		t.Errorf("escaped %q", got)
	}
}

func TestIsConflict(t *testing.T) {
	vms := schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"}
	kind := schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"}
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{Code: 422, Reason: metav1.StatusReasonInvalid, Message: `admission webhook "x" denied the request: no`}}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"409":                {apierrors.NewConflict(vms, "db-1", errors.New("changed")), true},
		"422 of a test":      {apierrors.NewGenericServerResponse(422, "", schema.GroupResource{}, "", "testing value failed", 0, false), true},
		"wrapped":            {fmt.Errorf("virtualmachine x: %w", apierrors.NewGenericServerResponse(422, "", schema.GroupResource{}, "", "", 0, false)), true},
		"422 of validation":  {apierrors.NewInvalid(kind, "db-1", field.ErrorList{field.Required(field.NewPath("spec"), "")}), false},
		"422 of a webhook":   {webhook, false},
		"404":                {apierrors.NewNotFound(vms, "db-1"), false},
		"not of the server":  {errors.New("x"), false},
		"nothing went wrong": {nil, false},
	} {
		if got := IsConflict(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
