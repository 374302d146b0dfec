package printer

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
)

// OperationPrinter prints what a mutating command does: a line for each object at once, or the
// whole OperationResult at the end. It may be used from several goroutines.
type OperationPrinter struct {
	Out   io.Writer
	Flags Flags

	mu    sync.Mutex
	items []v1alpha1.Operation
	err   error
}

// Operations prints the result of a command that has ended.
func Operations(w io.Writer, f Flags, ops []v1alpha1.Operation) error {
	p := &OperationPrinter{Out: w, Flags: f}
	for _, op := range ops {
		p.Add(op)
	}
	return p.Close()
}

// Add takes one operation that has ended. What did not work is an error of the command, which
// goes to standard error; here it shows in the OperationResult only.
func (p *OperationPrinter) Add(op v1alpha1.Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = append(p.items, op)
	if p.Flags.Structured() || p.err != nil || op.Outcome != v1alpha1.Done && op.Outcome != v1alpha1.Unchanged {
		return
	}
	line := Line(op)
	if p.Flags.Output == Name {
		line = Escape(op.Object)
	}
	_, p.err = fmt.Fprintln(p.Out, line)
}

// Items are the operations so far.
func (p *OperationPrinter) Items() []v1alpha1.Operation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.items)
}

// Close prints the OperationResult in the structured formats.
func (p *OperationPrinter) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || !p.Flags.Structured() {
		return p.err
	}
	return p.Flags.Object(p.Out, &v1alpha1.OperationResult{TypeMeta: v1alpha1.Type("OperationResult"), Items: append([]v1alpha1.Operation{}, p.items...)})
}

// Line is the operation as people read it: TYPE/NAME, verb, the addresses that changed, a note
// in parentheses.
func Line(op v1alpha1.Operation) string {
	words := []string{op.Object, op.Verb}
	if op.Outcome == v1alpha1.Unchanged {
		words[1] = "unchanged"
	}
	if a := changed(op); len(a) > 0 {
		words = append(words, strings.Join(a, ","))
	}
	if n := note(op); n != "" {
		words = append(words, "("+n+")")
	}
	switch op.DryRun {
	case "client":
		words = append(words, "(dry run)")
	case "server":
		words = append(words, "(server dry run)")
	}
	return strings.ReplaceAll(Escape(strings.Join(words, " ")), "\n", " ")
}

// changed are the addresses worth telling: a restart that kept its address needs none.
func changed(op v1alpha1.Operation) []string {
	switch {
	case op.Outcome == v1alpha1.Unchanged:
		return op.After
	case slices.Equal(op.Before, op.After):
		return nil
	case len(op.After) > 0:
		return op.After
	}
	return op.Before
}

func note(op v1alpha1.Operation) string {
	switch {
	case !op.RestartPending:
		return op.Message
	case op.Message == "":
		return "restart pending"
	}
	return "restart pending: " + op.Message
}
