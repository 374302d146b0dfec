package policy

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
)

// output prints the policy without a cluster: nobody is asked.
func output(t *testing.T, args ...string) string {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	env := cli.NewEnv(streams)
	env.LedgerNamespace = "addresses"
	env.Connect = func() (*cli.Clients, error) {
		t.Error("asks the cluster")
		return nil, nil
	}
	cmd := New(env)
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil || errOut.String() != "" {
		t.Fatalf("%v: %v, errors %q", args, err, errOut.String())
	}
	return out.String()
}

func TestYAML(t *testing.T) {
	out := output(t)
	if output(t, "-o", "yaml") != out {
		t.Error("-o yaml prints something else than the default")
	}
	parts := strings.Split(out, "\n---\n")
	if len(parts) != 2 {
		t.Fatalf("%d documents, want policy and binding:\n%s", len(parts), out)
	}
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	for i, into := range []any{policy, binding} {
		if err := yaml.UnmarshalStrict([]byte(parts[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	if policy.Kind != "ValidatingAdmissionPolicy" || policy.Spec.MatchConstraints.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] != "addresses" {
		t.Errorf("the policy is %s for %v", policy.Kind, policy.Spec.MatchConstraints.NamespaceSelector)
	}
	if binding.Kind != "ValidatingAdmissionPolicyBinding" || binding.Spec.PolicyName != policy.Name {
		t.Errorf("the binding is %s for %s, want for %s", binding.Kind, binding.Spec.PolicyName, policy.Name)
	}
	if strings.Contains(out, "LEDGER_NAMESPACE") || !strings.HasPrefix(out, "# Guards the ledger") || !strings.HasSuffix(out, "\n") {
		t.Errorf("the text is\n%s", out)
	}
}

func TestJSON(t *testing.T) {
	list := &corev1.List{}
	if err := yaml.UnmarshalStrict([]byte(output(t, "-o", "json")), list); err != nil || list.Kind != "List" || list.APIVersion != "v1" || len(list.Items) != 2 {
		t.Errorf("%v; %s %s with %d items, want v1 List with 2", err, list.APIVersion, list.Kind, len(list.Items))
	}
	if out := output(t, "-o", "jsonpath={.items[*].metadata.name}"); out != "ledger.vmip.io ledger.vmip.io" {
		t.Errorf("a template gives %q", out)
	}
}
