package operation

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/rollout"
)

// bench is a command whose plans and outcomes are given.
type bench struct {
	*Command
	out, errOut strings.Builder
	carried     []string
}

func ref(name string) machine.Ref { return machine.Ref{Namespace: "tenant-a", Name: name} }

func newBench(t *testing.T, plan func(machine.Ref) (rollout.Plan, error), outcome func(rollout.Plan) rollout.Outcome) *bench {
	t.Helper()
	b := &bench{}
	env := cli.NewEnv(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &b.out, ErrOut: &b.errOut})
	env.Interactive = func() bool { return false }
	b.Command = &Command{
		Env: env, Verb: rollout.VerbRestart, Disturbs: "The guests of these virtual machines are shut down and started again", MaxParallel: 1, Yes: true,
		Plan: func(_ context.Context, _ *rollout.Planner, r machine.Ref, _ rollout.Options) (rollout.Plan, error) {
			return plan(r)
		},
		Carry: func(_ context.Context, _ rollout.Deps, p rollout.Plan, r rollout.Reporter) rollout.Outcome {
			b.carried = append(b.carried, p.Ref.Name)
			r.Phase("stopping", "old pod on "+p.Node)
			return outcome(p)
		},
	}
	return b
}

func good(r machine.Ref) (rollout.Plan, error) {
	return rollout.Plan{Verb: rollout.VerbRestart, Ref: r, Node: "n1", Made: time.Now()}, nil
}

func ends(outcome v1alpha1.Outcome, message string) func(rollout.Plan) rollout.Outcome {
	return func(p rollout.Plan) rollout.Outcome {
		op := p.Operation()
		op.Outcome, op.Message = outcome, message
		return rollout.Outcome{Operation: op}
	}
}

func (b *bench) do(ctx context.Context, names ...string) error {
	var refs []machine.Ref
	for _, n := range names {
		refs = append(refs, ref(n))
	}
	return b.Run(ctx, &cli.Clients{Ledger: &ledger.Store{}}, refs)
}

