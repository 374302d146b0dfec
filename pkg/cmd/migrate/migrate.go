// Package migrate has the command that live-migrates machines with their addresses.
package migrate

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/operation"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/rollout"
)

// New returns `kubectl vmip migrate`.
func New(env *cli.Env) *cobra.Command {
	targets := cli.NewTargets(env)
	op := &operation.Command{
		Env: env, Verb: rollout.VerbMigrate, Disturbs: "The guests of these virtual machines move to another node",
		Plan: func(ctx context.Context, p *rollout.Planner, ref machine.Ref, o rollout.Options) (rollout.Plan, error) {
			return p.PlanMigrate(ctx, ref, o)
		},
		Carry: rollout.Migrate, Timeout: 30 * time.Minute, MaxParallel: 2,
	}
	cmd := &cobra.Command{
		Use:   "migrate (VM… | -l SELECTOR | --all)",
		Short: "Live-migrate virtual machines with their addresses",
		Long: `Live-migrate virtual machines with their addresses, and verify it.

KubeVirt's own migration is used. It is not begun where the network plugin can't give the target
the address that the source still has, whatever the machine's condition LiveMigratable says. As
soon as the target pod shows another address, can't get its network, or is on the source's node,
the migration is taken back before the guest moves, and the machine is shown to run on at the
source. At the end the node, the addresses, the MAC, and the end of the source pod are verified.

Run again after it was killed, the command goes on with the migration that it had begun. Ctrl-C
and the timeout end the command, not the migration.`,
		Example: `  # Move a machine to any other node
  kubectl vmip migrate db-1 -n tenant-a

  # Move it to a node of choice
  kubectl vmip migrate db-1 -n tenant-a --to-node n3

  # Only check whether all machines of the namespace could be moved with their addresses
  kubectl vmip migrate --all -n tenant-a --preflight`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := targets.Parse(args); err != nil {
				return err
			}
			if err := op.Validate(); err != nil {
				return err
			}
			c, err := env.Clients()
			if err != nil {
				return err
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
	fs.StringVar(&op.Options.ToNode, "to-node", "", "The only node to move to")
	fs.BoolVar(&op.CheckOnly, "preflight", false, "Only check whether the virtual machines can be migrated with their addresses")
	op.AddFlags(fs)
	return cmd
}
