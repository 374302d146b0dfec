package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The components that are processes.
const (
	etcd              = "etcd"
	apiserver         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	virtController    = "virt-controller"
	virtAPI           = "virt-api"
)

// Indexes of a cluster's ports.
const (
	portEtcd = iota
	portEtcdPeer
	portAPIServer
	portControllerManager
	portVirtController
	portVirtAPI
	portCount
)

// controllers of kube-controller-manager that have something to do here. Nothing schedules, attaches or
// evicts: the simulator plays the nodes. KubeVirt's roles reach admin, edit and view by aggregation.
var controllers = []string{
	"clusterrole-aggregation-controller",
	"daemonset-controller",
	"deployment-controller",
	"disruption-controller",
	"garbage-collector-controller",
	"namespace-controller",
	"pod-garbage-collector-controller",
	"replicaset-controller",
	"resourcequota-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"validatingadmissionpolicy-status-controller",
}

// plan is how the components of one cluster are called.
type plan struct {
	Options
	data  string
	ports []int
	ca    *authority
	// probe is a client for health checks.
	probe *http.Client
}

func newPlan(o Options, data string, ports []int) *plan {
	return &plan{Options: o, data: data, ports: ports}
}

func (p *plan) url(port int) string {
	return "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(p.ports[port]))
}

func (p *plan) server() string { return p.url(portAPIServer) }

func (p *plan) pki(name string) string { return p.path("pki", name) }

// serviceAccount is the user name and the groups that the API server gives to a service account.
func serviceAccount(name string) (user string, groups []string) {
	return "system:serviceaccount:" + kubevirtNamespace + ":" + name,
		[]string{"system:serviceaccounts", "system:serviceaccounts:" + kubevirtNamespace}
}

// credentials writes keys, certificates and kubeconfigs. The components of KubeVirt come as their
// service accounts, by certificate, so that they have KubeVirt's own rights and its webhooks know them.
func (p *plan) credentials() error {
	if err := os.MkdirAll(p.path("pki"), 0o700); err != nil {
		return err
	}
	var err error
	if p.ca, err = newAuthority("kubectl-vmip-" + p.Name); err != nil {
		return err
	}
	frontProxyCA, err := newAuthority("front-proxy")
	if err != nil {
		return err
	}
	serviceAccounts, err := newAuthority("service-accounts")
	if err != nil {
		return err
	}
	for name, a := range map[string]*authority{"ca": p.ca, "front-proxy-ca": frontProxyCA, "sa": serviceAccounts} {
		if err := a.save(p.pki(name+".crt"), p.pki(name+".key")); err != nil {
			return err
		}
	}
	frontProxy, err := frontProxyCA.issue("front-proxy-client", nil)
	if err != nil {
		return err
	}
	serving, err := p.ca.issue("kubectl-vmip-serving", nil, "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1",
		"virt-api", "virt-api."+kubevirtNamespace, "virt-api."+kubevirtNamespace+".svc")
	if err != nil {
		return err
	}
	for name, c := range map[string]pair{"front-proxy": frontProxy, "serving": serving} {
		if err := c.save(p.pki(name+".crt"), p.pki(name+".key")); err != nil {
			return err
		}
	}
	controllerUser, groups := serviceAccount("kubevirt-controller")
	apiUser, _ := serviceAccount("kubevirt-apiserver")
	for _, k := range []struct {
		file, user string
		groups     []string
	}{
		{p.Kubeconfig(), "admin", []string{"system:masters"}},
		{p.pki(controllerManager + ".kubeconfig"), "system:kube-controller-manager", nil},
		{p.pki(virtController + ".kubeconfig"), controllerUser, groups},
		{p.pki(virtAPI + ".kubeconfig"), apiUser, groups},
	} {
		data, err := p.ca.kubeconfig(p.server(), contextName(p.Name), k.user, k.groups)
		if err != nil {
			return err
		}
		if err := os.WriteFile(k.file, data, 0o600); err != nil {
			return err
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.ca.cert)
	// Anonymous: health is public everywhere, and virt-controller refuses certificates that it doesn't know.
	p.probe = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		// A restarted component must be met on a new connection.
		DisableKeepAlives: true,
	}}
	return nil
}

// contextName is the name of the cluster, its context and its owner in kubeconfigs.
func contextName(cluster string) string { return "kubectl-vmip-" + cluster }

