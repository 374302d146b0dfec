package cli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// completionTime bounds what a press of the tab key waits for.
const completionTime = 2 * time.Second

// Lister finds the words that may stand at a place of the command line.
type Lister func(context.Context, *Clients) ([]string, error)

// Complete makes a completion of what the cluster has. It stays silent whatever goes wrong, and
// leaves out words that the line has already.
func (e *Env) Complete(list Lister) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		c, err := e.Clients()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		parent := cmd.Context()
		if parent == nil {
			parent = context.Background()
		}
		ctx, cancel := context.WithTimeout(parent, completionTime)
		defer cancel()
		words, err := list(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		words = slices.DeleteFunc(words, func(w string) bool { return slices.Contains(args, w) })
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteMachines completes names of virtual machines of the namespace.
func (e *Env) CompleteMachines(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return e.Complete(func(ctx context.Context, c *Clients) ([]string, error) {
		refs, err := listMachines(ctx, c, c.Namespace, "")
		names := make([]string, 0, len(refs))
		for _, r := range refs {
			names = append(names, r.Name)
		}
		return names, err
	})(cmd, args, word)
}

// CompletePools completes names of address pools.
func (e *Env) CompletePools(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return e.Complete(func(ctx context.Context, c *Clients) ([]string, error) {
		pools, err := c.Ledger.Pools(ctx)
		names := make([]string, 0, len(pools))
		for _, p := range pools {
			names = append(names, p.Name)
		}
		if damaged := (*ledger.DamagedPoolsError)(nil); errors.As(err, &damaged) {
			// They can be repaired and removed.
			return slices.AppendSeq(names, maps.Keys(damaged.Pools)), nil
		}
		return names, err
	})(cmd, args, word)
}

// CompleteNamespaces completes names of namespaces.
func (e *Env) CompleteNamespaces(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return e.Complete(func(ctx context.Context, c *Clients) ([]string, error) {
		list, err := c.Core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		names := make([]string, 0, len(list.Items))
		for _, ns := range list.Items {
			names = append(names, ns.Name)
		}
		return names, nil
	})(cmd, nil, word)
}

// CompleteContexts completes the contexts of the kubeconfig.
func (e *Env) CompleteContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return e.contexts(), cobra.ShellCompDirectiveNoFileComp
}

func (e *Env) contexts() []string {
	raw, err := e.Flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(raw.Contexts))
	for name := range raw.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
