package operation

import (
	"context"
	"fmt"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/rollout"
)

// result is the error that the command ends with; what happened to each machine has been said.
// Whoever interrupted wants 130, whatever else went wrong; a script that waits longer after a
// timeout must not do so after a failure.
func (b *batch) result(ctx context.Context, ops []v1alpha1.Operation) error {
	count := map[v1alpha1.Outcome]int{}
	for _, op := range ops {
		count[op.Outcome]++
	}
	bad := len(ops) - count[v1alpha1.Done] - count[v1alpha1.Unchanged]
	code := cli.ExitFailed
	switch {
	case bad == 0:
		return nil
	case count[v1alpha1.Interrupted] > 0 && ctx.Err() != nil:
		code = cli.ExitInterrupted
	case bad == count[v1alpha1.TimedOut]:
		code = cli.ExitTimeout
	}
	return &cli.ExitError{Code: code}
}

// summary counts what became of several machines.
func summary(ops []v1alpha1.Operation) string {
	count := map[string]int{}
	var order []string
	for _, op := range ops {
		word := strings.ToLower(string(op.Outcome))
		switch op.Outcome {
		case v1alpha1.Done:
			word = op.Verb
		case v1alpha1.TimedOut:
			word = "timed out"
		}
		if count[word]++; count[word] == 1 {
			order = append(order, word)
		}
	}
	var said []string
	for _, word := range order {
		said = append(said, fmt.Sprintf("%d %s", count[word], word))
	}
	return counted(len(ops), "virtual machine") + ": " + strings.Join(said, ", ")
}

// check prints what preflight says, for --preflight.
func (b *batch) check(ctx context.Context) error {
	b.refuse()
	return b.print(ctx, func(op *v1alpha1.Operation, _ rollout.Plan) { op.Verb, op.Before = "migratable", nil })
}

// preview prints the plans, for --dry-run=client.
func (b *batch) preview(ctx context.Context) error {
	b.refuse()
	if b.Out.Output == "" && len(b.ready) > 0 {
		if err := table(b.ready).Print(b.Env.Out, b.Out); err != nil {
			return err
		}
	}
	return b.print(ctx, func(op *v1alpha1.Operation, p rollout.Plan) { op.After = p.After() })
}

// print prints plans that are not going to be carried out, and what was refused.
func (b *batch) print(ctx context.Context, edit func(*v1alpha1.Operation, rollout.Plan)) error {
	out := printer.OperationPrinter{Out: b.Env.Out, Flags: b.Out}
	for _, p := range b.ready {
		op := b.operation(p)
		op.Outcome = v1alpha1.Done
		edit(&op, p)
		out.Add(op)
	}
	for _, op := range b.over {
		out.Add(op)
	}
	if err := out.Close(); err != nil {
		return err
	}
	return b.result(ctx, out.Items())
}

// table is the steps of plans, for people.
func table(plans []rollout.Plan) printer.Report {
	r := printer.Report{Columns: []string{"NAME", "STEP", "OBJECT", "VALUE"}, Wrap: 70}
	for _, p := range plans {
		for _, s := range p.Steps() {
			r.Rows = append(r.Rows, []string{p.Ref.String(), s.Action, s.Object, s.Value})
		}
		for _, v := range p.Verdicts {
			if v.Severity != preflight.Refuse {
				r.Rows = append(r.Rows, []string{p.Ref.String(), strings.ToLower(string(v.Severity)), v.Code, v.Message})
			}
		}
	}
	return r
}
