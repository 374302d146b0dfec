// Package completion has the command "completion".
package completion

import (
	_ "embed"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
)

// kubectl looks for this script to complete a plugin's arguments; krew installs only one
// executable a plugin, so users place it themselves.
//
//go:embed kubectl_complete-vmip
var script string

const example = `  # Complete "kubectl vmip" wherever kubectl itself is completed
  kubectl vmip completion > "${KREW_ROOT:-$HOME/.krew}/bin/kubectl_complete-vmip"
  chmod +x "${KREW_ROOT:-$HOME/.krew}/bin/kubectl_complete-vmip"

  # Complete "kubectl-vmip", called by its own name, in this bash
  source <(kubectl-vmip completion bash)`

// New returns the command.
func New(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion [bash|zsh|fish|powershell]",
		Short: "Print what shell completion needs",
		Long: `Print the script with which kubectl (1.26 and newer) completes "kubectl vmip": a file named
kubectl_complete-vmip, executable and on the PATH. It needs kubectl's own completion to be set up.

With the name of a shell, print the completion of the program kubectl-vmip for that shell instead.`,
		Example:   example,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []cobra.Completion{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprint(env.Out, script)
				return err
			}
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(env.Out, true)
			case "zsh":
				return root.GenZshCompletion(env.Out)
			case "fish":
				return root.GenFishCompletion(env.Out, true)
			}
			return root.GenPowerShellCompletionWithDesc(env.Out)
		},
	}
}
