package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/scan"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

func newAdd(env *cli.Env) *cobra.Command {
	var spec specFlags
	var out printer.Flags
	var dry cli.DryRun
	cmd := &cobra.Command{
		Use:   "add NAME --cidr CIDR [--range FIRST-LAST] [--gateway ADDRESS]",
		Short: "Add an address pool",
		Example: `  # A pool whose addresses 10 to 200 are given out automatically
  kubectl vmip pool add lab --cidr 198.51.100.0/24 --range 198.51.100.10-198.51.100.200 --gateway 198.51.100.1

  # Both families, for two namespaces only
  kubectl vmip pool add web --cidr 203.0.113.0/24,2001:db8:1::/64 --for-namespace tenant-a,tenant-b`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p := ledger.Pool{Name: args[0]}
			spec.apply(cmd.Flags(), &p)
			if len(p.CIDRs) == 0 {
				return cli.UsageError(errors.New("a pool needs --cidr"))
			}
			if err := checkProfile(p.Profile); err != nil {
				return cli.UsageError(err)
			}
			if _, err := p.Normalise(); err != nil {
				return cli.UsageError(err)
			}
			return add(cmd.Context(), env, p, dry, out)
		},
	}
	spec.add(cmd.Flags(), true)
	out.AddResultFlags(cmd.Flags())
	dry.AddFlag(cmd.Flags())
	return cmd
}

// profiles are the values of --profile.
var profiles = []string{ledger.ProfileAuto, "calico", "kube-ovn", "spiderpool"}

func checkProfile(name string) error {
	if name == "" || slices.Contains(profiles, name) {
		return nil
	}
	return fmt.Errorf("unknown profile %q: choose one of %s", name, strings.Join(profiles, ", "))
}

func add(ctx context.Context, env *cli.Env, p ledger.Pool, dry cli.DryRun, out printer.Flags) error {
	c, err := env.Clients()
	if err != nil {
		return err
	}
	uid, err := clusterUID(ctx, c)
	if err != nil {
		return err
	}
	if err := checkOverlap(ctx, env, c, p); err != nil {
		have, missing := c.Ledger.Pool(ctx, p.Name)
		if missing != nil || !same(*have, p) {
			return err
		}
		env.Warn("%v", err) // it was added before what it overlaps
	}
	outcome, wanted := v1alpha1.Done, p
	if dry.Client() {
		p, err = planAdd(ctx, c, p)
	} else {
		c.Ledger.DryRun = dry.Enabled()
		if err := ensureNamespace(ctx, c, dry); err != nil {
			return err
		}
		p, err = c.Ledger.AddPool(ctx, p, uid)
	}
	if exists := (*ledger.PoolExistsError)(nil); errors.As(err, &exists) && same(exists.Pool, wanted) {
		p, outcome, err = exists.Pool, v1alpha1.Unchanged, nil
	}
	if err != nil {
		return err
	}
	if len(p.Gateways) == 0 {
		env.Warn("pool %s has no --gateway, so a router's address in %s may be given out: name it with: kubectl vmip pool set %s --gateway ADDRESS", p.Name, strings.Join(p.CIDRs, ","), p.Name)
	}
	total, _, _, err := (&ledger.Snapshot{}).Usage(p)
	if err != nil {
		return err
	}
	if !dry.Enabled() {
		lookForOthers(ctx, env, c, p.Name)
	}
	message := fmt.Sprintf("%s addresses, profile %s", total, p.Profile)
	return printer.Operations(env.Out, out, []v1alpha1.Operation{operation(p.Name, "added", outcome, dry, message)})
}

// lookForOthers records who uses addresses of a pool that was added or changed. The pool stands
// without it: what an automatic choice takes is looked for among the pods in any case.
func lookForOthers(ctx context.Context, env *cli.Env, c *cli.Clients, name string) {
	if err := scan.Refresh(ctx, env, c); err != nil {
		env.Warn("who else uses addresses of pool %s was not found out: %v; run: kubectl vmip audit -A --refresh", name, err)
	}
}

