package cmd

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
)

// run executes a command line without a cluster, or with the one of KUBECONFIG.
func run(t *testing.T, line ...string) (out, errOut string, status int) {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" {
		t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	}
	for _, v := range []string{"KUBERNETES_MASTER", "KUBERNETES_SERVICE_HOST"} {
		t.Setenv(v, "")
	}
	streams, _, o, e := genericiooptions.NewTestIOStreams()
	status = Execute(context.Background(), streams, line)
	return o.String(), e.String(), status
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		line   string
		status int
		errOut string
	}{
		{"reserv", 2, "error: unknown command \"reserv\" for \"kubectl vmip\"; did you mean \"reserve\"?\nSee 'kubectl vmip -h' for help and examples\n"},
		{"pool lst", 2, "error: unknown command \"lst\" for \"kubectl vmip pool\"; did you mean \"list\" or \"set\"?\nSee 'kubectl vmip pool -h' for help and examples\n"},
		{"pool nonsense", 2, "error: unknown command \"nonsense\" for \"kubectl vmip pool\"\nSee 'kubectl vmip pool -h' for help and examples\n"},
		{"version x y", 2, "error: kubectl vmip version takes no arguments, but was given \"x y\"\nSee 'kubectl vmip version -h' for help and examples\n"},
		{"version --nope", 2, "error: unknown flag: --nope\nSee 'kubectl vmip version -h' for help and examples\n"},
		{"version -o xml", 2, "error: invalid argument \"xml\" for \"-o, --output\" flag: unknown format; allowed are json, yaml, jsonpath=TEMPLATE, go-template=TEMPLATE\nSee 'kubectl vmip version -h' for help and examples\n"},
		{"policy --ledger-namespace No_Name", 2, "error: --ledger-namespace \"No_Name\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')\nSee 'kubectl vmip policy -h' for help and examples\n"},
		{"completion tcsh", 2, "error: invalid argument \"tcsh\" for \"kubectl vmip completion\"\nSee 'kubectl vmip completion -h' for help and examples\n"},
		{"reserve", 2, "error: no virtual machine named; give one or more names, -l SELECTOR or --all or --filename\nSee 'kubectl vmip reserve -h' for help and examples\n"},
		{"reserve vmi/db-1", 2, "error: vmi/db-1 is a running instance, which ends with the next stop: addresses belong to virtual machines; name vm/db-1\nSee 'kubectl vmip reserve -h' for help and examples\n"},
		{"reserve db-1", 1, "error: no cluster to talk to: there is no kubeconfig at CONFIG; name one with --kubeconfig or KUBECONFIG\n"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "none")
			t.Setenv("KUBECONFIG", config)
			out, errOut, status := run(t, strings.Fields(tc.line)...)
			if errOut = strings.ReplaceAll(errOut, config, "CONFIG"); errOut != tc.errOut || status != tc.status || out != "" {
				t.Errorf("status %d, output %q, errors\n%s\nwant status %d, errors\n%s", status, out, errOut, tc.status, tc.errOut)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	bare, errOut, status := run(t)
	if errOut != "" || status != 0 {
		t.Errorf("status %d, errors %q", status, errOut)
	}
	for _, line := range [][]string{{"-h"}, {"--help"}, {"help"}} {
		if out, _, status := run(t, line...); out != bare || status != 0 {
			t.Errorf("%v: status %d, output\n%s\nwant\n%s", line, status, out, bare)
		}
	}
	const want = `Other:
  completion  Print what shell completion needs
  help        Help about any command
  options     Print the flags that all commands have
  policy      Print the admission policy that guards the ledger
  version     Print the versions of the plugin and of the cluster

Usage:
  kubectl vmip COMMAND [flags]

Use "kubectl vmip COMMAND --help" for more about a command.
Use "kubectl vmip options" for the flags that all commands have.
`
	if !strings.HasSuffix(bare, want) || !strings.HasPrefix(bare, "Give KubeVirt virtual machines fixed IP addresses, ") {
		t.Errorf("help is\n%s\nwant at its end\n%s", bare, want)
	}
	const version = `Print the versions of the plugin, of KubeVirt, of Kubernetes and of the ledger's format.

A cluster that can't be reached is a warning and no failure. Versions that don't go together are
warned about on standard error.

Examples:
  # Print the versions of the plugin, of KubeVirt, of Kubernetes and of the ledger
  kubectl vmip version

  # Print the plugin's version only, without asking a cluster
  kubectl vmip version --client

  # Print the KubeVirt version for a script
  kubectl vmip version -o jsonpath='{.kubeVirtVersion}'

Options:
      --client          Print the plugin's version only; asks no cluster
  -h, --help            Show this help
  -o, --output string   Output format. One of: (json, yaml, jsonpath=TEMPLATE, go-template=TEMPLATE)

Usage:
  kubectl vmip version [flags]

Use "kubectl vmip options" for the flags that all commands have.
`
	if out, _, _ := run(t, "version", "-h"); out != version {
		t.Errorf("help is\n%s\nwant\n%s", out, version)
	}
}

// Each command reads like its neighbours.
func TestConventions(t *testing.T) {
	root := New(cli.NewEnv(genericiooptions.NewTestIOStreamsDiscard()))
	walk(root, func(c *cobra.Command) {
		path := c.CommandPath()
		if path == "kubectl vmip help" {
			return
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") || strings.ToUpper(c.Short[:1]) != c.Short[:1] {
			t.Errorf("%s: the short text %q should begin with a capital and end without a full stop", path, c.Short)
		}
		if c.Parent() == root && c.GroupID == "" && !c.Hidden {
			t.Errorf("%s is in no group", path)
		}
		if !c.HasSubCommands() && !strings.Contains(c.Example, "kubectl vmip "+strings.TrimPrefix(path, "kubectl vmip ")) {
			t.Errorf("%s has no example of itself", path)
		}
		for line := range strings.Lines(c.Example) {
			if text := strings.TrimSpace(line); strings.HasPrefix(text, "$") {
				t.Errorf("%s: the example %q should have no prompt", path, text)
			}
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.ToUpper(f.Usage[:1]) != f.Usage[:1] || strings.HasSuffix(f.Usage, ".") && c != root {
				t.Errorf("%s --%s: the text %q should begin with a capital and end without a full stop", path, f.Name, f.Usage)
			}
		})
	})
}

