// Package policy has the command "policy".
package policy

import (
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/policy"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

const example = `  # See what would be applied
  kubectl vmip policy

  # Guard the ledger; again after each upgrade of the plugin
  kubectl vmip policy | kubectl apply -f -

  # Guard a ledger in another namespace
  kubectl vmip policy --ledger-namespace addresses | kubectl apply -f -

  # No longer guard it
  kubectl vmip policy | kubectl delete -f -`

// New returns `kubectl vmip policy`.
func New(env *cli.Env) *cobra.Command {
	var out printer.Flags
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Print the admission policy that guards the ledger",
		Long: `Print a ValidatingAdmissionPolicy and its binding, for kubectl apply. No cluster is asked.

Without the policy, whoever may update ConfigMaps in the ledger's namespace may change every row. With
it the API server refuses rows that can't be read, and a writer without the operator role (ClusterRole
vmip.io:admin) changes rows of one namespace at a time, with the right to patch virtual machines there,
makes and changes no pool, and deletes nothing. Kubernetes 1.30 or newer.`,
		Example:           example,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return run(env, out) },
	}
	out.AddVersionFlags(cmd.Flags())
	return cmd
}

func run(env *cli.Env, out printer.Flags) error {
	if errs := validation.IsDNS1123Label(env.LedgerNamespace); len(errs) > 0 {
		return cli.UsageError(fmt.Errorf("--ledger-namespace %q: %s", env.LedgerNamespace, errs[0]))
	}
	if out.Output == "" || out.Output == printer.YAML {
		_, err := fmt.Fprint(env.Out, policy.YAML(env.LedgerNamespace)) // with its comments
		return err
	}
	admission, binding, err := policy.Objects(env.LedgerNamespace)
	if err != nil {
		return err
	}
	return out.Object(env.Out, &corev1.List{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"},
		Items:    []runtime.RawExtension{{Object: admission}, {Object: binding}},
	})
}
