package operation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/moby/term"
	"golang.org/x/sync/errgroup"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/rollout"
)

// batch is one run of a command over its machines.
type batch struct {
	*Command
	planner *rollout.Planner
	// ready are the plans that may be carried out; over are the operations that have ended.
	ready []rollout.Plan
	over  []v1alpha1.Operation
}

const (
	// planners is how many plans are made at once: reads only, they disturb nobody.
	planners = 8
	// fresh is how old a plan may be when it is carried out. The user may have thought about the
	// question for a while, and machines wait for their turn.
	fresh = 15 * time.Second
)

// plan makes the plans, in the order of the machines.
func (b *batch) plan(ctx context.Context, refs []machine.Ref) {
	plans, failures := make([]rollout.Plan, len(refs)), make([]error, len(refs))
	var g errgroup.Group
	g.SetLimit(planners)
	for i, ref := range refs {
		g.Go(func() error {
			plans[i], failures[i] = b.Plan(ctx, b.planner, ref, b.Options)
			return nil
		})
	}
	_ = g.Wait() // failures are kept one by one
	for i, p := range plans {
		if err := failures[i]; err != nil {
			b.unplanned(p, err)
			continue
		}
		b.ready = append(b.ready, p)
	}
}

// unplanned records a machine of which too little could be read to plan anything.
func (b *batch) unplanned(p rollout.Plan, err error) {
	op := b.operation(p)
	op.Outcome, op.Message = v1alpha1.Failed, b.Env.Explain(err)
	if cli.ExitCode(err) == cli.ExitInterrupted {
		op.Outcome = v1alpha1.Interrupted
	}
	b.fail(op, err)
}

func (b *batch) operation(p rollout.Plan) v1alpha1.Operation {
	op := p.Operation()
	op.DryRun = b.Dry.Output()
	return op
}

// fail records a machine for which nothing is going to be done, and says why.
func (b *batch) fail(op v1alpha1.Operation, err error) {
	b.over = append(b.over, op)
	b.Env.PrintError(err)
}

// refuse takes the refused plans out and warns of what the others have.
func (b *batch) refuse() {
	b.ready = slices.DeleteFunc(b.ready, func(p rollout.Plan) bool {
		if !p.Refused() {
			b.warn(p)
			return false
		}
		op := b.operation(p)
		op.Outcome, op.Code, op.Message = v1alpha1.Refused, p.Verdicts[0].Code, p.Verdicts[0].Message
		b.fail(op, &RefusedError{Plan: p})
		return true
	})
}

// warn says what stands in nobody's way but needs care.
func (b *batch) warn(p rollout.Plan) {
	for _, v := range p.Verdicts {
		if v.Severity == preflight.Warn || v.Severity == preflight.Unverified {
			b.Env.Warn("%s: %s: %s%s", v.Object, v.Code, v.Message, inParentheses(v.Remedy))
		}
	}
}

// RefusedError is a machine that preflight does not let through.
type RefusedError struct{ Plan rollout.Plan }

func (e *RefusedError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "virtualmachine %s can't be %s with its address:\n", e.Plan.Ref, e.Plan.Verb.Past())
	wide := 0
	refusals := slices.DeleteFunc(slices.Clone(e.Plan.Verdicts), func(v preflight.Verdict) bool { return v.Severity != preflight.Refuse })
	for _, v := range refusals {
		wide = max(wide, len(v.Code))
	}
	for _, v := range refusals {
		fmt.Fprintf(&s, "  %-*s   %s\n", wide, v.Code, v.Message)
		if v.Remedy != "" {
			fmt.Fprintf(&s, "  %-*s   (%s)\n", wide, "", v.Remedy)
		}
	}
	s.WriteString("nothing was changed")
	return s.String()
}

// ask shows which machines are going to be disturbed and asks for consent.
func (b *batch) ask(ctx context.Context) error {
	if b.Yes {
		return nil
	}
	fmt.Fprintf(b.Env.ErrOut, "%s:\n", b.Disturbs)
	for _, p := range b.ready {
		line := fmt.Sprintf("  %s on %s", p.Ref, p.Node)
		now, then := strings.Join(p.Operation().Before, ","), strings.Join(p.After(), ",")
		switch {
		case then == "":
		case now == then:
			line += ", keeps " + now
		default:
			line += fmt.Sprintf(", %s -> %s", printer.Unknown(now), then)
		}
		fmt.Fprintln(b.Env.ErrOut, printer.Escape(line))
	}
	return b.Env.Confirm(ctx, false, fmt.Sprintf("%s %s", b.Verb, counted(len(b.ready), "virtual machine")))
}

