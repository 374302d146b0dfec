package cli

import (
	"errors"
	"fmt"
	"runtime"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"kubevirt.io/client-go/kubevirt"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/version"
)

// Requests a second and in a burst. client-go's 5 and 10 are meant for controllers; a command
// that restarts 50 machines would wait for itself. API servers guard themselves.
const (
	qps   = 500
	burst = 1000
)

// Clients are the ways to one cluster. They share connections and the limit on requests.
type Clients struct {
	REST     *rest.Config
	Core     kubernetes.Interface
	KubeVirt kubevirt.Interface
	Dynamic  dynamic.Interface
	// Clock tells the API server's time, from the Date header of its last answer.
	Clock ledger.Clock
	// Ledger is the store in the namespace of --ledger-namespace.
	Ledger *ledger.Store
	// Namespace is --namespace or the context's.
	Namespace string
}

// errNoKubeconfig stands for kubectl's silent default of http://localhost:8080, which nobody
// means who runs a plugin.
var errNoKubeconfig = errors.New("no kubeconfig")

func (e *Env) connect() (*Clients, error) {
	namespace, err := e.Namespace()
	if err != nil {
		return nil, err
	}
	cfg, err := e.Flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	if e.unconfigured(cfg) {
		return nil, errNoKubeconfig
	}
	clock := &ServerClock{}
	cfg.QPS, cfg.Burst = qps, burst
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(qps, burst)
	cfg.UserAgent = fmt.Sprintf("kubectl-vmip/%s (%s/%s)", version.String(), runtime.GOOS, runtime.GOARCH)
	cfg.WarningHandler = e
	cfg.Wrap(clock.watch)
	return NewClients(cfg, namespace, e.LedgerNamespace, e.FieldManager, clock)
}

// NewClients returns the clients of a configuration, over one HTTP client.
func NewClients(cfg *rest.Config, namespace, ledgerNamespace, fieldManager string, clock ledger.Clock) (*Clients, error) {
	http, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	// Protobuf makes lists of pods several times cheaper to read. What we write stays JSON.
	core := rest.CopyConfig(cfg)
	core.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	c := &Clients{REST: cfg, Clock: clock, Namespace: namespace}
	if c.Core, err = kubernetes.NewForConfigAndClient(core, http); err != nil {
		return nil, err
	}
	if c.KubeVirt, err = kubevirt.NewForConfigAndClient(cfg, http); err != nil {
		return nil, err
	}
	if c.Dynamic, err = dynamic.NewForConfigAndClient(cfg, http); err != nil {
		return nil, err
	}
	c.Ledger = &ledger.Store{
		ConfigMaps:   c.Core.CoreV1().ConfigMaps(ledgerNamespace),
		Namespace:    ledgerNamespace,
		Clock:        clock,
		FieldManager: fieldManager,
	}
	return c, nil
}
