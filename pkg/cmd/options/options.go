// Package options has the command "options".
package options

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
)

// New returns the command.
func New(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "options",
		Short: "Print the flags that all commands have",
		Long: `Print the flags that all commands have.

kubectl takes no flags before a plugin's name: they go after "vmip".`,
		Example: `  # Print the flags that all commands have
  kubectl vmip options

  # Global flags come after the plugin's name
  kubectl vmip list --context=prod -n tenant-a`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(env.Out, "The following options can be passed to any command:\n\n%s", cmd.Root().PersistentFlags().FlagUsages())
			return err
		},
	}
}
