package pool

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

func newList(env *cli.Env) *cobra.Command {
	var out printer.Flags
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List address pools and how full they are",
		Example: `  kubectl vmip pool list -o wide`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := env.Clients()
			if err != nil {
				return err
			}
			snap, err := c.Ledger.Snapshot(cmd.Context())
			if err != nil {
				return err
			}
			for _, d := range snap.Damaged {
				env.Warn("%s", d)
			}
			if len(snap.Pools) == 0 {
				env.NothingFound("pools", c.Ledger.Namespace, false)
			}
			return print(env, out, snap, snap.Pools)
		},
	}
	out.AddListFlags(cmd.Flags())
	return cmd
}

func newShow(env *cli.Env) *cobra.Command {
	var out printer.Flags
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one address pool and its reservations",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: env.CompletePools,
		Example: `  kubectl vmip pool show lab`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := env.Clients()
			if err != nil {
				return err
			}
			p, err := c.Ledger.Pool(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			snap, err := c.Ledger.Snapshot(cmd.Context())
			if err != nil {
				return err
			}
			if out.Structured() || out.Output != "" {
				return print(env, out, snap, []ledger.Pool{*p})
			}
			return describe(env, snap, *p)
		},
	}
	out.AddListFlags(cmd.Flags())
	return cmd
}

func print(env *cli.Env, out printer.Flags, snap *ledger.Snapshot, pools []ledger.Pool) error {
	list := &v1alpha1.PoolList{TypeMeta: v1alpha1.Type("PoolList"), Items: []v1alpha1.Pool{}}
	for _, p := range pools {
		u, err := usage(p, snap)
		if err != nil {
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
		list.Items = append(list.Items, u)
	}
	return printer.List[v1alpha1.Pool]{
		Columns:  columns,
		Resource: func(p v1alpha1.Pool) string { return "pool/" + p.Name },
	}.Print(env.Out, out, list, list.Items)
}

// describe prints the pool for people: every setting on a line, then its rows with a total.
func describe(env *cli.Env, snap *ledger.Snapshot, p ledger.Pool) error {
	u, err := usage(p, snap)
	if err != nil {
		return fmt.Errorf("pool %s: %w", p.Name, err)
	}
	for _, col := range columns {
		fmt.Fprintf(env.Out, "%-12s %s\n", col.Name+":", col.Value(u))
	}
	rows := printer.Report{Columns: []string{"ADDRESS", "STATE", "VIRTUALMACHINE", "INTERFACE", "SINCE"}}
	for _, e := range snap.Entries {
		if e.Network != p.Network || !p.Contains(e.Addr) {
			continue
		}
		if e.Err != nil {
			rows.Rows = append(rows.Rows, []string{e.Addr.String(), "Damaged", e.Err.Error(), "", ""})
			continue
		}
		rows.Rows = append(rows.Rows, []string{e.Addr.String(), string(e.Row.State), e.Row.VM, e.Row.Interface, e.Row.Since.UTC().Format("2006-01-02T15:04:05Z")})
	}
	if len(rows.Rows) == 0 {
		return nil
	}
	fmt.Fprintln(env.Out)
	rows.Footer = []string{fmt.Sprintf("%d rows, %s of %s addresses free", len(rows.Rows), u.Free, u.Total), "", "", "", ""}
	return rows.Print(env.Out, printer.Flags{})
}