// run carries the plans out, going on after failures.
func (b *batch) run(ctx context.Context) error {
	out := printer.OperationPrinter{Out: b.Env.Out, Flags: b.Out}
	for _, op := range b.over {
		out.Add(op)
	}
	if len(b.ready) > 0 {
		b.carryAll(ctx, &out)
	}
	if err := out.Close(); err != nil {
		return err
	}
	if len(b.over)+len(b.ready) > 1 {
		fmt.Fprintln(b.Env.ErrOut, summary(out.Items()))
	}
	return b.result(ctx, out.Items())
}

func (b *batch) carryAll(ctx context.Context, out *printer.OperationPrinter) {
	progress := printer.NewProgress(b.Env.ErrOut, nil)
	if b.Out.Lines() {
		progress = printer.NewProgress(b.Env.ErrOut, b.Env.Out)
	}
	// Whatever is said meanwhile has to go through the progress, which rewrites the terminal.
	stderr := b.Env.ErrOut
	b.Env.ErrOut = progress
	if terminal(out.Out) && terminal(stderr) {
		out.Out = progress
	}
	defer func() { progress.Close(); b.Env.ErrOut = stderr }()
	var g errgroup.Group
	g.SetLimit(b.MaxParallel)
	for _, p := range b.ready {
		g.Go(func() error {
			o := b.carry(ctx, p, progress)
			o.DryRun = b.Dry.Output()
			out.Add(o.Operation)
			b.tell(o)
			return nil
		})
	}
	_ = g.Wait() // outcomes are told one by one
}

// carry carries one plan out, or a fresh one where it has become old.
func (b *batch) carry(ctx context.Context, p rollout.Plan, progress *printer.Progress) rollout.Outcome {
	if ctx.Err() != nil {
		op := b.operation(p)
		op.Outcome, op.Code = v1alpha1.Interrupted, rollout.CodeInterrupted
		op.Message = fmt.Sprintf("virtualmachine %s was not begun: interrupted", p.Ref)
		return rollout.Outcome{Operation: op}
	}
	if b.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.Timeout)
		defer cancel()
	}
	if time.Since(p.Made) > fresh {
		again, err := b.Plan(ctx, b.planner, p.Ref, b.Options)
		if err != nil {
			op := b.operation(p)
			op.Outcome, op.Message = v1alpha1.Failed, b.Env.Explain(err)
			return rollout.Outcome{Operation: op, Err: err}
		}
		p = again
	}
	if p.Refused() {
		op := b.operation(p)
		op.Outcome, op.Code, op.Message = v1alpha1.Refused, p.Verdicts[0].Code, p.Verdicts[0].Message
		return rollout.Outcome{Operation: op, Err: &RefusedError{Plan: p}}
	}
	if b.Dry.Enabled() {
		return b.Carry(ctx, b.planner.Deps, p, silent{})
	}
	task := progress.Start(b.Verb.Doing(), p.Ref.Namespace, p.Ref.Name)
	defer task.Done()
	return b.Carry(ctx, b.planner.Deps, p, task)
}

// tell writes what a user has to read about one outcome.
func (b *batch) tell(o rollout.Outcome) {
	for _, note := range o.Notes {
		b.Env.Warn("%s", note)
	}
	switch {
	case o.Err != nil:
		b.Env.PrintError(o.Err)
	case o.Outcome != v1alpha1.Done && o.Outcome != v1alpha1.Unchanged:
		b.Env.PrintError(errors.New(sentence(o)))
	}
}

// sentence is what became of a machine, with its name in front where the message has none.
func sentence(o rollout.Outcome) string {
	name := fmt.Sprintf("virtualmachine %s/%s", o.Namespace, strings.TrimPrefix(o.Object, "virtualmachine.kubevirt.io/"))
	text := o.Message
	if !strings.HasPrefix(text, name) {
		text = name + ": " + text
	}
	if o.Outcome == v1alpha1.Refused {
		text += "; nothing was changed"
	}
	return text
}

func terminal(w io.Writer) bool {
	_, is := term.GetFdInfo(w)
	return is
}

type silent struct{}

func (silent) Heading(string)       {}
func (silent) Phase(string, string) {}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func inParentheses(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}
