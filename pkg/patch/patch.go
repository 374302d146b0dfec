// Package patch has what all JSON patches (RFC 6902) of this project need.
package patch

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Escape writes a key as a token of a JSON pointer (RFC 6901).
func Escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// IsConflict says that a patch was refused because somebody else has written since the object was
// read: read it again and decide again. That is a 409, and the 422 with which the API server
// answers a failed operation of a JSON patch; unlike a validation's 422 it names no object and no
// cause, and unlike an admission webhook's it has the server's stock sentence
// (applyJSPatch in k8s.io/apiserver/pkg/endpoints/handlers/patch.go).
func IsConflict(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return false
	}
	s := api.Status()
	stock := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false).Status()
	return s.Code == stock.Code && s.Message == stock.Message && (s.Details == nil || s.Details.Kind == "" && len(s.Details.Causes) == 0)
}
