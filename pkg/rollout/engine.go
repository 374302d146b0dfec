package rollout

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Reporter shows where an operation stands.
type Reporter interface {
	// Heading adds to the operation's first line what became known later.
	Heading(more string)
	// Phase says where it stands and what it waits for; the same phase replaces the last text.
	Phase(phase, text string)
}

// engine feeds a state machine from watches and acts on its decisions.
type engine struct {
	ref   machine.Ref
	now   func() time.Time
	inbox chan message
	world *world
	// open are the running followers; broken since when those that the operation needs can't
	// read the API server.
	open   map[string]context.CancelFunc
	broken map[string]time.Time
	reason error
	// patience is how long that may last.
	patience time.Duration
}

func newEngine(d Deps, ref machine.Ref) *engine {
	return &engine{
		ref: ref, now: d.now, patience: d.patience(),
		inbox: make(chan message, 64), world: newWorld(),
		open: map[string]context.CancelFunc{}, broken: map[string]time.Time{},
	}
}

// LostError is an API server that could not be reached for too long.
type LostError struct {
	For time.Duration
	Err error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the API server could not be read for %s: %v", e.For.Round(time.Second), e.Err)
}

// Unwrap returns the last error.
func (e *LostError) Unwrap() error { return e.Err }

// follow starts to follow a source, once.
func (e *engine) follow(ctx context.Context, sources ...source) {
	for _, s := range sources {
		if e.open[s.name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		e.open[s.name] = cancel
		go s.follow(ctx, e.inbox)
	}
}

// drop ends a follower and forgets it; what it still sends is not taken.
func (e *engine) drop(name string) {
	if stop := e.open[name]; stop != nil {
		stop()
	}
	delete(e.open, name)
	delete(e.broken, name)
	delete(e.world.loaded, name)
}

func (e *engine) close() {
	for _, stop := range e.open {
		stop()
	}
}

// take applies what a follower said.
func (e *engine) take(m message) {
	if e.open[m.from] == nil {
		return
	}
	if m.err == nil {
		delete(e.broken, m.from)
		m.apply(e.world)
		return
	}
	e.reason = m.err
	if _, already := e.broken[m.from]; !already {
		e.broken[m.from] = e.now()
	}
}

// lost says whether the API server was away for longer than patience allows. One that forbids to
// look won't think better of it.
func (e *engine) lost() error {
	for _, since := range e.broken {
		if d := e.now().Sub(since); d >= e.patience || apierrors.IsForbidden(e.reason) {
			return &LostError{For: d, Err: e.reason}
		}
	}
	return nil
}

// ready waits until everything that is followed has been listed once.
func (e *engine) ready(ctx context.Context) error {
	for {
		missing := 0
		for name := range e.open {
			if !e.world.loaded[name] {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		if err := e.wait(ctx, time.Second); err != nil {
			return err
		}
	}
}

// wait takes at least one message, or none where the time passes first. 0 waits without end.
func (e *engine) wait(ctx context.Context, most time.Duration) error {
	if len(e.broken) > 0 && (most == 0 || most > time.Second) {
		most = time.Second
	}
	var alarm <-chan time.Time
	if most > 0 {
		t := time.NewTimer(most)
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-alarm:
	case m := <-e.inbox:
		e.take(m)
		// One change of the cluster is often several messages: look at them together.
		for len(e.inbox) > 0 {
			e.take(<-e.inbox)
		}
	}
	return e.lost()
}

// stepper is the part of a state machine that the engine drives.
type stepper interface {
	observe(*world, time.Time) decision
}

// run drives the state machine to its end. before is called ahead of each look, so that sources
// can follow what has become known; abort carries out a decision to abort. The decision that is
// returned with an error is the last one: where the operation stood.
func (e *engine) run(ctx context.Context, s stepper, before func(*world), abort func(context.Context) error, r Reporter) (decision, error) {
	shown := map[string]string{}
	for {
		before(e.world)
		d := s.observe(e.world, e.now())
		if d.abort {
			if err := abort(ctx); err != nil {
				d.detail += fmt.Sprintf("; can't delete the migration: %v", err)
			}
		}
		if len(e.broken) > 0 {
			d.detail += "; the API server can't be read, trying again"
		}
		if d.phase != "" {
			if d.past != nil && shown[d.phase] == "" && shown[d.past.phase] != d.past.detail {
				r.Phase(d.past.phase, d.past.detail)
			}
			shown[d.phase] = d.detail
			r.Phase(d.phase, d.detail)
		}
		if d.end != nil {
			return d, nil
		}
		if err := e.wait(ctx, d.wake); err != nil {
			return d, err
		}
	}
}
