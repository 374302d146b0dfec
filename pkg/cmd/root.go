// Package cmd composes the program of its commands.
package cmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/completion"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/list"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/migrate"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/options"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/policy"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/pool"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/reclaimer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/release"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/reserve"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/restart"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/version"
)

// groups are the commands in the order of the help.
var groups = []struct {
	id, title string
	commands  []cli.Command
}{
	{"addresses", "Addresses:", []cli.Command{
		pool.New, reserve.New, release.New, list.New,
	}},
	{"operations", "Operations:", []cli.Command{
		restart.New, migrate.New,
	}},
	{"inspection", "Inspection:", []cli.Command{
		audit.New, // then: profile.New, checkbinding.New
	}},
	{"node", "Node components:", []cli.Command{
		reclaimer.New, // then: install.New, uninstall.New, agent.New
	}},
	{"other", "Other:", []cli.Command{policy.New, version.New, completion.New, options.New}},
}

// Execute runs the command that args name and returns its exit status.
func Execute(ctx context.Context, streams genericiooptions.IOStreams, args []string) int {
	env := cli.NewEnv(streams)
	root := New(env)
	running := false
	walk(root, func(c *cobra.Command) {
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				running = true
				return run(c, args)
			}
		}
	})
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	if err != nil && !running {
		err = cli.UsageError(err)
	}
	return env.Report(c.CommandPath(), err)
}

// New returns the root command with all others below it.
func New(env *cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-vmip",
		Short: "Fixed IP addresses for KubeVirt virtual machines",
		Long: `Give KubeVirt virtual machines fixed IP addresses, on the network plugin that the cluster has.

The ledger of who owns which address is kept in ConfigMaps. Virtual machines are patched so that the
network plugin honours it, restarted and live-migrated in an order that never loses or doubles an
address, and audited.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl vmip"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.ErrOut)
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpTemplate(helpTemplate)
	env.AddFlags(root.PersistentFlags())
	for _, g := range groups {
		if len(g.commands) == 0 {
			continue
		}
		shown := false
		for _, command := range g.commands {
			c := command(env)
			if !c.Hidden {
				c.GroupID, shown = g.id, true
			}
			root.AddCommand(c)
		}
		if shown { // a title above nothing helps nobody
			root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		}
	}
	root.SetHelpCommandGroupID("other")
	walk(root, func(c *cobra.Command) {
		if c.HasSubCommands() {
			c.Args, c.RunE = subcommand, func(c *cobra.Command, _ []string) error { return c.Help() }
		} else if c.Args != nil {
			c.Args = arguments(c.Args)
		}
		c.SuggestionsMinimumDistance = 2
		c.InitDefaultHelpFlag()
		c.Flags().Lookup("help").Usage = "Show this help"
		c.Flags().VisitAll(func(f *pflag.Flag) { completeChoices(c, f) })
	})
	// Errors here are those of names that are no flag or registered twice.
	_ = root.RegisterFlagCompletionFunc("namespace", env.CompleteNamespaces)
	_ = root.RegisterFlagCompletionFunc("ledger-namespace", env.CompleteNamespaces)
	_ = root.RegisterFlagCompletionFunc("context", env.CompleteContexts)
	return root
}

func walk(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

// subcommand refuses what is no subcommand. cobra does so at the root only.
func subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
	if s := c.SuggestionsFor(args[0]); len(s) > 0 {
		text += fmt.Sprintf(`; did you mean "%s"?`, strings.Join(s, `" or "`))
	}
	return errors.New(text)
}

// arguments words the error of cobra.NoArgs, which speaks of commands where there are none.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err != nil && strings.HasPrefix(err.Error(), "unknown command") {
			return fmt.Errorf("%s takes no arguments, but was given %q", c.CommandPath(), strings.Join(args, " "))
		}
		return err
	}
}

// completeChoices completes flags whose values are a fixed list, as their types tell.
func completeChoices(c *cobra.Command, f *pflag.Flag) {
	if v, ok := f.Value.(interface{ Choices() []string }); ok {
		_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(v.Choices(), cobra.ShellCompDirectiveNoFileComp))
	}
}
