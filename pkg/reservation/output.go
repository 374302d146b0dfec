package reservation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// NewService is the service of one command.
func NewService(env *cli.Env, c *cli.Clients, dry cli.DryRun) *Service {
	c.Ledger.DryRun = dry.Enabled()
	return &Service{
		Ledger: c.Ledger, KubeVirt: c.KubeVirt, Core: c.Core, Dynamic: c.Dynamic,
		Profiles: func(ctx context.Context) (*profile.Cluster, error) {
			return profile.Detect(ctx, profile.Reader{Core: c.Core, Dynamic: c.Dynamic})
		},
		FieldManager: env.FieldManager, Preview: dry.Client(), DryRun: dry.Enabled() && !dry.Client(),
		Warn: env.Warn,
	}
}

// Operation is an outcome as commands print it.
func (o Outcome) Operation(verb string, dry cli.DryRun) v1alpha1.Operation {
	op := v1alpha1.Operation{
		Object: "virtualmachine.kubevirt.io/" + o.VM.Name, Namespace: o.VM.Namespace, Verb: verb, Outcome: v1alpha1.Done,
		Interface: o.Result.Interface, Pool: o.Result.Pool, RestartPending: o.Result.RestartPending, DryRun: dry.Output(),
	}
	for _, a := range o.Result.Addresses {
		op.After = append(op.After, a.String())
	}
	var refused *RefusedError
	var unknown *ledger.UnknownError
	switch {
	case errors.As(o.Err, &refused):
		op.Outcome, op.Code, op.Message = v1alpha1.Refused, refused.Code, o.Err.Error()
	case errors.As(o.Err, &unknown):
		op.Outcome, op.Message = v1alpha1.Unknown, o.Err.Error()
	case errors.Is(o.Err, context.Canceled):
		op.Outcome, op.Message = v1alpha1.Interrupted, o.Err.Error()
	case o.Err != nil:
		op.Outcome, op.Message = v1alpha1.Failed, o.Err.Error()
	case o.Result.Unchanged:
		op.Outcome = v1alpha1.Unchanged
	}
	switch {
	case o.Err != nil:
	case o.Result.RestartPending && len(o.Result.Running) > 0:
		op.Before = texts(o.Result.Running)
		op.Message = fmt.Sprintf("the running pod has %s", address.Join(o.Result.Running))
	case o.Result.RestartPending:
		op.Message = "the running pod does not have it"
	case o.Result.Ahead:
		op.Message = "the virtual machine does not exist yet"
	case o.Result.Waiting != "":
		op.Message = o.Result.Waiting
	}
	if o.Err == nil && o.Result.Releasing {
		op.Verb = "releasing" // an address that is still in use has not been released
	}
	return op
}

func texts(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// Print writes the outcomes of a command and returns the error that it ends with.
func Print(env *cli.Env, results []Outcome, verb string, dry cli.DryRun, out printer.Flags, errorUnchanged bool) error {
	p := printer.OperationPrinter{Out: env.Out, Flags: out}
	var errs []error
	changed := false
	for _, o := range results {
		p.Add(o.Operation(verb, dry))
		changed = changed || o.Err == nil && !o.Result.Unchanged
		if o.Err != nil {
			errs = append(errs, o.Err)
		}
	}
	if err := p.Close(); err != nil {
		return err
	}
	switch {
	case len(errs) > 0:
		return errors.Join(errs...)
	case errorUnchanged && !changed:
		return &cli.ExitError{Code: cli.ExitUnchanged}
	}
	return nil
}

// IsNoReservation says whether a release found nothing to release.
func IsNoReservation(err error) bool { return codeOf(err) == codeNoReservation }

const codeNoReservation = "NoReservation"
