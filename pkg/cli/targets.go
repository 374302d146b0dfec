package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/pager"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"

	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Targets are the virtual machines that a command line names: by name, with -l or with --all.
type Targets struct {
	Selector      string
	All           bool
	AllNamespaces bool
	// Optional lets a command line name none at all, which then means all of the namespace: for
	// commands that only look.
	Optional bool
	// Instead lists flags that say otherwise what to act on (--from-node); with one of them no
	// machine has to be named, and none may be.
	Instead []string

	env   *Env
	cmd   *cobra.Command
	names []string
}

// NewTargets returns the targets of one command.
func NewTargets(env *Env) *Targets { return &Targets{env: env} }

// AddFlags adds -l, --all and -A to the command, and completes names of virtual machines.
func (t *Targets) AddFlags(cmd *cobra.Command) {
	t.cmd = cmd
	fs := cmd.Flags()
	fs.StringVarP(&t.Selector, "selector", "l", "", "Selector (label query) to filter virtual machines on, supports '=', '==', '!=', 'in', 'notin'. (e.g. -l key1=value1,key2=value2)")
	if !t.Optional {
		fs.BoolVar(&t.All, "all", false, "Select all virtual machines of the namespace")
	}
	fs.BoolVarP(&t.AllNamespaces, "all-namespaces", "A", false, "Select virtual machines of all namespaces. A specific namespace is ignored even if given with --namespace")
	cmd.ValidArgsFunction = t.env.CompleteMachines
}

// Parse takes the arguments, without any request.
func (t *Targets) Parse(args []string) error {
	t.names = nil
	for _, arg := range args {
		name, err := parseName(arg)
		if err != nil {
			return UsageError(err)
		}
		if !slices.Contains(t.names, name) {
			t.names = append(t.names, name)
		}
	}
	if _, err := labels.Parse(t.Selector); err != nil {
		return UsageError(fmt.Errorf("--selector %q: %w", t.Selector, err))
	}
	if err := t.oneSource(); err != nil {
		return UsageError(err)
	}
	return nil
}

// Changed says whether a flag of the command was given.
func (t *Targets) Changed(flag string) bool { return t.cmd.Flags().Changed(flag) }

func (t *Targets) oneSource() error {
	var given []string
	if len(t.names) > 0 {
		given = append(given, "names of virtual machines")
	}
	if t.Selector != "" {
		given = append(given, "-l")
	}
	if t.All {
		given = append(given, "--all")
	}
	for _, name := range t.Instead {
		if f := t.cmd.Flags().Lookup(name); f.Changed {
			if f.Value.String() == "" {
				return fmt.Errorf("--%s is empty: an unset variable would mean all of the namespace", name)
			}
			given = append(given, "--"+name)
		}
	}
	switch {
	case len(given) > 1:
		return fmt.Errorf("give only one of: %s", strings.Join(given, ", "))
	case t.AllNamespaces && len(t.names) > 0:
		return errors.New("names of virtual machines can't be given together with -A; name their namespace with -n")
	case len(given) == 0 && !t.Optional:
		return fmt.Errorf("no virtual machine named; give one or more names, -l SELECTOR or --all%s", instead(t.Instead))
	}
	return nil
}

func instead(flags []string) (s string) {
	for _, f := range flags {
		s += " or --" + f
	}
	return s
}

// Named says whether the command line names its machines one by one.
func (t *Targets) Named() bool { return len(t.names) > 0 }

// Names are the names that the command line gives, each once.
func (t *Targets) Names() []string { return slices.Clone(t.names) }

// Namespace is where to look: "" with -A.
func (t *Targets) Namespace(c *Clients) string {
	if t.AllNamespaces {
		return metav1.NamespaceAll
	}
	return c.Namespace
}

// Resolve returns the machines, sorted where they were listed. Names are returned as they are,
// whether they exist or not. Where nothing is found it says so on ErrOut and returns none.
func (t *Targets) Resolve(ctx context.Context, c *Clients) ([]machine.Ref, error) {
	if t.Named() {
		refs := make([]machine.Ref, 0, len(t.names))
		for _, name := range t.names {
			refs = append(refs, machine.Ref{Namespace: c.Namespace, Name: name})
		}
		return refs, nil
	}
	refs, err := listMachines(ctx, c, t.Namespace(c), t.Selector)
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		t.env.NothingFound("virtual machines", c.Namespace, t.AllNamespaces)
	}
	return refs, nil
}

func listMachines(ctx context.Context, c *Clients, namespace, selector string) ([]machine.Ref, error) {
	var refs []machine.Ref
	list := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return c.KubeVirt.KubevirtV1().VirtualMachines(namespace).List(ctx, opts)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		vm := o.(*kubevirtv1.VirtualMachine)
		refs = append(refs, machine.Ref{Namespace: vm.Namespace, Name: vm.Name})
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(refs, func(a, b machine.Ref) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return refs, nil
}

// parseName takes a machine's name, alone or as TYPE/NAME.
func parseName(arg string) (string, error) {
	kind, name, typed := strings.Cut(arg, "/")
	if !typed {
		name = arg
	} else if err := checkType(arg, kind, name); err != nil {
		return "", err
	}
	if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
		return "", fmt.Errorf("%q can't be the name of a virtual machine: %s", name, msgs[0])
	}
	return name, nil
}

func checkType(arg, kind, name string) error {
	short, _, _ := strings.Cut(strings.ToLower(kind), ".")
	switch short {
	case "vm", "vms", "virtualmachine", "virtualmachines":
		return nil
	case "vmi", "vmis", "virtualmachineinstance", "virtualmachineinstances":
		return fmt.Errorf("%s is a running instance, which ends with the next stop: addresses belong to virtual machines; name vm/%s", arg, name)
	case "po", "pod", "pods":
		return fmt.Errorf("%s is a pod, which ends with the next start or migration: addresses belong to virtual machines; name the pod's with vm/NAME", arg)
	}
	return fmt.Errorf("%s: there is no type %q here; name a virtual machine as NAME or vm/NAME, its namespace with -n", arg, kind)
}
