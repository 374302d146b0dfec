package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/cli-runtime/pkg/printers"
)

// ErrDeclined is the answer "no" to a question.
var ErrDeclined = errors.New("not confirmed; nothing was changed")

// Confirm asks before something that can't be taken back; what is the question without its
// question mark ("restart 2 virtual machines"). The caller has listed the objects. yes is --yes.
// Without a terminal it fails at once: a script that hangs helps nobody.
func (e *Env) Confirm(ctx context.Context, yes bool, what string) error {
	if yes {
		return nil
	}
	if !e.interactive() {
		return UsageError(fmt.Errorf("can't ask whether to %s: standard input is not a terminal; confirm with --yes", what))
	}
	fmt.Fprintf(e.ErrOut, "%s? (y/N): ", printers.EscapeTerminal(what))
	// The reader is left behind on Ctrl-C: a read from a terminal can't be cancelled.
	answer := make(chan string, 1)
	go func() {
		line, err := bufio.NewReader(e.In).ReadString('\n')
		if err != nil {
			fmt.Fprintln(e.ErrOut)
		}
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(e.ErrOut)
		return context.Cause(ctx)
	case a := <-answer:
		if strings.EqualFold(a, "y") || strings.EqualFold(a, "yes") {
			return nil
		}
		return ErrDeclined
	}
}
