package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/cni"
	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/sim"
)

// podCIDRs are where pods get their addresses from, unless a network plugin says otherwise.
var podCIDRs = []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")}

// simulate installs the network plugin and plays the nodes until simCtx ends. It returns when all are ready.
func (s *supervisor) simulate(ctx, simCtx context.Context, config *rest.Config, client dynamic.Interface) error {
	if s.state.Unattended {
		s.setReady(simulator)
		return nil
	}
	driver, err := cni.New(s.state.CNI, cni.Options{Config: config, PodCIDRs: podCIDRs})
	if err != nil {
		return &failure{simulator, err}
	}
	if err := driver.Install(ctx); err != nil {
		return &failure{simulator, fmt.Errorf("install CNI %s: %w", s.state.CNI, err)}
	}
	run := func(what string, f func() error) {
		err := f()
		if simCtx.Err() != nil {
			return
		}
		err = fmt.Errorf("%s ended: %w", what, cmp.Or(err, errors.New("no error")))
		s.log.Error("the simulator failed", "error", err)
		s.component(simulator, func(c *Component) { c.Died = err.Error() })
		select {
		case s.died <- &failure{simulator, err}:
		default:
		}
	}
	go run("CNI "+s.state.CNI, func() error { return driver.Run(simCtx) })
	go run("the nodes", func() error {
		return sim.Run(simCtx, sim.Options{Config: config, Nodes: s.state.Nodes, CNI: driver, Log: s.log.With("component", simulator)})
	})
	for {
		n, err := nodesReady(ctx, client)
		if err == nil && n == s.state.Nodes {
			s.setReady(simulator)
			return nil
		}
		select {
		case <-ctx.Done():
			return &failure{simulator, fmt.Errorf("%d of %d nodes are ready: %w", n, s.state.Nodes, errors.Join(err, ctx.Err()))}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// CNIs are the network plugins that can be simulated.
func CNIs() []string { return cni.Names() }
