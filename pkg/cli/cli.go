// Package cli is what all commands share: streams, connection flags, clients, the machines that
// a command line names, exit statuses and the wording of errors. It knows no command.
package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// Exit statuses of all commands: a contract, see docs/commands.md.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnchanged   = 3
	ExitTimeout     = 124
	ExitInterrupted = 130
)

// ErrInterrupted is the cause of a context that the user's Ctrl-C has cancelled.
var ErrInterrupted = errors.New("interrupted")

// ExitError carries the exit status of a command. Err may be nil where everything has been
// said already.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// Command is one subcommand: its constructor gets the shared environment.
type Command func(*Env) *cobra.Command
