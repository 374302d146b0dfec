// Package policy has the ValidatingAdmissionPolicy that guards the ledger: an API server that has
// it refuses writes that the plugin would not make for that user. docs/security.md says what it
// can't refuse. Nothing here talks to a cluster.
package policy

import (
	"bytes"
	_ "embed"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Name is the name of the policy and of its binding, and what a refusal begins with.
const Name = "ledger.vmip.io"

// The right that makes a writer an operator, as `kubectl auth can-i operate ledgers.vmip.io -n
// NAMESPACE` asks for it. Nothing serves such a resource: it exists in roles only.
const (
	OperatorVerb     = "operate"
	OperatorGroup    = "vmip.io"
	OperatorResource = "ledgers"
)

//go:embed policy.yaml
var template []byte

// Objects returns the policy and its binding for the ledger in a namespace.
func Objects(namespace string) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding, error) {
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
	parts := bytes.Split(template, []byte("\n---\n"))
	if len(parts) != 2 {
		return nil, nil, fmt.Errorf("the template of policy %s has %d objects, not a policy and a binding", Name, len(parts))
	}
	for i, into := range []any{policy, binding} {
		if err := yaml.UnmarshalStrict(parts[i], into); err != nil {
			return nil, nil, fmt.Errorf("the template of policy %s: %w", Name, err)
		}
	}
	// The API server sets this label and lets nobody change it.
	policy.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	return policy, binding, nil
}
