package rollout

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// source is a set of objects that a selector bounds, to be listed once and then watched.
type source struct {
	// name is for people and unique among the sources of an operation.
	name string
	// kind is the part of the world that the source fills.
	kind kind
	// optional sources help to explain; an operation goes on without them where they may not
	// be read.
	optional bool
	selector metav1.ListOptions
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// message is what a follower tells: a change of the world, or trouble with reading it.
type message struct {
	from  string
	apply func(*world)
	// err is set where the API server can't be read; a message without it ends the trouble.
	err error
}

// The pauses of a follower that meets errors: short enough to see an API server that comes back
// before its user gives up, long enough not to hurt it.
const (
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
)

// follow lists the source and then watches it until the context ends, through expired and broken
// watches. What it sends is complete: after a gap the whole list comes again.
func (s source) follow(ctx context.Context, out chan<- message) {
	version, pause := "", minPause
	for ctx.Err() == nil {
		began := time.Now()
		next, err := s.once(ctx, version, out)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && time.Since(began) > time.Second:
			// An ordinary end: servers close watches every few minutes.
			version, pause = next, minPause
			continue
		case err == nil:
			version = next
		case s.optional && apierrors.IsForbidden(err):
			s.send(ctx, out, message{apply: func(w *world) { w.replace(s, nil) }})
			return
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			// The watch can't go on from where it was; the list can.
			version = ""
		default:
			version = next
			s.send(ctx, out, message{err: err})
		}
		sleep(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, maxPause)
	}
}

// once lists where no version is known, then watches from the version until the watch ends. It
// returns the version from which the next watch can go on.
func (s source) once(ctx context.Context, version string, out chan<- message) (string, error) {
	if version == "" {
		list, err := s.list(ctx, s.selector)
		if err != nil {
			return "", err
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return "", err
		}
		about, err := meta.ListAccessor(list)
		if err != nil {
			return "", err
		}
		version = about.GetResourceVersion()
		s.send(ctx, out, message{apply: func(w *world) { w.replace(s, items) }})
	}
	opts := s.selector
	opts.ResourceVersion, opts.AllowWatchBookmarks = version, true
	// A bound of its own, at random, so that an operation meets an expired watch as a matter of
	// course and not once in its life.
	opts.TimeoutSeconds = new(int64(240 + rand.N(120)))
	events, err := s.watch(ctx, opts)
	if err != nil {
		return version, err
	}
	defer events.Stop()
	// An open watch is the proof that the server answers again.
	s.send(ctx, out, message{apply: func(*world) {}})
	for {
		select {
		case <-ctx.Done():
			return version, nil
		case e, open := <-events.ResultChan():
			if !open {
				return version, nil
			}
			if e.Type == watch.Error {
				// Whatever it was, the list tells the truth again.
				return "", apierrors.FromObject(e.Object)
			}
			if about, err := meta.Accessor(e.Object); err == nil {
				version = about.GetResourceVersion()
			}
			s.change(ctx, out, e)
		}
	}
}

func (s source) change(ctx context.Context, out chan<- message, e watch.Event) {
	switch e.Type {
	case watch.Added, watch.Modified:
		s.send(ctx, out, message{apply: func(w *world) { w.put(s, e.Object) }})
	case watch.Deleted:
		s.send(ctx, out, message{apply: func(w *world) { w.remove(s, e.Object) }})
	}
}

func (s source) send(ctx context.Context, out chan<- message, m message) {
	m.from = s.name
	select {
	case out <- m:
	case <-ctx.Done():
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
