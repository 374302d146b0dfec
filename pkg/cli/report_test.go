package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// newEnv returns an environment with the flags parsed, and what it writes.
func newEnv(t *testing.T, args ...string) (*Env, func() (out, errOut string)) {
	t.Helper()
	for _, v := range []string{"KUBERNETES_MASTER", "KUBERNETES_SERVICE_HOST", "KUBECTL_PATH"} {
		t.Setenv(v, "")
	}
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	e := NewEnv(streams)
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	e.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return e, func() (string, string) { return out.String(), errOut.String() }
}

// kubeconfig writes a kubeconfig with the contexts prod (current) and lab, and returns its path.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "prod",
"clusters": [{"name": "c", "cluster": {"server": %q}}],
"contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": "tenant-a"}}, {"name": "lab", "context": {"cluster": "c", "user": "u"}}],
"users": [{"name": "u", "user": {"token": "x"}}]}`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func forbidden(group, resource, verb, sub, namespace string) error {
	full := resource
	if sub != "" {
		full += "/" + sub
	}
	text := fmt.Sprintf("User %q cannot %s resource %q in API group %q", "dev", verb, full, group)
	if namespace == "" {
		text += " at the cluster scope"
	} else {
		text += fmt.Sprintf(" in the namespace %q", namespace)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: resource}, "db-1", errors.New(text))
}

func TestReport(t *testing.T) {
	virtualmachines := schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"}
	get := func(err error) error {
		return &url.Error{Op: "Get", URL: "https://192.0.2.1:6443/api/v1/pods?x=y", Err: err}
	}
	refused := get(&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})
	for _, tc := range []struct {
		name string
		err  error
		args []string
		code int
		want string
	}{
		{"nothing", nil, nil, 0, ""},
		{"all said", &ExitError{Code: 1}, nil, 1, ""},
		{"plain", errors.New("pool lab is full"), nil, 1, "error: pool lab is full\n"},
		{"usage", UsageError(errors.New("no virtual machine named")), nil, 2,
			"error: no virtual machine named\nSee 'kubectl vmip reserve -h' for help and examples\n"},
		{"status 2 without usage", &ExitError{Code: 2, Err: errors.New("could not list pods")}, nil, 2, "error: could not list pods\n"},
		{"joined", errors.Join(errors.New("a"), errors.Join(errors.New("b"), errors.New("a"))), nil, 1, "error: a\nerror: b\n"},
		{"aggregated", utilerrors.NewAggregate([]error{errors.New("a"), errors.New("b")}), nil, 1, "error: a\nerror: b\n"},
		{"one sentence of two", fmt.Errorf("%w, and %w", errors.New("a"), errors.New("b")), nil, 1, "error: a, and b\n"},
		{"several lines", errors.New("vm tenant-a/x can't:\n  Code   text\nnothing was changed"), nil, 1,
			"error: vm tenant-a/x can't:\n  Code   text\nnothing was changed\n"},
		{"control characters", errors.New("pod \x1b[2J\u009b1m"), nil, 1, "error: pod ^[[2J\\x9b1m\n"},
		{"interrupted", context.Canceled, nil, 130, "error: interrupted\n"},
		{"request interrupted", get(context.Canceled), nil, 130, "error: interrupted\n"},
		{"listing interrupted", fmt.Errorf("ledger in namespace x: %w", get(ErrInterrupted)), nil, 130, "error: ledger in namespace x: interrupted\n"},
		{"interrupted before a request", fmt.Errorf("client rate limiter Wait returned an error: %w", context.Canceled), nil, 130, "error: interrupted\n"},
		{"request timed out", fmt.Errorf("vm x: %w", get(context.DeadlineExceeded)), nil, 124, "error: vm x: timed out\n"},
		{"timed out", context.DeadlineExceeded, nil, 124, "error: timed out\n"},
		{"refused, twice", errors.Join(refused, fmt.Errorf("vm x: %w", refused)), nil, 1,
			"error: can't reach the API server https://192.0.2.1:6443: connection refused (context prod, kubeconfig KUBECONFIG); check that the cluster runs and that the context is the right one\n"},
		{"no host", get(&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Name: "k8s.example", Err: "no such host"}}), []string{"--context=lab"}, 1,
			"error: can't reach the API server https://192.0.2.1:6443: there is no host k8s.example (context lab, kubeconfig KUBECONFIG); check that the cluster runs and that the context is the right one\n"},
		{"no answer", get(os.ErrDeadlineExceeded), nil, 1,
			"error: can't reach the API server https://192.0.2.1:6443: no answer in time (context prod, kubeconfig KUBECONFIG); check the network on the way to it, or raise --request-timeout\n"},
		{"certificate", get(x509.UnknownAuthorityError{}), nil, 1,
			"error: can't reach the API server https://192.0.2.1:6443: x509: certificate signed by unknown authority (context prod, kubeconfig KUBECONFIG); check certificate-authority of the cluster in the kubeconfig\n"},
		{"unauthorized", apierrors.NewUnauthorized("Unauthorized"), nil, 1,
			"error: the API server https://192.0.2.1:6443 does not accept the credentials of context prod, kubeconfig KUBECONFIG (Unauthorized); they are missing or expired: log in again, or choose another context with --context\n"},
		{"no such machine", apierrors.NewNotFound(virtualmachines, "db-9"), []string{"-n", "tenant-b"}, 1,
			"error: virtualmachines.kubevirt.io \"db-9\" not found\nhint: there is no virtual machine db-9 in namespace tenant-b; name another namespace with -n\n"},
		{"no ledger namespace", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "vmip-system"), nil, 1,
			"error: namespaces \"vmip-system\" not found\nhint: the ledger lives in it: kubectl create namespace vmip-system, or name another with --ledger-namespace\n"},
		{"no KubeVirt", fmt.Errorf("vm x: %w", apierrors.NewGenericServerResponse(404, "get", virtualmachines, "x", "404 page not found", 0, true)), nil, 1,
			"error: KubeVirt is not installed in the cluster https://192.0.2.1:6443: it serves no virtualmachines.kubevirt.io; choose another cluster with --context (context prod, kubeconfig KUBECONFIG)\n"},
		{"no match", &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "kubeovn.io", Kind: "IP"}}, nil, 1,
			"error: the cluster https://192.0.2.1:6443 serves no ip.kubeovn.io (context prod, kubeconfig KUBECONFIG)\n"},
		{"virt-api down", apierrors.NewGenericServerResponse(503, "put", schema.GroupResource{Group: "subresources.kubevirt.io", Resource: "virtualmachines"}, "x", "", 0, true), nil, 1,
			"error: the server is currently unable to handle the request (put virtualmachines.subresources.kubevirt.io x)\nhint: KubeVirt's virt-api does not answer: kubectl get apiservice v1.subresources.kubevirt.io\n"},
		{"may not patch", forbidden("kubevirt.io", "virtualmachines", "patch", "", "tenant-a"), nil, 1,
			`error: virtualmachines.kubevirt.io "db-1" is forbidden: User "dev" cannot patch resource "virtualmachines" in API group "kubevirt.io" in the namespace "tenant-a"
