// Package scan lets commands bring the ledger's rows of state foreign up to date: the claims on
// addresses of pools that are no reservations.
package scan

import (
	"context"
	"fmt"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Cluster is the cluster of the clients, as audits and scans read it.
func Cluster(c *cli.Clients) *audit.Cluster {
	return &audit.Cluster{
		Core: c.Core, KubeVirt: c.KubeVirt, Ledger: c.Ledger, Clock: c.Clock, Namespace: c.Namespace,
		Profiles: func(ctx context.Context) (*profile.Cluster, error) {
			return profile.Detect(ctx, profile.Reader{Core: c.Core, Dynamic: c.Dynamic})
		},
	}
}

// shown is how many addresses a line names.
const shown = 5

// Refresh scans and says on standard error what changed in the ledger.
func Refresh(ctx context.Context, env *cli.Env, c *cli.Clients) error {
	done, err := Cluster(c).Refresh(ctx)
	if done != nil {
		for _, why := range done.Unseen {
			env.Warn("addresses that others use may be missing in the ledger, and none was freed: %s", why)
		}
		say(env, "in use by others, and not given out", done.Recorded, func(e ledger.Entry) string {
			return fmt.Sprintf("%s (%s: %s)", e.Addr, e.Row.VM, e.Row.Reason)
		})
		say(env, "no longer in use by others", done.Freed, func(e ledger.Entry) string {
			return fmt.Sprintf("%s (%s)", e.Addr, e.Row.VM)
		})
	}
	return err
}

func say(env *cli.Env, what string, rows []ledger.Entry, text func(ledger.Entry) string) {
	if len(rows) == 0 {
		return
	}
	var list []string
	for i, e := range rows {
		if i == shown {
			list = append(list, fmt.Sprintf("and %d more", len(rows)-i))
			break
		}
		list = append(list, text(e))
	}
	fmt.Fprintf(env.ErrOut, "%s: %s\n", what, printer.Escape(strings.Join(list, ", ")))
}
