package reservation

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// parallel is how many machines are worked on at once: enough to hide the latency of a request,
// few enough to be fair to the API server.
const parallel = 16

// Outcome is what came of one machine of a batch.
type Outcome struct {
	VM     machine.Ref
	Result Result
	Err    error
}

// Each does the same to many machines, going on after errors, and returns the outcomes in the
// order of the machines.
func Each(ctx context.Context, vms []machine.Ref, do func(context.Context, machine.Ref) (Result, error)) []Outcome {
	return each(vms, func(_ int, vm machine.Ref) Outcome {
		res, err := do(ctx, vm)
		return Outcome{vm, res, err}
	})
}

// each does the same to all items, several at once, and returns the answers in their order.
func each[T, R any](items []T, do func(int, T) R) []R {
	out := make([]R, len(items))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, item := range items {
		g.Go(func() error {
			out[i] = do(i, item)
			return nil
		})
	}
	_ = g.Wait() // errors are in the answers
	return out
}
