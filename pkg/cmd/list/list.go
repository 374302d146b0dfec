// Package list has the command that shows who has which address.
package list

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/plan"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
)

// New returns `kubectl vmip list`.
func New(env *cli.Env) *cobra.Command {
	targets := cli.NewTargets(env)
	targets.Optional = true
	var out printer.Flags
	cmd := &cobra.Command{
		Use: "list [VM… | -l SELECTOR] [-A]", Aliases: []string{"ls"},
		Short: "Show who has which address, and whether it is in effect",
		Long: `Show the reservations of the namespace beside what the cluster shows: the address that the
ledger reserves, the one that the running pod has and the one that the guest agent reports.

States:
  In-Use           the running pod has the address
  Stopped          the machine does not run; its address is kept
  Starting         the new pod has no address yet
  Restart-Pending  the running pod has another address until the next restart
  Drift            the pod was started with the reservation and has another address all the same
  Incomplete       the machine does not name the reservation: repeat the reserve or release
  Leaving, Releasing, Held   on the way out; a held address is cooling down
  VM-Missing, VM-Recreated, VM-Not-Created   no machine with the recorded UID`,
		Example: `  kubectl vmip list -n tenant-a

  # A backup, and how it comes back
  kubectl vmip list -A -o plan > plan.yaml
  kubectl vmip reserve -f plan.yaml

  # Reservations of all namespaces that wait for a restart
  kubectl vmip list -A -o json | jq '.items[] | select(.state == "Restart-Pending")'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := targets.Parse(args); err != nil {
				return err
			}
			return run(cmd.Context(), env, targets, out)
		},
	}
	targets.AddFlags(cmd)
	out.AddListFlags(cmd.Flags(), printer.Plan)
	return cmd
}

// cluster is what is read beside the ledger.
type cluster struct {
	ledger *ledger.Snapshot
	vms    []kubevirtv1.VirtualMachine
	vmis   []kubevirtv1.VirtualMachineInstance
	pods   []corev1.Pod
}

// read lists everything at once. The lists may be served from the API server's cache
// (resourceVersion "0"): nothing is decided by them.
func read(ctx context.Context, c *cli.Clients, namespace string) (out cluster, err error) {
	var g errgroup.Group
	cached := metav1.ListOptions{ResourceVersion: "0"}
	g.Go(func() (err error) { out.ledger, err = c.Ledger.Snapshot(ctx); return err })
	g.Go(func() error {
		list, err := c.KubeVirt.KubevirtV1().VirtualMachines(namespace).List(ctx, cached)
		if err == nil {
			out.vms = list.Items
		}
		return err
	})
	g.Go(func() error {
		list, err := c.KubeVirt.KubevirtV1().VirtualMachineInstances(namespace).List(ctx, cached)
		if err == nil {
			out.vmis = list.Items
		}
		return err
	})
	g.Go(func() error {
		launchers := cached
		launchers.LabelSelector = kubevirtv1.AppLabel + "=virt-launcher"
		list, err := c.Core.CoreV1().Pods(namespace).List(ctx, launchers)
		if err == nil {
			out.pods = list.Items
		}
		return err
	})
	return out, g.Wait()
}

func run(ctx context.Context, env *cli.Env, targets *cli.Targets, out printer.Flags) error {
	c, err := env.Clients()
	if err != nil {
		return err
	}
	namespace := targets.Namespace(c)
	all, err := read(ctx, c, namespace)
	if err != nil {
		return err
	}
	for _, d := range all.ledger.Damaged {
		env.Warn("%s", d)
	}
	index := machine.NewIndex(all.vms, all.vmis, all.pods, nil)
	show, said, err := selection(ctx, c, targets)
	if err != nil {
		return err
	}
	list := &v1alpha1.ReservationList{TypeMeta: v1alpha1.Type("ReservationList"), Items: []v1alpha1.Reservation{}}
	reservation.Sort(all.ledger.Entries)
	for _, e := range all.ledger.Entries {
		if e.Err != nil {
			env.Warn("%s", e)
			continue
		}
		owner := e.Row.Owner()
		ref := machine.Ref{Namespace: owner.Namespace, Name: owner.Name}
		if e.Row.State == ledger.Foreign || namespace != "" && ref.Namespace != namespace || !show(ref) {
			continue
		}
		list.Items = append(list.Items, item(all.ledger, index, e, ref, c.Clock.Now()))
	}
	if out.Output == printer.Plan {
		out.Output = printer.YAML
		return out.Object(env.Out, planOf(all.ledger, list.Items))
	}
	if len(list.Items) == 0 && !out.Structured() && !said {
		env.NothingFound("reservations", namespace, targets.AllNamespaces)
	}
	return printer.List[v1alpha1.Reservation]{
		Columns: columns(c.Clock.Now()), AllNamespaces: targets.AllNamespaces,
		Namespace: func(r v1alpha1.Reservation) string { return r.Namespace },
		Resource:  func(r v1alpha1.Reservation) string { return "virtualmachine.kubevirt.io/" + r.Name },
	}.Print(env.Out, out, list, list.Items)
}

// planOf is the plan that makes the listed reservations again, in this cluster or another one:
// what is reserved, and the pools that it is reserved from. Addresses on the way out are no
// reservations.
func planOf(snap *ledger.Snapshot, items []v1alpha1.Reservation) *v1alpha1.ReservationPlan {
	p := &v1alpha1.ReservationPlan{TypeMeta: v1alpha1.Type(plan.Kind), Items: []v1alpha1.PlannedReservation{}}
	used := map[string]bool{}
	at := map[string]int{}
	for _, r := range items {
		if r.Row != string(ledger.Reserved) {
			continue
		}
		used[r.Pool] = true
		owner := r.Namespace + "/" + r.Name + "/" + r.Interface
		n, ok := at[owner]
		if !ok {
			n = len(p.Items)
			at[owner] = n
			p.Items = append(p.Items, v1alpha1.PlannedReservation{Namespace: r.Namespace, Name: r.Name, Interface: r.Interface, Pool: r.Pool, MAC: r.MAC})
		}
		p.Items[n].Addresses = append(p.Items[n].Addresses, r.Address)
	}
	for _, l := range snap.Pools {
		if used[l.Name] {
			p.Pools = append(p.Pools, v1alpha1.PlannedPool{
				Name: l.Name, Network: l.Network, CIDRs: l.CIDRs, Ranges: l.Ranges, Exclude: l.Exclude, Gateways: l.Gateways,
				Namespaces: l.Namespaces, Profile: l.Profile, Attachment: l.Attachment, HoldFor: l.HoldFor,
			})
		}
	}
	slices.SortFunc(p.Pools, func(a, b v1alpha1.PlannedPool) int { return strings.Compare(a.Name, b.Name) })
	return p
}

// selection says which machines the command line asks for. said is set where that is none, which the
// user has been told.
func selection(ctx context.Context, c *cli.Clients, targets *cli.Targets) (show func(machine.Ref) bool, said bool, err error) {
	if !targets.Named() && targets.Selector == "" {
		return func(machine.Ref) bool { return true }, false, nil
	}
	refs, err := targets.Resolve(ctx, c)
	return func(r machine.Ref) bool { return slices.Contains(refs, r) }, len(refs) == 0, err
}

func item(snap *ledger.Snapshot, index *machine.Index, e ledger.Entry, ref machine.Ref, now time.Time) v1alpha1.Reservation {
	view, ok := index.View(ref)
	if !ok {
		view = nil
	}
	s := reservation.StatusOf(e, view, now)
	r := v1alpha1.Reservation{
		Namespace: ref.Namespace, Name: ref.Name, UID: string(e.Row.UID), Interface: e.Row.Interface, Network: e.Network,
		Address: e.Addr.String(), PodAddress: text(s.Pod), GuestAddress: text(s.Guest), Node: s.Node, MAC: s.MAC,
		Row: string(e.Row.State), State: s.State, Since: metav1.NewTime(e.Row.Since),
	}
	if p := snap.PoolOf(e.Network, e.Addr); p != nil {
		r.Pool = p.Name
	}
	return r
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func columns(now time.Time) []printer.Column[v1alpha1.Reservation] {
	type r = v1alpha1.Reservation
	return []printer.Column[r]{
		{Name: "Name", Value: func(x r) string { return x.Name }},
		{Name: "Interface", Value: func(x r) string { return x.Interface }},
		{Name: "Address", Value: func(x r) string { return x.Address }},
		{Name: "Pod", Value: func(x r) string { return printer.None(x.PodAddress) }},
		{Name: "Guest", Value: func(x r) string { return printer.Unknown(x.GuestAddress) }},
		{Name: "State", Value: func(x r) string { return x.State }},
		{Name: "Pool", Wide: true, Value: func(x r) string { return printer.None(x.Pool) }},
		{Name: "Network", Wide: true, Value: func(x r) string { return x.Network }},
		{Name: "Node", Wide: true, Value: func(x r) string { return printer.None(x.Node) }},
		{Name: "MAC", Wide: true, Value: func(x r) string { return printer.Unknown(x.MAC) }},
		{Name: "Age", Value: func(x r) string { return printer.Age(now, x.Since.Time) }},
	}
}
