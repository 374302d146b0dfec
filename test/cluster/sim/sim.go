package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/cni"
)

// Options configure a simulator.
type Options struct {
	// Config is a client configuration with cluster-admin rights; the simulator impersonates
	// virt-handler's service account where it writes VMI status.
	Config *rest.Config
	// Nodes is how many nodes to play; they are named n1, n2, …
	Nodes int
	// CNI answers for the sandboxes. Its Install and Run are the caller's business.
	CNI cni.Driver
	Log *slog.Logger
}

// Run creates the nodes and plays them until ctx ends. It returns an error only where it can't
// start; later failures of the API server are waited out. What it must remember is in the API:
// another Run on the same cluster goes on where this one stopped.
func Run(ctx context.Context, o Options) error {
	switch {
	case o.Config == nil:
		return errors.New("no client configuration")
	case o.Nodes < 1:
		return fmt.Errorf("cannot play %d nodes", o.Nodes)
	case o.CNI == nil:
		return errors.New("no CNI driver")
	case o.Log == nil:
		o.Log = slog.New(slog.DiscardHandler)
	}
	c, err := newCluster(o)
	if err != nil {
		return err
	}
	defer c.events.Shutdown()

	n := newNodes(c)
	if err := n.register(ctx); err != nil {
		return err
	}
	s, k, h := newScheduler(c), newKubelet(c, o.CNI), newHandler(c)
	if err := c.subscribe(n, s, k, h); err != nil {
		return err
	}
	if err := c.start(ctx); err != nil {
		return err
	}

	var wg sync.WaitGroup
	for _, q := range []*queue{n.queue, s.queue, k.queue, k.orphans, h.queue} {
		wg.Go(func() { q.run(ctx) })
	}
	wg.Wait()
	return nil
}