func TestOptions(t *testing.T) {
	out, errOut, status := run(t, "options")
	if status != 0 || errOut != "" || !strings.HasPrefix(out, "The following options can be passed to any command:\n\n      --as string ") {
		t.Errorf("status %d, errors %q, output\n%s", status, errOut, out)
	}
	for _, flag := range []string{"-n, --namespace", "--context", "--kubeconfig", "--ledger-namespace", "--field-manager", "--request-timeout", "-v, --v"} {
		if !strings.Contains(out, flag) {
			t.Errorf("%s is missing", flag)
		}
	}
	if home, err := os.UserHomeDir(); err == nil && strings.Contains(out, home) {
		t.Error("shows the home directory of whoever runs it")
	}
}

func TestCompletion(t *testing.T) {
	script, _, _ := run(t, "completion")
	if !strings.HasPrefix(script, "#!/bin/sh\n") || !strings.HasSuffix(script, "\nexec kubectl-vmip __complete \"$@\"\n") {
		t.Errorf("the script is\n%s", script)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errOut, status := run(t, "completion", shell); status != 0 || errOut != "" || !strings.Contains(out, "kubectl-vmip") || !strings.Contains(out, "__complete") {
			t.Errorf("%s: status %d, errors %q, %d bytes", shell, status, errOut, len(out))
		}
	}
	for _, tc := range []struct {
		line []string
		want string
	}{
		{[]string{"vers"}, "version\tPrint the versions of the plugin and of the cluster\n:4\n"},
		{[]string{"version", ""}, ":4\n"},
		{[]string{"version", "-o", ""}, "json\nyaml\njsonpath=\ngo-template=\n:4\n"},
		{[]string{"reserve", "--dry-run", ""}, "none\nclient\nserver\n:4\n"},
		{[]string{"reserve", ""}, ":4\n"}, // no cluster: nothing, and nothing hangs
		{[]string{"version", "-n", ""}, ":4\n"},
	} {
		out, _, status := run(t, append([]string{"__complete"}, tc.line...)...)
		if out != tc.want || status != 0 {
			t.Errorf("%q completes with status %d to\n%s\nwant\n%s", tc.line, status, out, tc.want)
		}
	}
}

