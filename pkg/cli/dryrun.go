package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DryRun is --dry-run. The zero value is "none".
type DryRun string

// The three values of --dry-run.
const (
	DryRunNone   DryRun = "none"
	DryRunClient DryRun = "client"
	DryRunServer DryRun = "server"
)

// AddFlag adds --dry-run.
func (d *DryRun) AddFlag(fs *pflag.FlagSet) {
	*d = DryRunNone
	fs.Var(d, "dry-run", "Must be \"none\", \"server\" or \"client\". \"client\" prints what would be done; \"server\" submits every write without persisting it")
}

// Choices lists the allowed values, for completion.
func (DryRun) Choices() []string {
	return []string{string(DryRunNone), string(DryRunClient), string(DryRunServer)}
}

// Set implements pflag.Value.
func (d *DryRun) Set(s string) error {
	if !slices.Contains(d.Choices(), s) {
		return fmt.Errorf("must be one of %s", strings.Join(d.Choices(), ", "))
	}
	*d = DryRun(s)
	return nil
}

func (d DryRun) String() string {
	if d == "" {
		return string(DryRunNone)
	}
	return string(d)
}

// Type implements pflag.Value.
func (DryRun) Type() string { return "string" }

// Enabled says whether nothing must be changed.
func (d DryRun) Enabled() bool { return d == DryRunClient || d == DryRunServer }

// Client says whether no write may even be sent.
func (d DryRun) Client() bool { return d == DryRunClient }

// Options is the dryRun field of the options of a write: All for "server".
func (d DryRun) Options() []string {
	if d == DryRunServer {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// Output is the value of the dryRun field of an Operation, "" for none.
func (d DryRun) Output() string {
	if d.Enabled() {
		return string(d)
	}
	return ""
}
