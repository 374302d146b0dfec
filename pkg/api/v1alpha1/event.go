package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OperationEvent is one step of a long operation, printed one a line while it happens with
// -o json, before the OperationResult.
type OperationEvent struct {
	metav1.TypeMeta `json:",inline"`
	// Object is "virtualmachine.kubevirt.io/NAME".
	Object    string `json:"object"`
	Namespace string `json:"namespace"`
	// Phase is the step that began; Message says what it waits for.
	Phase   string      `json:"phase"`
	Message string      `json:"message,omitempty"`
	Time    metav1.Time `json:"time"`
	// Elapsed is the time since the operation began, a Go duration.
	Elapsed metav1.Duration `json:"elapsed"`
}
