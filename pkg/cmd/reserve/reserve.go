// Package reserve has the command that gives virtual machines fixed addresses.
package reserve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/pool"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/plan"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
)

type options struct {
	targets   *cli.Targets
	pool, nic string
	file      string
	ips       []string
	addresses []netip.Addr
	replace   bool
	adopt     bool
	unchanged bool
	dry       cli.DryRun
	out       printer.Flags
}

// New returns `kubectl vmip reserve`.
func New(env *cli.Env) *cobra.Command {
	o := &options{targets: cli.NewTargets(env)}
	cmd := &cobra.Command{
		Use:   "reserve (VM… | -l SELECTOR | --all | -f PLAN) [--pool POOL] [--ip ADDRESS]",
		Short: "Give virtual machines fixed addresses",
		Long: `Give virtual machines fixed addresses.

The address is recorded in the ledger first, then the machine's template is patched so that the
network plugin honours it. The template reaches a running machine at its next start: until then
the reservation is "restart pending". Where the running pod already has the address, nothing
needs a restart.

Without --ip it is the address that the machine has reserved, or has just released, or that its template
asks for already; otherwise the next free one of the pool. An address that no subnet or IP pool of the
network plugin has is refused: a machine that asks for one does not start.

A plan (-f) has many reservations at once, as YAML, JSON or CSV: 'kubectl vmip list -o plan' writes
one. Its machines need not exist yet: their addresses wait for them. Contradictions inside a plan
are found before anything is written; what a first run could not do, a second one completes.

Safe to repeat: a machine that has its reservation is left unchanged, and one whose command
died half-way is completed.`,
		Example: `  # The next free address of the only pool
  kubectl vmip reserve db-1

  # A chosen address
  kubectl vmip reserve db-1 -n tenant-a --pool lab --ip 198.51.100.20

  # One of each family
  kubectl vmip reserve db-1 --ip 198.51.100.20 --ip 2001:db8:1::20

  # Another address; the old one is given up once the machine runs with the new one
  kubectl vmip reserve db-1 --replace --ip 198.51.100.21
  kubectl vmip restart db-1

  # Record the addresses that all machines of the namespace have now
  kubectl vmip reserve --all --adopt

  # Hundreds at once; a CSV has the columns namespace,name,interface,pool,addresses,mac
  kubectl vmip reserve -f plan.yaml

  # All machines with a label, showing what would happen
  kubectl vmip reserve -l app=db --pool lab --dry-run=client`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(args); err != nil {
				return err
			}
			return o.run(cmd.Context(), env)
		},
	}
	o.targets.Instead = []string{"filename"}
	o.targets.AddFlags(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&o.file, "filename", "f", "", "Plan to carry out, a file or - for standard input")
	fs.StringVar(&o.pool, "pool", "", "Pool to take the address from; needed where several serve the machine")
	fs.StringSliceVar(&o.ips, "ip", nil, "Address to reserve, at most one a family; by default the next free one of every family of the pool")
	fs.StringVar(&o.nic, "interface", "", "Interface by its network's name; by default the one on the pod network")
	fs.BoolVar(&o.replace, "replace", false, "Move a machine that has an address to another one; it keeps the old one until it runs with the new")
	fs.BoolVar(&o.adopt, "adopt", false, "Reserve the addresses that running machines have or that their templates ask for, and take over what a deleted machine of the same name has reserved")
	fs.BoolVar(&o.unchanged, "error-unchanged", false, "Exit with status 3 where nothing had to change")
	o.dry.AddFlag(fs)
	o.out.AddResultFlags(fs)
	_ = cmd.RegisterFlagCompletionFunc("pool", env.CompletePools)
	return cmd
}

func (o *options) parse(args []string) error {
	if err := o.targets.Parse(args); err != nil {
		return err
	}
	for _, s := range o.ips {
		a, err := address.Parse(s)
		if err != nil {
			return cli.UsageError(fmt.Errorf("--ip: %w", err))
		}
		o.addresses = append(o.addresses, a)
	}
	if o.targets.Changed("ip") && len(o.addresses) == 0 {
		return cli.UsageError(errors.New("--ip is empty: leave it out for an address that the ledger chooses"))
	}
	if o.replace && o.adopt {
		return cli.UsageError(errors.New("--adopt keeps the address that a machine has, --replace gives it another: choose one of them"))
	}
	if len(o.addresses) > 0 && len(o.targets.Names()) != 1 {
		return cli.UsageError(errors.New("--ip names the address of one virtual machine: name exactly one"))
	}
	return nil
}

// requests are what the command line asks for, machine by machine.
func (o *options) requests(ctx context.Context, env *cli.Env, c *cli.Clients) ([]reservation.Request, error) {
	if o.file != "" {
		return o.planned(ctx, env, c)
	}
	vms, err := o.targets.Resolve(ctx, c)
	if err != nil {
		return nil, err
	}
	reqs := make([]reservation.Request, len(vms))
	for i, vm := range vms {
		reqs[i] = reservation.Request{VM: vm, Interface: o.nic, Pool: o.pool, Addresses: o.addresses, Replace: o.replace, Adopt: o.adopt}
	}
	return reqs, nil
}

// planned makes the pools of a plan that are missing, and returns its requests. --pool and
// --interface stand for what its items leave out.
func (o *options) planned(ctx context.Context, env *cli.Env, c *cli.Clients) ([]reservation.Request, error) {
	in, name := env.In, "standard input"
	if o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
		defer f.Close()
		in, name = f, o.file
	}
	p, err := plan.Read(in, name, c.Namespace)
	if err != nil {
		return nil, cli.UsageError(err)
	}
	if err := pool.Ensure(ctx, env, c, p.Pools, o.dry); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	reqs := make([]reservation.Request, len(p.Items))
	for i, item := range p.Items {
		reqs[i] = reservation.Request{
			VM: item.VM, Interface: cmp.Or(item.Interface, o.nic), Pool: cmp.Or(item.Pool, o.pool), Addresses: item.Addresses, MAC: item.MAC,
			Replace: o.replace, Adopt: o.adopt, Ahead: true,
		}
	}
	return reqs, nil
}

func (o *options) run(ctx context.Context, env *cli.Env) error {
	c, err := env.Clients()
	if err != nil {
		return err
	}
	s := reservation.NewService(env, c, o.dry)
	reqs, err := o.requests(ctx, env, c)
	if err != nil {
		return err
	}
	results := o.reserve(ctx, env, s, reqs)
	if o.adopt && !o.targets.Named() {
		results = slices.DeleteFunc(results, func(r reservation.Outcome) bool { return reservation.IsNothingToAdopt(r.Err) })
	}
	return reservation.Print(env, results, "reserved", o.dry, o.out, o.unchanged)
}

// few is how many machines are done before anybody asks how far it is.
const few = 8

func (o *options) reserve(ctx context.Context, env *cli.Env, s *reservation.Service, reqs []reservation.Request) []reservation.Outcome {
	if len(reqs) <= few {
		return s.Reserve(ctx, reqs, nil)
	}
	progress := printer.NewProgress(env.ErrOut, nil)
	stderr := env.ErrOut
	env.ErrOut = progress // warnings go above the bar
	defer func() { progress.Close(); env.ErrOut = stderr }()
	bar := progress.Bar("reserving", len(reqs))
	return s.Reserve(ctx, reqs, func(reservation.Outcome) { bar.Add() })
}
