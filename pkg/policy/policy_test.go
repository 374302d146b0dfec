package policy_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/policy"
)

func objects(t *testing.T) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	admission, binding, err := policy.Objects("addresses")
	if err != nil {
		t.Fatal(err)
	}
	return admission, binding
}

func TestObjects(t *testing.T) {
	admission, binding := objects(t)
	if admission.Name != policy.Name || binding.Name != policy.Name || binding.Spec.PolicyName != policy.Name {
		t.Errorf("policy %s, binding %s of policy %s, want all %s", admission.Name, binding.Name, binding.Spec.PolicyName, policy.Name)
	}
	if got := admission.Spec.MatchConstraints.NamespaceSelector.MatchLabels; len(got) != 1 || got["kubernetes.io/metadata.name"] != "addresses" {
		t.Errorf("guards the namespaces with %v, want addresses only", got)
	}
	if *admission.Spec.FailurePolicy != admissionv1.Fail || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("failure policy %s, actions %v: a guard has to refuse", *admission.Spec.FailurePolicy, binding.Spec.ValidationActions)
	}
}

// What the ledger writes has to be in the policy, word for word.
func TestPolicyKnowsTheLedger(t *testing.T) {
	admission, _ := objects(t)
	all := strings.Join(expressions(admission), "\n")
	words := []string{ledger.AnnotationFormat, ledger.LabelKind, ledger.LabelNetwork, ledger.LabelPool, "'" + ledger.LabelOwner + "'",
		"'" + ledger.Format + "'", "'" + ledger.KindNetwork + "'", "'" + ledger.KindPool + "'", "'" + ledger.KindBlock + "'"}
	for _, state := range ledger.States {
		words = append(words, string(state))
	}
	for _, word := range words {
		if !strings.Contains(all, word) {
			t.Errorf("the policy doesn't know %s", word)
		}
	}
}

// The right that the policy asks for is one that a role of the project gives.
func TestOperatorRole(t *testing.T) {
	admission, _ := objects(t)
	if i := slices.IndexFunc(admission.Spec.Variables, func(v admissionv1.Variable) bool { return v.Name == "operator" }); i < 0 ||
		admission.Spec.Variables[i].Expression != "authorizer.group('vmip.io').resource('ledgers').namespace(request.namespace).check('operate').allowed()" {
		t.Errorf("the policy asks for another right: %v", admission.Spec.Variables)
	}
	raw, err := os.ReadFile("../../manifests/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var roles []string
	for _, text := range strings.Split(string(raw), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(text), &role); err != nil {
			t.Fatal(err)
		}
		for _, r := range role.Rules {
			if slices.Contains(r.APIGroups, "vmip.io") && slices.Contains(r.Resources, "ledgers") && slices.Contains(r.Verbs, "operate") {
				roles = append(roles, role.Name)
			}
		}
	}
	if !slices.Equal(roles, []string{"vmip.io:admin"}) {
		t.Errorf("roles with the right: %v, want vmip.io:admin only", roles)
	}
}

// Message expressions are always evaluated, and without an authorizer: one that asks it fails, and
// the user reads the general message. Variables are compiled in their order.
func TestExpressionsAreEvaluable(t *testing.T) {
	admission, _ := objects(t)
	used := regexp.MustCompile(`variables\.([A-Za-z]+)`)
	needs := map[string]bool{} // by variable: whether it asks the authorizer
	asks := func(expression string) bool {
		return strings.Contains(expression, "authorizer.") || slices.ContainsFunc(used.FindAllStringSubmatch(expression, -1), func(m []string) bool { return needs[m[1]] })
	}
	for _, v := range admission.Spec.Variables {
		for _, m := range used.FindAllStringSubmatch(v.Expression, -1) {
			if _, ok := needs[m[1]]; !ok {
				t.Errorf("variable %s uses %s, which comes later or not at all", v.Name, m[1])
			}
		}
		needs[v.Name] = asks(v.Expression)
	}
	unused := map[string]bool{}
	for name := range needs {
		unused[name] = true
	}
	for _, expression := range expressions(admission) {
		for _, m := range used.FindAllStringSubmatch(expression, -1) {
			if _, ok := needs[m[1]]; !ok {
				t.Errorf("there is no variable %s", m[1])
			}
			delete(unused, m[1])
		}
	}
	if len(unused) > 0 {
		t.Errorf("nobody uses the variables %v", unused)
	}
	for _, v := range admission.Spec.Validations {
		if v.Message == "" || strings.Contains(v.Message, "\n") {
			t.Errorf("message %q of %s: has to be one line", v.Message, v.Expression)
		}
		if asks(v.MessageExpression) {
			t.Errorf("the message %s needs an authorizer", v.MessageExpression)
		}
		if authority := asks(v.Expression); authority && (v.Reason == nil || *v.Reason != "Forbidden") {
			t.Errorf("a refusal for lack of a right is Forbidden, not %v: %s", v.Reason, v.Expression)
		}
	}
}

func expressions(admission *admissionv1.ValidatingAdmissionPolicy) (list []string) {
	for _, v := range admission.Spec.Variables {
		list = append(list, v.Expression)
	}
	for _, v := range admission.Spec.Validations {
		list = append(list, v.Expression, v.MessageExpression)
	}
	return list
}