func TestRun(t *testing.T) {
	refused := func(r machine.Ref) (rollout.Plan, error) {
		p, _ := good(r)
		p.Verdicts = []preflight.Verdict{
			{Code: "NodeUnreachable", Severity: preflight.Refuse, Object: "virtualmachine " + r.String(), Message: "node n1 is unreachable", Remedy: "give --node-fenced"},
			{Code: "MACNotPinnedAndALongCode", Severity: preflight.Warn, Object: "virtualmachine " + r.String(), Message: "no MAC"},
		}
		return p, nil
	}
	tests := []struct {
		name        string
		plan        func(machine.Ref) (rollout.Plan, error)
		outcome     func(rollout.Plan) rollout.Outcome
		edit        func(*Command)
		vms         []string
		code        int
		stdout      string
		stderr      []string
		wantCarried int
	}{
		{name: "one", plan: good, outcome: ends(v1alpha1.Done, ""), vms: []string{"db-1"},
			stdout: "virtualmachine.kubevirt.io/db-1 restarted\n", stderr: []string{"restarting virtualmachine tenant-a/db-1\n", "stopping: old pod on n1"}, wantCarried: 1},
		{name: "refused", plan: refused, vms: []string{"db-1"}, code: 1, stderr: []string{
			"error: virtualmachine tenant-a/db-1 can't be restarted with its address:\n  NodeUnreachable   node n1 is unreachable\n                    (give --node-fenced)\nnothing was changed\n"}},
		{name: "unreadable", plan: func(r machine.Ref) (rollout.Plan, error) {
			return rollout.Plan{Ref: r, Verb: rollout.VerbRestart}, errors.New("no answer")
		}, vms: []string{"db-1"}, code: 1, stderr: []string{"error: no answer\n"}},
		{name: "goes on after failures", plan: good, outcome: func(p rollout.Plan) rollout.Outcome {
			if p.Ref.Name == "b" {
				return ends(v1alpha1.Failed, "the new instance ended at once")(p)
			}
			return ends(v1alpha1.Done, "")(p)
		}, vms: []string{"a", "b", "c"}, code: 1, stdout: "virtualmachine.kubevirt.io/a restarted\nvirtualmachine.kubevirt.io/c restarted\n",
			stderr: []string{"error: virtualmachine tenant-a/b: the new instance ended at once\n", "3 virtual machines: 2 restarted, 1 failed\n"}, wantCarried: 3},
		{name: "timed out", plan: good, outcome: ends(v1alpha1.TimedOut, "timed out"), vms: []string{"db-1"}, code: 124, wantCarried: 1},
		{name: "timed out and failed", plan: good, outcome: func(p rollout.Plan) rollout.Outcome {
			if p.Ref.Name == "b" {
				return ends(v1alpha1.Failed, "x")(p)
			}
			return ends(v1alpha1.TimedOut, "timed out")(p)
		}, vms: []string{"a", "b"}, code: 1, wantCarried: 2},
		{name: "asks", plan: good, edit: func(c *Command) { c.Yes = false }, vms: []string{"db-1"}, code: 2,
			stderr: []string{"The guests of these virtual machines are shut down and started again:\n  tenant-a/db-1 on n1\n"}},
		{name: "an old plan is made again", plan: func() func(r machine.Ref) (rollout.Plan, error) {
			made := 0
			return func(r machine.Ref) (rollout.Plan, error) {
				if made++; made > 1 {
					return refused(r)
				}
				p, err := good(r)
				p.Made = time.Now().Add(-time.Minute)
				return p, err
			}
		}(), vms: []string{"db-1"}, code: 1, stderr: []string{"NodeUnreachable"}},
		{name: "dry run", plan: good, edit: func(c *Command) { c.Dry = cli.DryRunClient }, vms: []string{"db-1"},
			stdout: "NAME            STEP      OBJECT                        VALUE\n"},
		{name: "preflight", plan: good, edit: func(c *Command) { c.CheckOnly = true }, vms: []string{"db-1"}, stdout: "virtualmachine.kubevirt.io/db-1 migratable\n"},
		{name: "preflight refuses", plan: refused, edit: func(c *Command) { c.CheckOnly = true }, vms: []string{"db-1"}, code: 1, stderr: []string{"node n1 is unreachable"}},
		{name: "nobody", plan: good, vms: nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, tt.plan, tt.outcome)
			if tt.edit != nil {
				tt.edit(b.Command)
			}
			err := b.do(t.Context(), tt.vms...)
			if got := cli.ExitCode(err); got != tt.code {
				t.Errorf("exit status %d (%v), want %d", got, err, tt.code)
			}
			if !strings.HasPrefix(b.out.String(), tt.stdout) || tt.stdout == "" && b.out.Len() > 0 {
				t.Errorf("stdout:\n%swant:\n%s", b.out.String(), tt.stdout)
			}
			for _, want := range tt.stderr {
				if !strings.Contains(b.errOut.String(), want) {
					t.Errorf("stderr:\n%swant:\n%s", b.errOut.String(), want)
				}
			}
			if len(b.carried) != tt.wantCarried {
				t.Errorf("carried out: %v", b.carried)
			}
		})
	}
}

// TestInterrupted: machines whose turn had not come are told apart from those that were begun.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	b := newBench(t, good, func(p rollout.Plan) rollout.Outcome {
		cancel(cli.ErrInterrupted)
		return ends(v1alpha1.Interrupted, "interrupted; the restart goes on")(p)
	})
	err := b.do(ctx, "a", "b")
	if cli.ExitCode(err) != cli.ExitInterrupted {
		t.Errorf("exit status of %v", err)
	}
	for _, want := range []string{"tenant-a/a: interrupted; the restart goes on", "virtualmachine tenant-a/b was not begun: interrupted"} {
		if !strings.Contains(b.errOut.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, b.errOut.String())
		}
	}
	if len(b.carried) != 1 {
		t.Errorf("carried out: %v", b.carried)
	}
}

func TestJSON(t *testing.T) {
	b := newBench(t, good, ends(v1alpha1.Done, ""))
	b.Out.Output = "json"
	if err := b.do(t.Context(), "db-1"); err != nil {
		t.Fatal(err)
	}
	events, result, found := strings.Cut(b.out.String(), "\n{\n")
	if !found || !strings.Contains(events, `"kind":"OperationEvent"`) || !strings.Contains(result, `"kind": "OperationResult"`) || !strings.Contains(result, `"outcome": "Done"`) {
		t.Errorf("%s", b.out.String())
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []*Command{{MaxParallel: 0}, {MaxParallel: 1, Timeout: -time.Second}} {
		if err := c.Validate(); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := (&Command{MaxParallel: 1}).Validate(); err != nil {
		t.Error(err)
	}
}
