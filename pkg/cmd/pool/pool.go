// Package pool has the commands that make and keep address pools.
package pool

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

// New returns `kubectl vmip pool`.
func New(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Manage address pools",
		Long: `Manage the pools that addresses are reserved from.

A pool is a CIDR of at most one a family, the ranges of it that automatic choice may use, and
what must never be given out: gateways, exclusions, network and broadcast addresses. Within one
network (--network) pools don't overlap, so that an address has one pool.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAdd(env), newList(env), newShow(env), newSet(env), newRemove(env))
	return cmd
}

// clusterUID identifies the cluster: the UID of its kube-system namespace. Whoever may not read
// it goes without; the registry's first writer should be an administrator.
func clusterUID(ctx context.Context, c *cli.Clients) (types.UID, error) {
	ns, err := c.Core.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return ns.UID, nil
}

func operation(name, verb string, outcome v1alpha1.Outcome, dry cli.DryRun, message string) v1alpha1.Operation {
	return v1alpha1.Operation{Object: "pool/" + name, Verb: verb, Outcome: outcome, Message: message, DryRun: dry.Output()}
}

// usage is a pool with its counts, as the commands print it.
func usage(p ledger.Pool, snap *ledger.Snapshot) (v1alpha1.Pool, error) {
	total, free, rows, err := snap.Usage(p)
	if err != nil {
		return v1alpha1.Pool{}, err
	}
	out := v1alpha1.Pool{
		Name: p.Name, Network: p.Network, CIDRs: p.CIDRs, Ranges: p.Ranges, Exclude: p.Exclude, Gateways: p.Gateways,
		Namespaces: p.Namespaces, Profile: p.Profile, Attachment: p.Attachment, HoldFor: p.HoldFor,
		Total: total.String(), Free: free.String(), Rows: map[string]int{},
	}
	for state, n := range rows {
		out.Rows[string(state)] = n
	}
	return out, nil
}

var columns = []printer.Column[v1alpha1.Pool]{
	{Name: "Name", Value: func(p v1alpha1.Pool) string { return p.Name }},
	{Name: "CIDR", Value: func(p v1alpha1.Pool) string { return strings.Join(p.CIDRs, ",") }},
	{Name: "Total", Value: func(p v1alpha1.Pool) string { return p.Total }},
	{Name: "Free", Value: func(p v1alpha1.Pool) string { return p.Free }},
	{Name: "Reserved", Value: func(p v1alpha1.Pool) string { return fmt.Sprint(p.Rows[string(ledger.Reserved)]) }},
	{Name: "Held", Value: func(p v1alpha1.Pool) string { return fmt.Sprint(p.Rows[string(ledger.Held)]) }},
	{Name: "Network", Value: func(p v1alpha1.Pool) string { return p.Network }},
	{Name: "Profile", Value: func(p v1alpha1.Pool) string { return p.Profile }},
	{Name: "Ranges", Wide: true, Value: func(p v1alpha1.Pool) string { return printer.None(strings.Join(p.Ranges, ",")) }},
	{Name: "Exclude", Wide: true, Value: func(p v1alpha1.Pool) string { return printer.None(strings.Join(p.Exclude, ",")) }},
	{Name: "Gateways", Wide: true, Value: func(p v1alpha1.Pool) string { return printer.None(strings.Join(p.Gateways, ",")) }},
	{Name: "Namespaces", Wide: true, Value: func(p v1alpha1.Pool) string { return printer.None(strings.Join(p.Namespaces, ",")) }},
	{Name: "Attachment", Wide: true, Value: func(p v1alpha1.Pool) string { return printer.None(p.Attachment) }},
	{Name: "Hold-For", Wide: true, Value: func(p v1alpha1.Pool) string { return p.HoldFor }},
}
