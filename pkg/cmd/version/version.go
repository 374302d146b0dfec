// Package version has the command "version".
package version

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	build "github.com/kubectl-vmip/kubectl-vmip/pkg/version"
)

// patience is how long the server may take before the versions are printed without it.
const patience = 10 * time.Second

const example = `  # Print the versions of the plugin, of KubeVirt, of Kubernetes and of the ledger
  kubectl vmip version

  # Print the plugin's version only, without asking a cluster
  kubectl vmip version --client

  # Print the KubeVirt version for a script
  kubectl vmip version -o jsonpath='{.kubeVirtVersion}'`

type options struct {
	env    *cli.Env
	print  printer.Flags
	client bool
}

// New returns the command.
func New(env *cli.Env) *cobra.Command {
	o := &options{env: env}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the plugin and of the cluster",
		Long: `Print the versions of the plugin, of KubeVirt, of Kubernetes and of the ledger's format.

A cluster that can't be reached is a warning and no failure. Versions that don't go together are
warned about on standard error.`,
		Example:           example,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.print.AddVersionFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.client, "client", false, "Print the plugin's version only; asks no cluster")
	return cmd
}

func (o *options) run(ctx context.Context) error {
	v := &v1alpha1.VersionInfo{
		TypeMeta:     v1alpha1.Type("VersionInfo"),
		Version:      build.String(),
		Commit:       build.Commit(),
		GoVersion:    runtime.Version(),
		Platform:     runtime.GOOS + "/" + runtime.GOARCH,
		LedgerFormat: ledger.Format,
	}
	if !o.client {
		if err := o.ask(ctx, v); err != nil {
			return err
		}
	}
	if o.print.Structured() {
		return o.print.Object(o.env.Out, v)
	}
	o.text(v)
	return nil
}

// ask fills in what the cluster tells. Only an interruption is an error.
func (o *options) ask(ctx context.Context, v *v1alpha1.VersionInfo) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	clients, err := o.env.Clients()
	if err == nil {
		err = read(ctx, clients, v)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if err != nil {
		o.env.Warn("%s", o.env.Explain(err))
	}
	for _, w := range skew(v.KubeVirtVersion, v.KubernetesVersion, v.ClusterLedgerFormat, ledger.Format) {
		o.env.Warn("%s", w)
	}
	return nil
}

// read asks for each version; what is learnt before a failure stays.
func read(ctx context.Context, c *cli.Clients, v *v1alpha1.VersionInfo) error {
	// The discovery client's ServerVersion takes no context and could hang.
	raw, err := c.Core.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return err
	}
	if v.KubernetesVersion, err = gitVersion(raw); err != nil {
		return err
	}
	kubevirts, err := c.KubeVirt.KubevirtV1().KubeVirts(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	switch {
	case err != nil:
		return err
	case len(kubevirts.Items) == 0:
		err = errors.New("the cluster has no KubeVirt object: KubeVirt is not deployed")
	default:
		v.KubeVirtVersion = kubevirts.Items[0].Status.ObservedKubeVirtVersion
	}
	domains, lerr := c.Ledger.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: ledger.LabelKind + "=" + ledger.KindNetwork, Limit: 1})
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	for _, d := range domains.Items {
		v.ClusterLedgerFormat = d.Annotations[ledger.AnnotationFormat]
	}
	return err
}

func (o *options) text(v *v1alpha1.VersionInfo) {
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(o.env.Out, "%s: %s\n", name, printer.Escape(value))
		}
	}
	line("Client Version", v.Version)
	if o.client {
		line("Ledger Format", v.LedgerFormat)
		return
	}
	line("KubeVirt Version", printer.Unknown(v.KubeVirtVersion))
	line("Kubernetes Version", printer.Unknown(v.KubernetesVersion))
	format := v.LedgerFormat
	if v.ClusterLedgerFormat != "" && v.ClusterLedgerFormat != format {
		format += " (in the cluster: " + v.ClusterLedgerFormat + ")"
	}
	line("Ledger Format", format)
}
