// Package restart has the command that restarts machines so that their reservations take effect.
package restart

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/operation"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/rollout"
)

// New returns `kubectl vmip restart`.
func New(env *cli.Env) *cobra.Command {
	targets := cli.NewTargets(env)
	targets.Instead = []string{"pending"}
	var onlyPending, wait bool
	op := &operation.Command{
		Env: env, Verb: rollout.VerbRestart, Disturbs: "The guests of these virtual machines are shut down and started again",
		Plan: func(ctx context.Context, p *rollout.Planner, ref machine.Ref, o rollout.Options) (rollout.Plan, error) {
			return p.PlanRestart(ctx, ref, o)
		},
		Carry: rollout.Restart, Timeout: 10 * time.Minute, MaxParallel: 1,
	}
	cmd := &cobra.Command{
		Use:   "restart (VM… | -l SELECTOR | --all | --pending)",
		Short: "Restart virtual machines and verify their addresses",
		Long: `Restart virtual machines so that their reservations take effect, and verify it.

A reservation reaches a running machine with its next start only: the pod of a machine gets its
address once. The restart is KubeVirt's own, with the grace period of the machine. Before it, the
machine, its node and what the network plugin has recorded are checked; after it, the address and
the MAC of the new pod, and what the guest agent reports.

A machine that can't get its address back is not restarted. A new pod that can't get its network
is reported from its events within seconds; KubeVirt keeps trying meanwhile.

Ctrl-C and the timeout end the command, not the restart.`,
		Example: `  # Restart one machine
  kubectl vmip restart db-1 -n tenant-a

  # Restart all machines of the namespace whose reservation is not in effect yet
  kubectl vmip restart --pending -n tenant-a --yes

  # Show what would be done
  kubectl vmip restart db-1 -n tenant-a --dry-run=client`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := targets.Parse(args); err != nil {
				return err
			}
			if err := op.Validate(); err != nil {
				return err
			}
			op.NoWait = !wait
			c, err := env.Clients()
			if err != nil {
				return err
			}
			if onlyPending {
				refs, err := pendingIn(cmd.Context(), env, c, targets)
				if err != nil {
					return err
				}
				return op.Run(cmd.Context(), c, refs)
			}
			refs, err := targets.Resolve(cmd.Context(), c)
			if err != nil {
				return err
			}
			return op.Run(cmd.Context(), c, refs)
		},
	}
	targets.AddFlags(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&onlyPending, "pending", false, "Select the virtual machines that run without an address reserved for them")
	fs.BoolVar(&wait, "wait", true, "Wait for the new instance and verify it")
	fs.BoolVar(&op.Options.NodeFenced, "node-fenced", false, "Trust that nothing runs any more on nodes that can't be reached")
	op.AddFlags(fs)
	return cmd
}
