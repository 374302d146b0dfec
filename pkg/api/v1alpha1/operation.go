package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Outcome of an operation on one object.
type Outcome string

// The outcomes. Refused operations have written nothing.
const (
	Done        Outcome = "Done"
	Unchanged   Outcome = "Unchanged"
	Refused     Outcome = "Refused"
	Failed      Outcome = "Failed"
	TimedOut    Outcome = "TimedOut"
	Interrupted Outcome = "Interrupted"
	Unknown     Outcome = "Unknown"
)

// Operation is what one command did to one object.
type Operation struct {
	// Object is "virtualmachine.kubevirt.io/NAME" and the like.
	Object    string `json:"object"`
	Namespace string `json:"namespace,omitempty"`
	// Verb is the past participle that the command prints: reserved, released, restarted, migrated.
	Verb    string  `json:"verb"`
	Outcome Outcome `json:"outcome"`
	// Phase is where a long operation stands or stopped.
	Phase     string   `json:"phase,omitempty"`
	Interface string   `json:"interface,omitempty"`
	Pool      string   `json:"pool,omitempty"`
	Before    []string `json:"addressesBefore,omitempty"`
	After     []string `json:"addressesAfter,omitempty"`
	NodeFrom  string   `json:"nodeBefore,omitempty"`
	NodeTo    string   `json:"nodeAfter,omitempty"`
	// RestartPending is set where the running pod does not have the reserved address.
	RestartPending bool `json:"restartPending,omitempty"`
	// Code is a stable CamelCase reason; Message the sentence for people.
	Code     string       `json:"code,omitempty"`
	Message  string       `json:"message,omitempty"`
	DryRun   string       `json:"dryRun,omitempty"`
	Started  *metav1.Time `json:"started,omitempty"`
	Finished *metav1.Time `json:"finished,omitempty"`
}

// OperationResult is the output of every mutating command.
type OperationResult struct {
	metav1.TypeMeta `json:",inline"`
	Items           []Operation `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *OperationResult) DeepCopyObject() runtime.Object { return clone(l) }
