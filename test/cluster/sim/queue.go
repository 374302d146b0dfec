package sim

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// queue feeds keys to a step function, no key to two workers at once.
type queue struct {
	keys    workqueue.TypedRateLimitingInterface[string]
	workers int
	// step brings one object forward. It returns when to look again, or zero.
	step func(ctx context.Context, key string) (time.Duration, error)
	log  *slog.Logger
}

func newQueue(log *slog.Logger, workers int, step func(context.Context, string) (time.Duration, error)) *queue {
	// A lost race for an object is over in milliseconds; an API server that restarts is back in seconds.
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 2*time.Second)
	return &queue{keys: workqueue.NewTypedRateLimitingQueue(limiter), workers: workers, step: step, log: log}
}

func (q *queue) add(key string) { q.keys.Add(key) }

// run works until ctx ends and every step in flight has returned.
func (q *queue) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, q.keys.ShutDown)
	defer stop()
	var wg sync.WaitGroup
	for range q.workers {
		wg.Go(func() {
			for q.next(ctx) {
			}
		})
	}
	wg.Wait()
}

func (q *queue) next(ctx context.Context) bool {
	key, quit := q.keys.Get()
	if quit {
		return false
	}
	defer q.keys.Done(key)
	after, err := q.step(ctx, key)
	if err != nil {
		if ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			q.log.Debug("will retry", "key", key, "error", err)
		}
		q.keys.AddRateLimited(key)
		return true
	}
	q.keys.Forget(key)
	if after > 0 {
		q.keys.AddAfter(key, after)
	}
	return true
}

// stopwatch measures waits that begin at an API timestamp. The API keeps whole seconds, so the
// moment when the simulator saw it first counts, unless it saw it late: after a restart.
type stopwatch struct {
	mu    sync.Mutex
	first map[types.UID]map[string]time.Time
}

// since is how long ago what happened to the object uid; stamp is the API's time of it.
func (s *stopwatch) since(uid types.UID, what string, stamp time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.first[uid][what]
	if !ok {
		first = time.Now()
		if first.Sub(stamp) > 2*time.Second {
			first = stamp
		}
		if s.first == nil {
			s.first = map[types.UID]map[string]time.Time{}
		}
		if s.first[uid] == nil {
			s.first[uid] = map[string]time.Time{}
		}
		s.first[uid][what] = first
	}
	return time.Since(first)
}

func (s *stopwatch) drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.first, uid)
}
