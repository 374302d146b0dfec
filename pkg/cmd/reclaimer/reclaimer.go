// Package reclaimer has the command that a Deployment runs: it moves on what commands and machines
// have left behind in the ledger.
package reclaimer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd/scan"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
)

const leaseName = "vmip-reclaimer"

type options struct {
	interval, grace, orphans, scan time.Duration
	once                           bool
}

// New returns `kubectl-vmip reclaimer`, which is hidden from the help: people install it, they
// don't run it.
func New(env *cli.Env) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:    "reclaimer",
		Hidden: true,
		Short:  "Move on what commands and machines have left behind in the ledger",
		Long: `Move on what commands and machines have left behind in the ledger, again and again: complete
reserves and releases that died, release the addresses of virtual machines that are gone, free
those whose cool-down is over, and record the addresses that others use, so that none is given out.

A machine is gone where its name is not found while machines can be listed, and neither an instance
nor a pod of it is there, for as long as --orphans-after says. Whatever can't be read changes nothing.

Of several that run at once one works: they elect a leader by the lease ` + leaseName + ` in the
ledger's namespace.`,
		Example: `  # In a Deployment
  kubectl-vmip reclaimer

  # One sweep, by hand
  kubectl vmip reclaimer --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.interval < time.Second {
				return cli.UsageError(fmt.Errorf("--interval %s: at least 1s", o.interval))
			}
			if o.scan < 0 {
				return cli.UsageError(fmt.Errorf("--scan-interval %s: give a positive duration, or 0 for never", o.scan))
			}
			c, err := env.Clients()
			if err != nil {
				return err
			}
			r := &reclaimer{env: env, clients: c, options: o, service: reservation.NewService(env, c, ""), since: map[string]time.Time{}}
			if o.once {
				r.orphans = 0
				if err := r.sweep(cmd.Context()); err != nil || r.scan == 0 {
					return err
				}
				return scan.Refresh(cmd.Context(), env, c)
			}
			return r.elect(cmd.Context(), c)
		},
	}
	fs := cmd.Flags()
	fs.DurationVar(&o.interval, "interval", time.Minute, "Time between two sweeps")
	fs.DurationVar(&o.scan, "scan-interval", 10*time.Minute, "Time between two scans for addresses that others use; 0 for none")
	fs.DurationVar(&o.grace, "grace", 5*time.Minute, "How old a row must be before it counts as left behind")
	fs.DurationVar(&o.orphans, "orphans-after", time.Hour, "How long a virtual machine must have been gone before its addresses are released")
	fs.BoolVar(&o.once, "once", false, "Sweep once and end; machines that are gone now count")
	return cmd
}

type reclaimer struct {
	*options
	env     *cli.Env
	clients *cli.Clients
	service *reservation.Service

	mu sync.Mutex
	// since says when a row's machine was first seen gone, seen whether it is so in this sweep. A new
	// leader begins anew: too late is safe, too early is not.
	since map[string]time.Time
	seen  map[string]bool
}

// elect waits until this one is the leader and works until it no longer is.
func (r *reclaimer) elect(ctx context.Context, c *cli.Clients) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lost := errors.New("another reclaimer has become the leader")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Ledger.Namespace, Name: leaseName},
			Client:     c.Core.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + ledger.NewOp()},
		},
		ReleaseOnCancel: true,
		LeaseDuration:   30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 5 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: r.work,
			OnStoppedLeading: func() { stop(lost) },
		},
	})
	if err := context.Cause(ctx); errors.Is(err, lost) {
		return err
	}
	return nil // told to end
}

func (r *reclaimer) work(ctx context.Context) {
	fmt.Fprintln(r.env.ErrOut, "leading")
	tick := time.NewTicker(r.interval)
	defer tick.Stop()
	var scanned time.Time
	for {
		if err := r.sweep(ctx); err != nil && ctx.Err() == nil {
			r.env.PrintError(err)
		}
		if r.scan > 0 && time.Since(scanned) >= r.scan {
			scanned = time.Now()
			if err := scan.Refresh(ctx, r.env, r.clients); err != nil && ctx.Err() == nil {
				r.env.PrintError(err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep prints a line for each row that it changed.
func (r *reclaimer) sweep(ctx context.Context) error {
	r.seen = map[string]bool{}
	swept, err := r.service.Sweep(ctx, reservation.SweepOptions{Grace: r.grace, Orphans: r.orphan})
	if err != nil {
		return err
	}
	maps.DeleteFunc(r.since, func(key string, _ time.Time) bool { return !r.seen[key] }) // it is back
	var errs []error
	for _, w := range swept {
		switch {
		case w.Err != nil:
			errs = append(errs, w.Err)
		case w.Did != reservation.Keep:
			fmt.Fprintf(r.env.Out, "virtualmachine.kubevirt.io/%s %s %s (%s, interface %s)\n", w.VM.Name, w.Did, w.Addr, w.VM.Namespace, w.Interface)
		}
	}
	return errors.Join(errs...)
}

// orphan says whether a row's machine has been gone for long enough.
func (r *reclaimer) orphan(e ledger.Entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, now := e.Key+"/"+e.Row.Op, r.service.Ledger.Clock.Now()
	r.seen[key] = true
	first, known := r.since[key]
	if !known {
		first = now
		r.since[key] = first
	}
	return now.Sub(first) >= r.orphans
}
