// Package v1alpha1 holds what commands print with -o json and -o yaml: a contract. Fields are
// added, never renamed or given another meaning.
package v1alpha1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// GroupVersion of all objects of this package.
const GroupVersion = "vmip.io/v1alpha1"

// Type returns the TypeMeta of a kind of this package.
func Type(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: GroupVersion, Kind: kind}
}

// clone copies an object through its JSON form: the objects are output, copied once if ever.
func clone[T any](in *T) *T {
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	out := new(T)
	if err := json.Unmarshal(raw, out); err != nil {
		panic(err)
	}
	return out
}

var _ runtime.Object = (*PoolList)(nil)