// server answers what `version` asks; paths that are not there get the answer of a stranger.
func server(t *testing.T, answers map[string]string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(s.Close)
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, s.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", config)
}

func TestVersion(t *testing.T) {
	const (
		kubernetes = `{"gitVersion": "v1.34.4"}`
		kubevirts  = `{"kind": "KubeVirtList", "apiVersion": "kubevirt.io/v1", "items": [{"status": {"observedKubeVirtVersion": %q}}]}`
		domains    = `{"kind": "ConfigMapList", "apiVersion": "v1", "items": [{"metadata": {"annotations": {"vmip.io/format": %q}}}]}`
		kubePath   = "/apis/kubevirt.io/v1/kubevirts"
		ledgerPath = "/api/v1/namespaces/vmip-system/configmaps"
	)
	all := map[string]string{"/version": kubernetes, kubePath: fmt.Sprintf(kubevirts, "v1.8.0"), ledgerPath: fmt.Sprintf(domains, "v1alpha1")}
	with := func(path, text string) map[string]string {
		m := map[string]string{path: text}
		for p, t := range all {
			if p != path {
				m[p] = t
			}
		}
		return m
	}
	without := with(kubePath, "")
	delete(without, kubePath)
	for _, tc := range []struct {
		name, line  string
		answers     map[string]string
		out, errOut string
	}{
		{"all", "", all, "Client Version: dev\nKubeVirt Version: v1.8.0\nKubernetes Version: v1.34.4\nLedger Format: v1alpha1\n", ""},
		{"field", "-o jsonpath={.kubeVirtVersion}", all, "v1.8.0", ""},
		{"client", "--client", map[string]string{}, "Client Version: dev\nLedger Format: v1alpha1\n", ""},
		{"no KubeVirt", "", without, "Client Version: dev\nKubeVirt Version: <unknown>\nKubernetes Version: v1.34.4\nLedger Format: v1alpha1\n",
			"Warning: KubeVirt is not installed in the cluster "},
		{"old KubeVirt", "", with(kubePath, fmt.Sprintf(kubevirts, "v1.3.1")), "Client Version: dev\nKubeVirt Version: v1.3.1\nKubernetes Version: v1.34.4\nLedger Format: v1alpha1\n",
			"Warning: KubeVirt v1.3.1 is older than 1.5, the oldest that this kubectl vmip knows: migrations and restarts may be judged wrongly\n"},
		{"newer ledger", "", with(ledgerPath, fmt.Sprintf(domains, "v1beta1")), "Client Version: dev\nKubeVirt Version: v1.8.0\nKubernetes Version: v1.34.4\nLedger Format: v1alpha1 (in the cluster: v1beta1)\n",
			"Warning: the ledger in the cluster has format v1beta1, this kubectl vmip writes v1alpha1 and only reads other formats: look for a newer kubectl vmip\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server(t, tc.answers)
			out, errOut, status := run(t, slices.Concat([]string{"version"}, strings.Fields(tc.line))...)
			if status != 0 || out != tc.out || errOut != tc.errOut && (tc.errOut == "" || !strings.HasPrefix(errOut, tc.errOut)) {
				t.Errorf("status %d, output\n%s\nerrors\n%s\nwant output\n%s\nerrors\n%s", status, out, errOut, tc.out, tc.errOut)
			}
		})
	}
}
