// Package release has the command that takes addresses back.
package release

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
)

// New returns `kubectl vmip release`.
func New(env *cli.Env) *cobra.Command {
	targets := cli.NewTargets(env)
	var nic string
	var atShutdown, unchanged bool
	var dry cli.DryRun
	var out printer.Flags
	cmd := &cobra.Command{
		Use:   "release (VM… | -l SELECTOR | --all)",
		Short: "Take the addresses of virtual machines back",
		Long: `Take the addresses of virtual machines back.

The template is cleaned in the same operation. A released address cools down for the pool's hold
time before another machine may get it; until then its last owner may reserve it again.

Refused while a pod may use the address. With --at-shutdown the address is marked instead, and
freed by the next command that finds it unused after the machine has stopped.

A virtual machine that was deleted keeps its addresses until they are released by its name.`,
		Example: `  # Stop a machine, then give its address back
  kubectl vmip release db-1 -n tenant-a

  # Give the address back once the machine no longer runs
  kubectl vmip release db-1 -n tenant-a --at-shutdown`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := targets.Parse(args); err != nil {
				return err
			}
			ctx := cmd.Context()
			c, err := env.Clients()
			if err != nil {
				return err
			}
			vms, err := targets.Resolve(ctx, c)
			if err != nil {
				return err
			}
			s := reservation.NewService(env, c, dry)
			results := reservation.Each(ctx, vms, func(ctx context.Context, vm machine.Ref) (reservation.Result, error) {
				return s.Release(ctx, reservation.ReleaseRequest{VM: vm, Interface: nic, AtShutdown: atShutdown})
			})
			if !targets.Named() {
				results = withReservation(results)
			}
			return reservation.Print(env, results, "released", dry, out, unchanged)
		},
	}
	targets.AddFlags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&nic, "interface", "", "Interface by its network's name; by default all")
	fs.BoolVar(&atShutdown, "at-shutdown", false, "Mark an address that is in use, to be freed once the machine has stopped")
	fs.BoolVar(&unchanged, "error-unchanged", false, "Exit with status 3 where nothing had to change")
	dry.AddFlag(fs)
	out.AddResultFlags(fs)
	return cmd
}

// withReservation leaves out the machines that have nothing to release: -l and --all name
// machines, not reservations.
func withReservation(all []reservation.Outcome) (some []reservation.Outcome) {
	for _, o := range all {
		if !reservation.IsNoReservation(o.Err) {
			some = append(some, o)
		}
	}
	return some
}
