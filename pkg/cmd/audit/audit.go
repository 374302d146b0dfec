// Package audit has the command that finds drift, duplicates and leaks.
package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/scan"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

type options struct {
	env           *cli.Env
	files         []string
	allNamespaces bool
	refresh       bool
	failOn        failOn
	grace         time.Duration
	out           printer.Flags
	// now and settle are replaced in tests.
	now    func() time.Time
	settle time.Duration
}

// New returns `kubectl vmip audit`.
func New(env *cli.Env) *cobra.Command {
	return (&options{env: env, now: time.Now, settle: time.Second}).command()
}

func (o *options) command() *cobra.Command {
	o.failOn = failOn(v1alpha1.SeverityWarning)
	cmd := &cobra.Command{
		Use:   "audit [-A] [-f DUMP]",
		Short: "Find drift, duplicate addresses and leaks",
		Long:  long(),
		Example: `  # The virtual machines of one namespace
  kubectl vmip audit -n tenant-a

  # All, with the command that remedies each finding
  kubectl vmip audit -A -o wide

  # A gate in a pipeline: only errors fail it
  kubectl vmip audit -A --fail-on=error -o markdown > audit.md

  # Look for addresses that others use first, so that none of them is given out
  kubectl vmip audit -A --refresh

  # A dump, without a cluster
  kubectl get vm,vmi,vmim,pods,nodes,namespaces,configmaps,daemonsets,deployments,crd -A -o json --show-managed-fields > dump.json
  kubectl vmip audit -A -f dump.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	fs := cmd.Flags()
	fs.StringSliceVarP(&o.files, "filename", "f", nil, "Dump to audit instead of the cluster: a file, a directory that is searched for .yaml, .yml and .json, or - for standard input (repeat for more)")
	fs.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Judge the virtual machines of all namespaces. A specific namespace is ignored even if given with --namespace. With -f: the dump has all virtual machines of the cluster, so that a missing one is gone")
	fs.BoolVar(&o.refresh, "refresh", false, "First bring the ledger's record of addresses that others use up to date: pods, nodes, services, templates and the network plugin's records. It needs the rights of pool add")
	fs.Var(&o.failOn, "fail-on", "Least severity of a finding with which the exit status is 1: error, warning or none")
	fs.DurationVar(&o.grace, "grace", audit.DefaultGrace, "How long a state may last that commands and controllers pass through before it is reported")
	o.out.AddReportFlags(fs)
	return cmd
}

func long() string {
	var b strings.Builder
	b.WriteString(`Compare what the ledger says with what the cluster shows, or a dump of it, and report what differs.

The ledger is read whole, and the virtual machines of the namespace, or of all with -A, are judged.
Pods and virtual machines of other namespaces are looked at too where you may list them: they may
have an address that is not theirs. Every finding in a cluster is read again before it is reported.
What could not be read is listed as skipped, on standard error: its codes were not checked.

Exit status:
  0  nothing found at or above --fail-on
  1  something found at or above --fail-on
  2  could not look: no cluster, no permission to read the ledger or virtual machines, a dump that
     can't be read, wrong usage
  On Windows kubectl turns any failure of a plugin into 1: call kubectl-vmip.exe there.

Findings:
`)
	for _, c := range audit.Checks {
		fmt.Fprintf(&b, "  %-8s %s\n%s\n", c.Severity, c.Code, indent(c.Meaning, "           ", 96))
	}
	return b.String()
}

// indent breaks a sentence into lines.
func indent(s, prefix string, width int) string {
	var lines []string
	line := prefix
	for _, word := range strings.Fields(s) {
		if len(line)+len(word) > width {
			lines = append(lines, strings.TrimRight(line, " "))
			line = prefix
		}
		line += word + " "
	}
	return strings.Join(append(lines, strings.TrimRight(line, " ")), "\n")
}

func (o *options) run(ctx context.Context) error {
	if o.refresh && len(o.files) > 0 {
		return cli.UsageError(errors.New("--refresh writes to a cluster, and -f audits a dump: use one of them"))
	}
	if o.grace <= 0 {
		return cli.UsageError(fmt.Errorf("--grace %s: give a positive duration", o.grace))
	}
	report, api, err := o.look(ctx)
	if err != nil {
		return couldNotLook(err)
	}
	if err := o.print(report, api); err != nil {
		return couldNotLook(err)
	}
	if o.failOn.fails(report) {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// couldNotLook is the status of an audit that says nothing about the cluster. Being interrupted
// has a status of its own.
func couldNotLook(err error) error {
	if cli.ExitCode(err) == cli.ExitFailed {
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	return err
}

// look audits the cluster or the dump.
func (o *options) look(ctx context.Context) (*audit.Report, *v1alpha1.AuditReport, error) {
	if len(o.files) > 0 {
		return o.dump(ctx)
	}
	c, err := o.env.Clients()
	if err != nil {
		return nil, nil, err
	}
	if o.refresh {
		if err := scan.Refresh(ctx, o.env, c); err != nil {
			return nil, nil, err
		}
	}
	cluster := scan.Cluster(c)
	cluster.Settle = o.settle
	if o.allNamespaces {
		cluster.Namespace = ""
	}
	report, snapshot, err := cluster.Check(ctx, audit.Options{Grace: o.grace})
	if err != nil {
		return nil, nil, err
	}
	return report, o.describe(report, snapshot, cluster.Namespace), nil
}

func (o *options) dump(ctx context.Context) (*audit.Report, *v1alpha1.AuditReport, error) {
	// The context's namespace has nothing to do with a dump: only a namespace that was given counts.
	namespace := *o.env.Flags.Namespace
	if o.allNamespaces {
		namespace = ""
	}
	d := audit.Dump{
		Paths: o.files, Stdin: o.env.In, LedgerNamespace: o.env.LedgerNamespace,
		Whole: o.allNamespaces, Namespace: namespace, Now: o.now(),
	}
	snapshot, err := d.Load(ctx)
	if err != nil {
		return nil, nil, err
	}
	report := audit.Run(snapshot, audit.Options{Namespace: namespace, Grace: o.grace})
	api := o.describe(report, snapshot, namespace)
	api.Files = o.files
	return report, api, nil
}
