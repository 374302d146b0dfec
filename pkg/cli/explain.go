package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/clientcmd"
)

// site is where a command was meant to work: what an explanation can name.
type site struct {
	server, context, kubeconfig, namespace, ledgerNamespace string
	contexts                                                []string
	// flags are --context and --as as given, for command lines in hints.
	flags []string
}

// explain returns the message for an error and, where there is one, a hint on the way out. A
// message says what failed in the server's words; only where those mean nothing to a user are
// they replaced.
func (s site) explain(err error) (message, hint string) {
	message = err.Error()
	var status apierrors.APIStatus
	var request *url.Error
	var noMatch *meta.NoKindMatchError
	var noResource *meta.NoResourceMatchError
	word := ended(err)
	switch {
	case word != "":
		return reword(err, word), ""
	case errors.Is(err, errNoKubeconfig):
		return s.noKubeconfig(), ""
	case contextNotFound(err):
		return s.noContext(), ""
	case errors.As(err, &status):
		return s.explainStatus(message, status.Status())
	case errors.As(err, &noMatch):
		return s.notServed(strings.ToLower(noMatch.GroupKind.Kind), noMatch.GroupKind.Group), ""
	case errors.As(err, &noResource):
		return s.notServed(noResource.PartialResource.Resource, noResource.PartialResource.Group), ""
	case errors.As(err, &request):
		return s.unreachable(request), ""
	}
	return message, ""
}

func (s site) noKubeconfig() string {
	if len(s.contexts) > 0 {
		return fmt.Sprintf("no cluster to talk to: kubeconfig %s has no current context; choose one of %s with --context or kubectl config use-context",
			s.kubeconfig, strings.Join(s.contexts, ", "))
	}
	return fmt.Sprintf("no cluster to talk to: there is no kubeconfig at %s; name one with --kubeconfig or KUBECONFIG", s.kubeconfig)
}

func (s site) noContext() string {
	if len(s.contexts) == 0 {
		return fmt.Sprintf("context %q does not exist: kubeconfig %s has no contexts", s.context, s.kubeconfig)
	}
	return fmt.Sprintf("context %q does not exist: kubeconfig %s has %s", s.context, s.kubeconfig, strings.Join(s.contexts, ", "))
}

func contextNotFound(err error) bool {
	for e := range tree(err) {
		if clientcmd.IsContextNotFound(e) {
			return true
		}
	}
	return false
}

func (s site) explainStatus(message string, st metav1.Status) (string, string) {
	d := metav1.StatusDetails{}
	if st.Details != nil {
		d = *st.Details
	}
	switch st.Reason {
	case metav1.StatusReasonForbidden:
		return message, s.forbidden(st.Message)
	case metav1.StatusReasonUnauthorized:
		return fmt.Sprintf("the API server %s does not accept the credentials of %s (Unauthorized); they are missing or expired: log in again, or choose another context with --context", s.server, s.where()), ""
	case metav1.StatusReasonNotFound:
		switch {
		case unserved(d):
			return s.notServed(d.Kind, d.Group), ""
		case d.Kind == "virtualmachines" && d.Name != "":
			return message, fmt.Sprintf("there is no virtual machine %s in namespace %s; name another namespace with -n", d.Name, s.namespace)
		case d.Kind == "namespaces" && d.Name == s.ledgerNamespace:
			return message, fmt.Sprintf("the ledger lives in it: %s create namespace %s, or name another with --ledger-namespace", Kubectl(), d.Name)
		}
	case metav1.StatusReasonServiceUnavailable:
		if d.Group == "subresources.kubevirt.io" {
			return message, fmt.Sprintf("KubeVirt's virt-api does not answer: %s get apiservice v1.subresources.kubevirt.io", Kubectl())
		}
	}
	return message, ""
}

// unserved tells the 404 of a URL from that of an object: only the former comes without a Status,
// which client-go then makes up.
func unserved(d metav1.StatusDetails) bool {
	for _, c := range d.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}

func (s site) notServed(resource, group string) string {
	if group == "kubevirt.io" || group == "subresources.kubevirt.io" {
		return fmt.Sprintf("KubeVirt is not installed in the cluster %s: it serves no %s.%s; choose another cluster with --context (%s)", s.server, resource, group, s.where())
	}
	return fmt.Sprintf("the cluster %s serves no %s.%s (%s)", s.server, resource, group, s.where())
}

// where names the kubeconfig and the context that were used.
func (s site) where() string {
	if s.context == "" {
		return "kubeconfig " + s.kubeconfig
	}
	return fmt.Sprintf("context %s, kubeconfig %s", s.context, s.kubeconfig)
}

func (s site) unreachable(err *url.Error) string {
	server := err.URL
	if u, parse := url.Parse(err.URL); parse == nil && u.Host != "" {
		server = u.Scheme + "://" + u.Host
	}
	why, check := err.Err.Error(), "check that the cluster runs and that the context is the right one"
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	switch {
	case utilnet.IsConnectionRefused(err):
		why = "connection refused"
	case errors.As(err, &dns):
		why = fmt.Sprintf("there is no host %s", dns.Name)
	case errors.As(err, &unknown), errors.As(err, &hostname):
		check = "check certificate-authority of the cluster in the kubeconfig"
	case err.Timeout():
		why, check = "no answer in time", "check the network on the way to it, or raise --request-timeout"
	case strings.Contains(why, http.ErrSchemeMismatch.Error()):
		check = "the address of the server should begin with http://"
	}
	return fmt.Sprintf("can't reach the API server %s: %s (%s); %s", server, why, s.where(), check)
}