hint: kubectl auth can-i patch virtualmachines.kubevirt.io -n tenant-a tells whether you may; ClusterRole kubevirt.io:edit grants it
`},
		{"may not restart", forbidden("subresources.kubevirt.io", "virtualmachines", "update", "restart", "tenant-a"), []string{"--as=dev", "--as-group=g", "--context=prod"}, 1,
			`error: virtualmachines.subresources.kubevirt.io "db-1" is forbidden: User "dev" cannot update resource "virtualmachines/restart" in API group "subresources.kubevirt.io" in the namespace "tenant-a"
hint: kubectl auth can-i update virtualmachines.subresources.kubevirt.io --subresource=restart -n tenant-a --context=prod --as=dev --as-group=g tells whether you may; ClusterRole kubevirt.io:edit grants it
`},
		{"may not list pods", forbidden("", "pods", "list", "", ""), nil, 1,
			`error: pods "db-1" is forbidden: User "dev" cannot list resource "pods" in API group "" at the cluster scope
hint: kubectl auth can-i list pods -A tells whether you may; ClusterRole vmip.io:view grants it
`},
		{"policy", apierrors.NewForbidden(virtualmachines, "x", errors.New("ValidatingAdmissionPolicy 'p' denied request: no")), nil, 1,
			"error: virtualmachines.kubevirt.io \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := kubeconfig(t, "https://192.0.2.1:6443")
			e, written := newEnv(t, append([]string{"--kubeconfig", config}, tc.args...)...)
			code := e.Report("kubectl vmip reserve", tc.err)
			out, errOut := written()
			if errOut = strings.ReplaceAll(errOut, config, "KUBECONFIG"); errOut != tc.want {
				t.Errorf("wrote\n%s\nwant\n%s", errOut, tc.want)
			}
			if code != tc.code || out != "" {
				t.Errorf("exit status %d, want %d; standard output %q", code, tc.code, out)
			}
		})
	}
}

func TestRoleFor(t *testing.T) {
	for _, tc := range []struct{ verb, group, resource, sub, want string }{
		{"get", "kubevirt.io", "virtualmachines", "", "kubevirt.io:view"},
		{"patch", "kubevirt.io", "virtualmachines", "", "kubevirt.io:edit"},
		{"patch", "kubevirt.io", "virtualmachineinstances", "", "kubevirt.io:edit"},
		{"create", "kubevirt.io", "virtualmachineinstancemigrations", "", "kubevirt.io:migrate"},
		{"list", "kubevirt.io", "virtualmachineinstancemigrations", "", "kubevirt.io:view"},
		{"update", "subresources.kubevirt.io", "virtualmachines", "migrate", "kubevirt.io:migrate"},
		{"list", "kubevirt.io", "kubevirts", "", "vmip.io:view"},
		{"update", "", "configmaps", "", "vmip.io:edit"},
		{"delete", "", "configmaps", "", "vmip.io:admin"},
		{"get", "", "configmaps", "", "vmip.io:view"},
		{"list", "kubeovn.io", "ips", "", "vmip.io:view"},
	} {
		if got := roleFor(tc.verb, tc.group, tc.resource, tc.sub); got != tc.want {
			t.Errorf("role for %s %s.%s/%s is %s, want %s", tc.verb, tc.resource, tc.group, tc.sub, got, tc.want)
		}
	}
}

// What a first user meets before any request: through the real kubeconfig loader.
func TestConnectErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, tc := range []struct {
		name, config string
		args         []string
		want         string
	}{
		{"no kubeconfig", missing, nil, "error: no cluster to talk to: there is no kubeconfig at CONFIG; name one with --kubeconfig or KUBECONFIG\n"},
		{"no current context", "unset", nil, "error: no cluster to talk to: kubeconfig CONFIG has no current context; choose one of lab, prod with --context or kubectl config use-context\n"},
		{"unknown context", "set", []string{"--context=nope"}, "error: context \"nope\" does not exist: kubeconfig CONFIG has lab, prod\n"},
		{"context without kubeconfig", missing, []string{"--context=nope"}, "error: context \"nope\" does not exist: kubeconfig CONFIG has no contexts\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := tc.config
			switch path {
			case "set", "unset":
				path = kubeconfig(t, "https://192.0.2.1")
			}
			if tc.config == "unset" {
				text, _ := os.ReadFile(path)
				_ = os.WriteFile(path, []byte(strings.Replace(string(text), `"current-context": "prod",`, "", 1)), 0o600)
			}
			t.Setenv("KUBECONFIG", path)
			e, written := newEnv(t, tc.args...)
			_, err := e.Clients()
			if code := e.Report("x", err); code != 1 {
				t.Errorf("exit status %d", code)
			}
			if _, got := written(); strings.ReplaceAll(got, path, "CONFIG") != tc.want {
				t.Errorf("wrote\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// A server without KubeVirt and one that is gone, through the real clients.
func TestRequestErrors(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	e, written := newEnv(t, "--kubeconfig", kubeconfig(t, server.URL))
	c, err := e.Clients()
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.KubeVirt.KubevirtV1().VirtualMachines("x").Get(t.Context(), "x", metav1.GetOptions{})
	e.PrintError(err)
	server.Close()
	_, err = c.KubeVirt.KubevirtV1().VirtualMachines("x").Get(t.Context(), "x", metav1.GetOptions{})
	e.PrintError(fmt.Errorf("virtualmachine x/x: %w", err))
	_, got := written()
	for _, want := range []string{
		"error: KubeVirt is not installed in the cluster " + server.URL + ": it serves no virtualmachines.kubevirt.io; ",
		"error: can't reach the API server " + server.URL + ": connection refused (context prod, ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("wrote\n%s\nwant in it\n%s", got, want)
		}
	}
}

// A hint must not send anybody after a role that nobody ships.
func TestRolesExist(t *testing.T) {
	raw, err := os.ReadFile("../../manifests/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vmip.io:view", "vmip.io:edit", "vmip.io:admin"} {
		if !strings.Contains(string(raw), "\n  name: "+name+"\n") {
			t.Errorf("manifests/rbac.yaml has no ClusterRole %s", name)
		}
	}
}
