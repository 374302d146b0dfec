// Package control runs the control plane of the test cluster: etcd, kube-apiserver, kube-controller-manager
// and KubeVirt's virt-controller and virt-api, as processes on loopback ports, with the simulated nodes
// beside them. See docs/design/test-cluster.md.
package control

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// dataPrefix begins the name of etcd's folder in the system's folder for temporary files.
const dataPrefix = "kubectl-vmip-cluster-"

const (
	simulator = "simulator"
	// attempts is how often other ports are tried when another program took one in between.
	attempts = 3
)

// supervisor owns the processes of one cluster. It ends when it is told to, and its children with it.
type supervisor struct {
	log *slog.Logger

	mu    sync.Mutex
	state State

	processes []*process
	// died gets the first component that ends on its own; more are only written down.
	died chan error
	// restarting serialises restarts.
	restarting sync.Mutex
}

// Supervise runs a cluster until ctx ends. It is what `vmip-cluster run` does.
func Supervise(ctx context.Context, o Options) error {
	s := &supervisor{
		log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		state: State{
			Options: o, Phase: Starting, Started: time.Now(), Supervisor: identify(os.Getpid()),
			Token: rand.Text(),
		},
		died: make(chan error, 1),
	}
	if err := os.MkdirAll(o.path("logs"), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(o.path("tmp"), 0o755); err != nil {
		return err
	}
	data, err := os.MkdirTemp("", dataPrefix+o.Name+"-")
	if err != nil {
		return err
	}
	s.state.Data = data
	if err := s.serve(); err != nil {
		return errors.Join(err, os.RemoveAll(data))
	}
	simCtx, stopSim := context.WithCancel(ctx)
	defer stopSim()
	for attempt := 1; ; attempt++ {
		err = s.bringUp(ctx, simCtx)
		if err == nil || ctx.Err() != nil || attempt == attempts || !s.portTaken(err) {
			break
		}
		s.log.Warn("another program took a port, trying others", "error", err)
		s.stopAll()
		if err := errors.Join(os.RemoveAll(data), os.Mkdir(data, 0o700)); err != nil {
			return err
		}
	}
	if err == nil {
		s.update(func(st *State) { st.Phase = Ready })
		s.log.Info("cluster is ready", "after", time.Since(s.state.Started).Round(time.Millisecond))
		<-ctx.Done()
		s.log.Info("stopping")
	}
	stopSim()
	s.stopAll()
	if err != nil && ctx.Err() == nil {
		s.log.Error("cluster failed", "error", err)
		s.update(func(st *State) {
			st.Phase, st.Error = Failed, err.Error()
			var f *failure
			if errors.As(err, &f) {
				st.Component = f.component
			}
		})
	}
	return errors.Join(err, os.RemoveAll(data))
}

// bringUp starts everything in the order of need and returns when the cluster does its work.
func (s *supervisor) bringUp(ctx, simCtx context.Context) error {
	o := s.state.Options
	select {
	case <-s.died: // of the attempt before
	default:
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-s.died:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	err := func() error {
		ports, err := freePorts(portCount)
		if err != nil {
			return err
		}
		p := newPlan(o, s.state.Data, ports)
		if err := p.credentials(); err != nil {
			return err
		}
		s.processes = p.processes()
		s.update(func(st *State) {
			st.Server, st.Components = p.server(), nil
			for _, c := range s.processes {
				st.Components = append(st.Components, Component{Name: c.name, Port: c.port, Log: c.log})
			}
			st.Components = append(st.Components, Component{Name: simulator, Log: o.logFile("supervisor"), Process: st.Supervisor})
		})
		return s.sequence(ctx, simCtx, p)
	}()
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause // not its echo in whatever was waiting
	}
	return err
}

func (s *supervisor) sequence(ctx, simCtx context.Context, p *plan) error {
	for _, name := range []string{etcd, apiserver} {
		if err := s.startReady(ctx, name); err != nil {
			return err
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.state.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	kv, err := newKubeVirt(client, s.state.KubeVirt)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.startReady(ctx, controllerManager) })
	g.Go(func() error {
		if err := kv.install(ctx, p.ca.pem); err != nil {
			return fmt.Errorf("install KubeVirt: %w", err)
		}
		g.Go(func() error { return s.startReady(ctx, virtController) })
		g.Go(func() error {
			if err := s.startReady(ctx, virtAPI); err != nil {
				return err
			}
			if err := kv.register(ctx, p.ca.pem, p.ports[portVirtAPI]); err != nil {
				return fmt.Errorf("register virt-api: %w", err)
			}
			return kv.waitRegistered(ctx)
		})
		return s.simulate(ctx, simCtx, rest.CopyConfig(config), client)
	})
	return g.Wait()
}

// startReady starts a component and waits until it works.
func (s *supervisor) startReady(ctx context.Context, name string) error {
	p := s.process(name)
	if err := p.start(s.onDeath); err != nil {
		return &failure{name, err}
	}
	pid, _ := p.running()
	s.component(name, func(c *Component) { c.Process, c.Died = identify(pid), "" })
	s.log.Info("started", "component", name, "pid", pid)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := p.waitReady(ctx); err != nil {
		return err
	}
	s.setReady(name)
	return nil
}

func (s *supervisor) setReady(name string) {
	s.component(name, func(c *Component) {
		if c.Ready == 0 {
			c.Ready = time.Since(s.state.Started)
		}
	})
	s.log.Info("ready", "component", name)
}

// onDeath writes a death down. Nobody starts the component again: a test that kills one wants it dead,
// and otherwise it is a bug to be seen.
func (s *supervisor) onDeath(p *process, err error) {
	s.log.Error("component died", "component", p.name, "error", err, "log", p.log)
	s.component(p.name, func(c *Component) { c.Died = err.Error() })
	select {
	case s.died <- &failure{p.name, fmt.Errorf("died: %w", err)}:
	default:
	}
}

func (s *supervisor) process(name string) *process {
	for _, p := range s.processes {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (s *supervisor) update(f func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.state)
	if err := s.state.save(); err != nil {
		s.log.Error("cannot write the state", "error", err)
	}
}

func (s *supervisor) component(name string, f func(*Component)) {
	s.update(func(st *State) {
		for i := range st.Components {
			if st.Components[i].Name == name {
				f(&st.Components[i])
			}
		}
	})
}

// stopAll ends all components at once: their data is about to be thrown away, so order doesn't matter.
func (s *supervisor) stopAll() {
	var wg sync.WaitGroup
	for _, p := range s.processes {
		wg.Go(func() { p.stop(syscall.SIGTERM, time.Second) })
	}
	wg.Wait()
}

// portTaken tells whether a component failed for a port that somebody else holds.
func (s *supervisor) portTaken(err error) bool {
	if errors.Is(err, syscall.EADDRINUSE) {
		return true
	}
	var f *failure
	return errors.As(err, &f) && strings.Contains(tail(s.state.logFile(f.component), 100), "address already in use")
}

// serve answers the commands that need the supervisor, on loopback, for those who can read the state.
func (s *supervisor) serve() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.state.Address = l.Addr().String()
	if err := s.state.save(); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /restart", func(w http.ResponseWriter, r *http.Request) {
		var q restartRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := s.restart(r.Context(), q); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		}
	})
	go func() {
		err := http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+s.state.Token)) != 1 {
				http.Error(w, "unauthorized", http.StatusUnauthorized)
				return
			}
			mux.ServeHTTP(w, r)
		}))
		s.log.Error("the supervisor's API ended", "error", err)
	}()
	return nil
}

