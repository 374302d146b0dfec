package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt/fake"
)

func vm(namespace, name, app string) runtime.Object {
	return &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}}}
}

func TestTargets(t *testing.T) {
	const source = "give one or more names, -l SELECTOR or --all or --from-node"
	for _, tc := range []struct {
		line     string
		optional bool
		want     string // the machines, or the error
		errOut   string
	}{
		{line: "db-1 web db-1", want: "tenant-a/db-1 tenant-a/web"},
		{line: "vm/db-1 virtualmachine/db-1 VirtualMachines.kubevirt.io/web vm.v1.kubevirt.io/x", want: "tenant-a/db-1 tenant-a/web tenant-a/x"},
		{line: "gone", want: "tenant-a/gone"},
		{line: "--all", want: "tenant-a/db-1 tenant-a/web"},
		{line: "-l app=db", want: "tenant-a/db-1"},
		{line: "-l app=db -A", want: "tenant-a/db-1 tenant-b/db-1"},
		{line: "--all -A", want: "tenant-a/db-1 tenant-a/web tenant-b/db-1"},
		{line: "-l app=none", errOut: "No virtual machines found in tenant-a namespace.\n"},
		{line: "-l app=none -A", errOut: "No virtual machines found\n"},
		{optional: true, want: "tenant-a/db-1 tenant-a/web"},
		{optional: true, line: "-A", want: "tenant-a/db-1 tenant-a/web tenant-b/db-1"},
		{line: "", want: "no virtual machine named; " + source},
		{line: "-A", want: "no virtual machine named; " + source},
		{line: "db-1 --all", want: "give only one of: names of virtual machines, --all"},
		{line: "-l a=b --all", want: "give only one of: -l, --all"},
		{line: "db-1 --from-node=n1", want: "give only one of: names of virtual machines, --from-node"},
		{line: "db-1 -A", want: "names of virtual machines can't be given together with -A; name their namespace with -n"},
		{line: "-l a==b==c", want: `--selector "a==b==c": `},
		{line: "vmi/db-1", want: "vmi/db-1 is a running instance, which ends with the next stop: addresses belong to virtual machines; name vm/db-1"},
		{line: "pod/virt-launcher-db-1-x7k2p", want: "pod/virt-launcher-db-1-x7k2p is a pod, "},
		{line: "tenant-a/db-1", want: `tenant-a/db-1: there is no type "tenant-a" here; name a virtual machine as NAME or vm/NAME, its namespace with -n`},
		{line: "vm/", want: `"" can't be the name of a virtual machine: `},
		{line: "DB_1", want: `"DB_1" can't be the name of a virtual machine: `},
	} {
		t.Run(tc.line, func(t *testing.T) {
			e, written := newEnv(t)
			c := &Clients{Namespace: "tenant-a", KubeVirt: fake.NewSimpleClientset(vm("tenant-b", "db-1", "db"), vm("tenant-a", "web", "web"), vm("tenant-a", "db-1", "db"))}
			targets := NewTargets(e)
			targets.Optional = tc.optional
			targets.Instead = []string{"from-node"}
			got := ""
			cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, args []string) error {
				if err := targets.Parse(args); err != nil {
					return err
				}
				refs, err := targets.Resolve(cmd.Context(), c)
				got = strings.Trim(fmt.Sprint(refs), "[]")
				return err
			}}
			cmd.Flags().String("from-node", "", "")
			targets.AddFlags(cmd)
			cmd.SetArgs(strings.Fields(tc.line))
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				got = err.Error()
				if ExitCode(err) != ExitUsage {
					t.Errorf("exit status %d", ExitCode(err))
				}
			}
			prefix := strings.HasSuffix(tc.want, " ") && strings.HasPrefix(got, tc.want)
			if got != tc.want && !prefix {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if _, errOut := written(); errOut != tc.errOut {
				t.Errorf("wrote %q, want %q", errOut, tc.errOut)
			}
		})
	}
}

func TestComplete(t *testing.T) {
	e, written := newEnv(t)
	e.Connect = func() (*Clients, error) {
		return &Clients{Namespace: "tenant-a", KubeVirt: fake.NewSimpleClientset(vm("tenant-b", "mail", ""), vm("tenant-a", "web", ""), vm("tenant-a", "db-1", ""))}, nil
	}
	words, directive := e.CompleteMachines(&cobra.Command{}, []string{"web"}, "")
	if fmt.Sprint(words) != "[db-1]" || directive != cobra.ShellCompDirectiveNoFileComp {
		t.Errorf("completes %v, %v", words, directive)
	}
	broken, writtenToo := newEnv(t)
	broken.Connect = func() (*Clients, error) { return nil, errors.New("no cluster") }
	if words, _ := broken.CompleteNamespaces(&cobra.Command{}, nil, ""); len(words) != 0 {
		t.Errorf("completes %v without a cluster", words)
	}
	for _, w := range []func() (string, string){written, writtenToo} {
		if out, errOut := w(); out+errOut != "" {
			t.Errorf("completion wrote %q %q", out, errOut)
		}
	}
}
