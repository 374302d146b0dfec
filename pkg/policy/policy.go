// Package policy has the ValidatingAdmissionPolicy that guards the ledger: an API server that has
// it refuses writes that the plugin would not make for that user. docs/security.md says what it
// can't refuse. Nothing here talks to a cluster.
package policy

import (
	_ "embed"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

// Name is the name of the policy and of its binding; the text of a refusal has it.
const Name = "ledger.vmip.io"

//go:embed policy.yaml
var template string

// placeholder stands in the template for the ledger's namespace.
const placeholder = "LEDGER_NAMESPACE"

// separator stands between the two documents of the template.
const separator = "\n---\n"

// YAML returns the policy and its binding for the ledger in a namespace, which has to be a valid
// name, with the comments that explain them.
func YAML(namespace string) string { return strings.ReplaceAll(template, placeholder, namespace) }

// Objects returns what YAML returns as objects.
func Objects(namespace string) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding, error) {
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
	first, second, _ := strings.Cut(YAML(namespace), separator)
	for text, into := range map[string]any{first: policy, second: binding} {
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			return nil, nil, fmt.Errorf("policy %s: %w", Name, err)
		}
	}
	return policy, binding, nil
}