// restartRequest asks for a restart of a component.
type restartRequest struct {
	Component string        `json:"component"`
	Kill      bool          `json:"kill"`
	Down      time.Duration `json:"down"`
}

// restart stops a component, leaves it down for a while, and starts it on the same port. What died of
// the outage is started as well, as the kubelet would.
func (s *supervisor) restart(ctx context.Context, q restartRequest) error {
	s.mu.Lock()
	phase := s.state.Phase
	s.mu.Unlock()
	if phase != Ready {
		return errors.New("the cluster isn't ready")
	}
	p := s.process(q.Component)
	if p == nil {
		var names []string
		for _, p := range s.processes {
			names = append(names, p.name)
		}
		return fmt.Errorf("no component %q: choose one of %s", q.Component, strings.Join(names, ", "))
	}
	s.restarting.Lock()
	defer s.restarting.Unlock()
	s.log.Info("restarting", "component", p.name, "kill", q.Kill, "down", q.Down)
	if q.Kill {
		p.stop(syscall.SIGKILL, 0)
	} else {
		// Longer, and the watches that an API server waits for would cost virt-controller its lease.
		p.stop(syscall.SIGTERM, 3*time.Second)
	}
	select {
	case <-time.After(q.Down):
	case <-ctx.Done():
	}
	// Whoever asked may be gone by now; a component that was stopped is started again all the same.
	ctx = context.WithoutCancel(ctx)
	if err := s.startReady(ctx, p.name); err != nil {
		return err
	}
	for _, other := range s.processes {
		if other.dead() != nil {
			if err := s.startReady(ctx, other.name); err != nil {
				return err
			}
		}
	}
	return nil
}