func (p *plan) processes() []*process {
	etcdURL := fmt.Sprintf("http://127.0.0.1:%d", p.ports[portEtcd])
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", p.ports[portEtcdPeer])
	served := []string{
		"--tls-cert-file=" + p.pki("serving.crt"),
		"--tls-private-key-file=" + p.pki("serving.key"),
	}
	return []*process{
		p.process(etcd, portEtcd, p.answers(etcdURL+"/health"),
			"--data-dir="+p.data,
			"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
			"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL,
			"--initial-cluster=default="+peerURL,
			"--unsafe-no-fsync", // nothing of it outlives the cluster
			"--quota-backend-bytes=4294967296",
			"--log-level=warn",
		),
		p.process(apiserver, portAPIServer, p.answers(p.server()+"/readyz"), append(served,
			"--bind-address=127.0.0.1",
			port("secure-port", p.ports[portAPIServer]),
			"--etcd-servers="+etcdURL,
			"--client-ca-file="+p.pki("ca.crt"),
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file="+p.pki("sa.key"),
			"--service-account-signing-key-file="+p.pki("sa.key"),
			"--service-cluster-ip-range=10.96.0.0/16",
			"--requestheader-client-ca-file="+p.pki("front-proxy-ca.crt"),
			"--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file="+p.pki("front-proxy.crt"),
			"--proxy-client-key-file="+p.pki("front-proxy.key"),
			"--enable-aggregator-routing=false",
			// The endpoints of the service `kubernetes` may not be loopback addresses.
			"--endpoint-reconciler-type=none",
			"--allow-privileged=true", // network plugins' DaemonSets are
			"--profiling=false",
		)...),
		p.process(controllerManager, portControllerManager, p.answers(p.url(portControllerManager)+"/healthz"), append(served,
			"--bind-address=127.0.0.1",
			port("secure-port", p.ports[portControllerManager]),
			"--kubeconfig="+p.pki(controllerManager+".kubeconfig"),
			"--controllers="+strings.Join(controllers, ","),
			"--use-service-account-credentials=true",
			"--service-account-private-key-file="+p.pki("sa.key"),
			"--root-ca-file="+p.pki("ca.crt"),
			"--leader-elect=false",
			"--kube-api-qps=200", "--kube-api-burst=400",
			"--profiling=false",
		)...),
		p.process(virtController, portVirtController, p.leads(),
			"--kubeconfig="+p.pki(virtController+".kubeconfig"),
			"--listen=127.0.0.1",
			port("port", p.ports[portVirtController]),
			"--launcher-image="+registry+"/virt-launcher:"+KubeVirtVersion,
			"--exporter-image="+registry+"/virt-exportserver:"+KubeVirtVersion,
			"--prom-cert-file="+p.pki("serving.crt"), "--prom-key-file="+p.pki("serving.key"),
		),
		p.process(virtAPI, portVirtAPI, p.answers(p.url(portVirtAPI)+"/healthz"),
			"--kubeconfig="+p.pki(virtAPI+".kubeconfig"),
			"--listen=127.0.0.1",
			port("port", p.ports[portVirtAPI]),
			"--tls-cert-file="+p.pki("serving.crt"), "--tls-key-file="+p.pki("serving.key"),
			"--handler-cert-file="+p.pki("serving.crt"), "--handler-key-file="+p.pki("serving.key"),
		),
	}
}

func port(flag string, n int) string { return fmt.Sprintf("--%s=%d", flag, n) }

func (p *plan) process(name string, portIndex int, ready func(context.Context) error, args ...string) *process {
	return &process{
		name: name, path: filepath.Join(p.Bin, name), args: args, log: p.logFile(name), port: p.ports[portIndex], ready: ready,
		// Nothing of the developer's shell may change what runs, a KUBECONFIG or a proxy for example.
		env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.path("tmp"), "TMPDIR=" + p.path("tmp")},
	}
}

func (p *plan) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.probe.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}

func (p *plan) answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := p.get(ctx, url)
		return err
	}
}

// leads tells whether virt-controller holds its lease and its caches are filled.
func (p *plan) leads() func(context.Context) error {
	return func(ctx context.Context) error {
		body, err := p.get(ctx, p.url(portVirtController)+"/leader")
		if err != nil {
			return err
		}
		var answer struct{ APIServer struct{ Leader string } }
		if err := json.Unmarshal(body, &answer); err != nil {
			return err
		}
		if answer.APIServer.Leader != "true" {
			return errors.New("not the leader")
		}
		return nil
	}
}

// freePorts finds n free loopback ports. They lie below the range from which the system takes ports for
// outgoing connections: there, a client that keeps trying a stopped server can connect to itself and
// so keep the server from its port. Another program can still come between; then it is done again.
func freePorts(n int) ([]int, error) {
	const low, high = 20000, 32768
	var ports []int
	for range 1000 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(low+rand.IntN(high-low))))
		if err != nil {
			continue
		}
		// Held until all are found, so that none is found twice.
		defer l.Close()
		if ports = append(ports, l.Addr().(*net.TCPAddr).Port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d on 127.0.0.1", n, low, high)
}
