// Package operation is what restart and migrate have in common as commands: plans for all machines
// that were named, a question before running machines are disturbed, progress, and one exit status
// for everything that happened.
package operation

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/rollout"
)

// Command is one of the two commands with its flags.
type Command struct {
	Env  *cli.Env
	Verb rollout.Verb
	// Disturbs says in the question what happens to the guests.
	Disturbs string
	Plan     func(context.Context, *rollout.Planner, machine.Ref, rollout.Options) (rollout.Plan, error)
	Carry    func(context.Context, rollout.Deps, rollout.Plan, rollout.Reporter) rollout.Outcome

	Options rollout.Options
	Dry     cli.DryRun
	Out     printer.Flags
	Yes     bool
	// Timeout is for each machine; 0 waits without end.
	Timeout time.Duration
	// MaxParallel is how many machines are disturbed at once.
	MaxParallel int
	// NoWait ends with the request, unverified.
	NoWait bool
	// CheckOnly ends with preflight.
	CheckOnly bool
}

// AddFlags adds the flags that both commands have.
func (c *Command) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&c.Yes, "yes", "y", false, "Don't ask before running machines are disturbed")
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout, "How long to wait for each virtual machine, 0 waits without end")
	fs.IntVar(&c.MaxParallel, "max-parallel", c.MaxParallel, "How many virtual machines to "+string(c.Verb)+" at once")
	c.Dry.AddFlag(fs)
	c.Out.AddResultFlags(fs)
}

// Validate looks at the flags by themselves.
func (c *Command) Validate() error {
	switch {
	case c.MaxParallel < 1:
		return cli.UsageError(fmt.Errorf("--max-parallel %d: at least one virtual machine at a time", c.MaxParallel))
	case c.Timeout < 0:
		return cli.UsageError(fmt.Errorf("--timeout %s: give a positive duration, or 0 to wait without end", c.Timeout))
	}
	return nil
}

// Run does it to the machines.
func (c *Command) Run(ctx context.Context, clients *cli.Clients, refs []machine.Ref) error {
	if len(refs) == 0 {
		return nil
	}
	b := &batch{Command: c, planner: &rollout.Planner{Deps: c.deps(clients)}}
	b.plan(ctx, refs)
	switch {
	case c.CheckOnly:
		return b.check(ctx)
	case c.Dry.Client():
		return b.preview(ctx)
	}
	b.refuse()
	if len(b.ready) > 0 && !c.Dry.Enabled() {
		if err := b.ask(ctx); err != nil {
			return err
		}
	}
	return b.run(ctx)
}

func (c *Command) deps(clients *cli.Clients) rollout.Deps {
	s := reservation.NewService(c.Env, clients, c.Dry)
	return rollout.Deps{
		Core: clients.Core, KubeVirt: clients.KubeVirt, Ledger: clients.Ledger,
		Profiles: once(s.Profiles), Settle: s.Settle,
		FieldManager: c.Env.FieldManager, DryRun: c.Dry.Enabled(), NoWait: c.NoWait,
	}
}

// once detects the cluster's network plugins for the first machine and remembers it for the rest.
// A detection that failed is tried again.
func once(detect func(context.Context) (*profile.Cluster, error)) func(context.Context) (*profile.Cluster, error) {
	turn := make(chan *profile.Cluster, 1)
	turn <- nil
	return func(ctx context.Context) (*profile.Cluster, error) {
		known := <-turn
		defer func() { turn <- known }()
		if known != nil {
			return known, nil
		}
		found, err := detect(ctx)
		if err == nil {
			known = found
		}
		return found, err
	}
}
