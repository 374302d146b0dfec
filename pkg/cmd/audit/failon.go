package audit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
)

// failOn is --fail-on: the least severity that fails.
type failOn string

const never failOn = "none"

// Choices lists the allowed values, for completion.
func (failOn) Choices() []string {
	return []string{string(v1alpha1.SeverityError), string(v1alpha1.SeverityWarning), string(never)}
}

// Set implements pflag.Value.
func (f *failOn) Set(s string) error {
	if !slices.Contains(f.Choices(), s) {
		return fmt.Errorf("must be one of %s", strings.Join(f.Choices(), ", "))
	}
	*f = failOn(s)
	return nil
}

func (f *failOn) String() string { return string(*f) }

// Type implements pflag.Value.
func (*failOn) Type() string { return "severity" }

func (f failOn) fails(r *audit.Report) bool {
	return f != never && r.AtLeast(v1alpha1.Severity(f)) > 0
}
