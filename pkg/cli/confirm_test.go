package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestConfirm(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(ErrInterrupted)
	hang, _ := io.Pipe()
	for _, tc := range []struct {
		name     string
		ctx      context.Context
		in       io.Reader
		terminal bool
		yes      bool
		want     error
		code     int
		prompt   string
	}{
		{name: "--yes", yes: true, in: hang},
		{name: "y", terminal: true, in: strings.NewReader("y\n"), prompt: "restart 2 virtual machines? (y/N): "},
		{name: "YES", terminal: true, in: strings.NewReader(" YES \n"), prompt: "restart 2 virtual machines? (y/N): "},
		{name: "enter", terminal: true, in: strings.NewReader("\n"), want: ErrDeclined, code: 1, prompt: "restart 2 virtual machines? (y/N): "},
		{name: "end of file", terminal: true, in: strings.NewReader(""), want: ErrDeclined, code: 1, prompt: "restart 2 virtual machines? (y/N): \n"},
		{name: "Ctrl-C", ctx: interrupted, terminal: true, in: hang, want: ErrInterrupted, code: 130, prompt: "restart 2 virtual machines? (y/N): \n"},
		{name: "no terminal", in: hang, code: 2,
			want: errors.New("can't ask whether to restart 2 virtual machines: standard input is not a terminal; confirm with --yes")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, written := newEnv(t)
			e.In = tc.in
			if tc.terminal {
				e.Interactive = func() bool { return true }
			}
			if tc.ctx == nil {
				tc.ctx = t.Context()
			}
			err := e.Confirm(tc.ctx, tc.yes, "restart 2 virtual machines")
			if (err == nil) != (tc.want == nil) || err != nil && err.Error() != tc.want.Error() || ExitCode(err) != tc.code {
				t.Errorf("error %v with status %d, want %v with %d", err, ExitCode(err), tc.want, tc.code)
			}
			if out, errOut := written(); out != "" || errOut != tc.prompt {
				t.Errorf("wrote %q and %q, want the prompt %q", out, errOut, tc.prompt)
			}
		})
	}
}

func TestDryRun(t *testing.T) {
	for line, want := range map[string]string{
		"":                 "none,false,false,[],",
		"--dry-run=none":   "none,false,false,[],",
		"--dry-run=client": "client,true,true,[],client",
		"--dry-run=server": "server,true,false,[All],server",
	} {
		if got := parseDryRun(strings.Fields(line)); got != want {
			t.Errorf("%q is %s, want %s", line, got, want)
		}
	}
	for line, want := range map[string]string{
		"--dry-run=true": `invalid argument "true" for "--dry-run" flag: must be one of none, client, server`,
		"--dry-run":      "flag needs an argument: --dry-run",
	} {
		if got := parseDryRun([]string{line}); got != want {
			t.Errorf("%s is %s, want %s", line, got, want)
		}
	}
}

func parseDryRun(args []string) string {
	var d DryRun
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	d.AddFlag(fs)
	if err := fs.Parse(args); err != nil {
		return err.Error()
	}
	word := map[bool]string{true: "true", false: "false"}
	return strings.Join([]string{d.String(), word[d.Enabled()], word[d.Client()], "[" + strings.Join(d.Options(), "") + "]", d.Output()}, ",")
}
