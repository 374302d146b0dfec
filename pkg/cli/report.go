package cli

import (
	"errors"
	"fmt"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

// usage marks the errors of UsageError: not every status 2 is one.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// UsageError is a command line that can't be understood; it exits with status 2.
func UsageError(err error) error { return &ExitError{Code: ExitUsage, Err: usage{err}} }

// Report writes the error that a command returned and returns its exit status. command is the
// command's path, "kubectl vmip reserve".
func (e *Env) Report(command string, err error) int {
	if err != nil && err.Error() != "" {
		e.PrintError(err)
		var u usage
		if errors.As(err, &u) {
			fmt.Fprintf(e.ErrOut, "See '%s -h' for help and examples\n", command)
		}
	}
	return ExitCode(err)
}

// PrintError writes an error to ErrOut with what explains it. Errors that were joined are written
// one by one, the same text once: 50 machines that meet a stopped API server are one message.
func (e *Env) PrintError(err error) {
	s := e.site()
	seen := map[string]bool{}
	for _, err := range split(err) {
		message, hint := s.explain(err)
		text := "error: " + printer.Escape(strings.TrimRight(message, "\n")) + "\n"
		if hint != "" {
			text += "hint: " + printer.Escape(hint) + "\n"
		}
		if !seen[text] {
			seen[text] = true
			fmt.Fprint(e.ErrOut, text)
		}
	}
}

// split returns the parts of joined and aggregated errors. An error that wraps several in one
// sentence stays whole.
func split(err error) []error {
	switch e := err.(type) {
	case *ExitError:
		return split(e.Err)
	case usage:
		return split(e.error)
	case utilerrors.Aggregate:
		return splitAll(e.Errors())
	case interface{ Unwrap() []error }:
		parts := e.Unwrap()
		texts := make([]string, len(parts))
		for i, p := range parts {
			texts[i] = p.Error()
		}
		if strings.Join(texts, "\n") == err.Error() {
			return splitAll(parts)
		}
	}
	return []error{err}
}

func splitAll(parts []error) (all []error) {
	for _, p := range parts {
		all = append(all, split(p)...)
	}
	return all
}

// Explain returns an error's text as PrintError would word it, on one line and without the hint.
func (e *Env) Explain(err error) string {
	var texts []string
	for _, err := range split(err) {
		message, _ := e.site().explain(err)
		texts = append(texts, message)
	}
	return strings.ReplaceAll(strings.Join(texts, "; "), "\n", " ")
}