// Ensure adds the pools of a plan that are missing. One that is there has to be as the plan has it:
// that is found out for all of them before any is added.
func Ensure(ctx context.Context, env *cli.Env, c *cli.Clients, planned []v1alpha1.PlannedPool, dry cli.DryRun) error {
	var missing []ledger.Pool
	for _, p := range planned {
		want := ledger.Pool{
			Name: p.Name, Network: p.Network, CIDRs: p.CIDRs, Ranges: p.Ranges, Exclude: p.Exclude, Gateways: p.Gateways,
			Namespaces: p.Namespaces, Profile: p.Profile, Attachment: p.Attachment, HoldFor: p.HoldFor,
		}
		if err := checkProfile(p.Profile); err != nil {
			return cli.UsageError(fmt.Errorf("pool %s: %w", p.Name, err))
		}
		want, err := want.Normalise()
		if err != nil {
			return cli.UsageError(err)
		}
		have, err := c.Ledger.Pool(ctx, p.Name)
		switch notFound := (*ledger.PoolNotFoundError)(nil); {
		case errors.As(err, &notFound):
			if err := checkOverlap(ctx, env, c, want); err != nil {
				return err
			}
			missing = append(missing, want)
		case err != nil:
			return err
		case !same(*have, want):
			return fmt.Errorf("pool %s is not as the plan has it: change one of them, or leave the pool out of the plan; see kubectl vmip pool show %s", p.Name, p.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if dry.Enabled() {
		return fmt.Errorf("pool %s does not exist yet, so that nothing can be tried: add it first with: kubectl vmip pool add %s --cidr %s", missing[0].Name, missing[0].Name, strings.Join(missing[0].CIDRs, ","))
	}
	uid, err := clusterUID(ctx, c)
	if err != nil {
		return err
	}
	if err := ensureNamespace(ctx, c, dry); err != nil {
		return err
	}
	for _, p := range missing {
		_, err := c.Ledger.AddPool(ctx, p, uid)
		if exists := (*ledger.PoolExistsError)(nil); err != nil && !(errors.As(err, &exists) && same(exists.Pool, p)) {
			return err
		}
		fmt.Fprintf(env.ErrOut, "pool/%s added\n", p.Name)
	}
	lookForOthers(ctx, env, c, missing[0].Name)
	return nil
}

// planAdd does what AddPool would check, without writing.
func planAdd(ctx context.Context, c *cli.Clients, p ledger.Pool) (ledger.Pool, error) {
	p, err := p.Normalise()
	if err != nil {
		return p, err
	}
	snap, err := c.Ledger.Snapshot(ctx)
	if err != nil {
		return p, err
	}
	return p, snap.CheckPool(p)
}

// same compares what was asked for with what is there; how far automatic choice has come is
// nobody's wish.
func same(a, b ledger.Pool) bool {
	b, err := b.Normalise()
	if err != nil {
		return false
	}
	a.OpenBlocks = b.OpenBlocks
	x, err1 := yaml.Marshal(a)
	y, err2 := yaml.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// ensureNamespace makes the ledger's namespace where it is missing.
func ensureNamespace(ctx context.Context, c *cli.Clients, dry cli.DryRun) error {
	_, err := c.Core.CoreV1().Namespaces().Get(ctx, c.Ledger.Namespace, metav1.GetOptions{})
	if err == nil || apierrors.IsForbidden(err) {
		return nil // who may not look may still write ConfigMaps
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("namespace %s: %w", c.Ledger.Namespace, err)
	}
	if dry.Enabled() {
		return fmt.Errorf("namespace %s does not exist yet and the server can't check writes into it: use --dry-run=client", c.Ledger.Namespace)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.Ledger.Namespace, Labels: map[string]string{"app.kubernetes.io/part-of": "kubectl-vmip"}}}
	_, err = c.Core.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{FieldManager: c.Ledger.FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s for the ledger: %w", c.Ledger.Namespace, err)
	}
	return nil
}

func newSet(env *cli.Env) *cobra.Command {
	var spec specFlags
	var out printer.Flags
	var dry cli.DryRun
	cmd := &cobra.Command{
		Use:   "set NAME [--range FIRST-LAST] [--exclude ADDRESS] …",
		Short: "Change an address pool",
		Long: `Change an address pool. Only what is given changes; a list replaces the list, and an empty
value clears it (--exclude=). A change that would leave a reserved address outside the pool is
refused, and the reservations that stand in its way are named.`,
		Example: `  # Give out more addresses
  kubectl vmip pool set lab --range 198.51.100.10-198.51.100.250

  # Never give out the printer's address
  kubectl vmip pool set lab --exclude 198.51.100.50`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: env.CompletePools,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkProfile(spec.profile); err != nil {
				return cli.UsageError(err)
			}
			return set(cmd.Context(), env, args[0], func(p *ledger.Pool) { spec.apply(cmd.Flags(), p) }, dry, out)
		},
	}
	spec.add(cmd.Flags(), false)
	out.AddResultFlags(cmd.Flags())
	dry.AddFlag(cmd.Flags())
	return cmd
}

func set(ctx context.Context, env *cli.Env, name string, change func(*ledger.Pool), dry cli.DryRun, out printer.Flags) error {
	c, err := env.Clients()
	if err != nil {
		return err
	}
	c.Ledger.DryRun = dry.Enabled()
	p, changed, err := c.Ledger.ChangePool(ctx, name, func(p ledger.Pool) ledger.Pool {
		change(&p)
		return p
	})
	if invalid := (*ledger.InvalidPoolError)(nil); errors.As(err, &invalid) {
		return cli.UsageError(err)
	}
	if err != nil {
		return err
	}
	outcome := v1alpha1.Unchanged
	if changed {
		outcome = v1alpha1.Done
		// A pool that lies there already is not refused any other change.
		if err := checkOverlap(ctx, env, c, p); err != nil {
			env.Warn("%v", err)
		}
	}
	snap, err := c.Ledger.Snapshot(ctx)
	if err != nil {
		return err
	}
	if changed && !dry.Enabled() {
		lookForOthers(ctx, env, c, name)
	}
	for _, ns := range snap.NotServed(p) {
		env.Warn("pool %s is no longer for namespace %s: its reservations stay, and it gets no new ones", name, ns)
	}
	total, _, _, err := (&ledger.Snapshot{}).Usage(p)
	if err != nil {
		return err
	}
	return printer.Operations(env.Out, out, []v1alpha1.Operation{operation(name, "changed", outcome, dry, total.String()+" addresses")})
}

func newRemove(env *cli.Env) *cobra.Command {
	var out printer.Flags
	var dry cli.DryRun
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove an address pool",
		Long: `Remove an address pool. Refused while the pool has reservations, or addresses that cool down
after a release.`,
		Example: `  kubectl vmip pool remove lab`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: env.CompletePools,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := env.Clients()
			if err != nil {
				return err
			}
			c.Ledger.DryRun = dry.Enabled()
			if err := c.Ledger.RemovePool(cmd.Context(), args[0]); err != nil {
				return err
			}
			return printer.Operations(env.Out, out, []v1alpha1.Operation{operation(args[0], "removed", v1alpha1.Done, dry, "")})
		},
	}
	out.AddResultFlags(cmd.Flags())
	dry.AddFlag(cmd.Flags())
	return cmd
}
