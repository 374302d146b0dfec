package rollout

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// script is a server whose lists and watches answer in the order given; after the last it repeats.
type script struct {
	lists   []func() (runtime.Object, error)
	watches []func(version string) (watch.Interface, error)
	// log has "list" and "watch VERSION" for every request.
	log chan string
}

func newScript() *script { return &script{log: make(chan string, 100)} }

func (s *script) source() source {
	return source{
		name: "pods", kind: kindPods,
		list: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			s.log <- "list"
			next := s.lists[0]
			if len(s.lists) > 1 {
				s.lists = s.lists[1:]
			}
			return next()
		},
		watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.log <- "watch " + o.ResourceVersion
			next := s.watches[0]
			if len(s.watches) > 1 {
				s.watches = s.watches[1:]
			}
			return next(o.ResourceVersion)
		},
	}
}

func listOf(version string, pods ...*corev1.Pod) func() (runtime.Object, error) {
	return func() (runtime.Object, error) {
		l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
		for _, p := range pods {
			l.Items = append(l.Items, *p)
		}
		return l, nil
	}
}

// watchOf sends events and then either closes or stays open.
func watchOf(closes bool, events ...watch.Event) func(string) (watch.Interface, error) {
	return func(string) (watch.Interface, error) {
		w := watch.NewFakeWithChanSize(len(events)+1, false)
		for _, e := range events {
			w.Action(e.Type, e.Object)
		}
		if closes {
			w.Stop()
		}
		return w, nil
	}
}

func versioned(p *corev1.Pod, version string) *corev1.Pod {
	p.ResourceVersion = version
	return p
}

// TestFollow lets the world be built through broken and expired watches.
func TestFollow(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	gone := apierrors.NewGone("gone")
	tests := []struct {
		name string
		make func(*script)
		log  []string
		pods []string
		// trouble is set where errors must have been told.
		trouble bool
	}{
		{"a list and changes", func(s *script) {
			s.lists = []func() (runtime.Object, error){listOf("5", pod("a", "i", ""))}
			s.watches = []func(string) (watch.Interface, error){watchOf(false, watch.Event{Type: watch.Added, Object: pod("b", "i", "")}, watch.Event{Type: watch.Deleted, Object: pod("a", "i", "")})}
		}, []string{"list", "watch 5"}, []string{"b"}, false},
		{"a watch that ends goes on where it was", func(s *script) {
			s.lists = []func() (runtime.Object, error){listOf("5")}
			s.watches = []func(string) (watch.Interface, error){
				watchOf(true, watch.Event{Type: watch.Added, Object: versioned(pod("a", "i", ""), "7")}),
				watchOf(false, watch.Event{Type: watch.Added, Object: versioned(pod("b", "i", ""), "8")}),
			}
		}, []string{"list", "watch 5", "watch 7"}, []string{"a", "b"}, false},
		{"a bookmark moves it", func(s *script) {
			s.lists = []func() (runtime.Object, error){listOf("5", pod("a", "i", ""))}
			s.watches = []func(string) (watch.Interface, error){
				watchOf(true, watch.Event{Type: watch.Bookmark, Object: versioned(&corev1.Pod{}, "9")}),
				watchOf(false),
			}
		}, []string{"list", "watch 5", "watch 9"}, []string{"a"}, false},
		{"an expired watch lists again: what vanished in the gap is gone", func(s *script) {
			s.lists = []func() (runtime.Object, error){listOf("5", pod("a", "i", ""), pod("b", "i", "")), listOf("50", pod("b", "i", ""))}
			s.watches = []func(string) (watch.Interface, error){
				func(string) (watch.Interface, error) { return nil, expired },
				watchOf(false),
			}
		}, []string{"list", "watch 5", "list", "watch 50"}, []string{"b"}, false},
		{"410 inside of a watch", func(s *script) {
			s.lists = []func() (runtime.Object, error){listOf("5", pod("a", "i", "")), listOf("50", pod("c", "i", ""))}
			s.watches = []func(string) (watch.Interface, error){
				watchOf(false, watch.Event{Type: watch.Error, Object: &gone.ErrStatus}),
				watchOf(false),
			}
		}, []string{"list", "watch 5", "list", "watch 50"}, []string{"c"}, false},
		{"the server is away when listing", func(s *script) {
			s.lists = []func() (runtime.Object, error){func() (runtime.Object, error) { return nil, errors.New("connection refused") }, listOf("5", pod("a", "i", ""))}
			s.watches = []func(string) (watch.Interface, error){watchOf(false)}
		}, []string{"list", "list", "watch 5"}, []string{"a"}, true},
		{"the server is away when watching", func(s *script) {
			s.lists = []func() (runtime.Object, error){listOf("5", pod("a", "i", ""))}
			s.watches = []func(string) (watch.Interface, error){
				func(string) (watch.Interface, error) { return nil, errors.New("connection refused") },
				watchOf(false, watch.Event{Type: watch.Added, Object: pod("b", "i", "")}),
			}
		}, []string{"list", "watch 5", "watch 5"}, []string{"a", "b"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newScript()
			tt.make(s)
			e := newEngine(Deps{}, db1)
			defer e.close()
			e.follow(t.Context(), s.source())
			troubled := false
			for range 100 {
				_ = e.wait(t.Context(), 50*time.Millisecond)
				troubled = troubled || len(e.broken) > 0
				if len(s.log) >= len(tt.log) && len(e.broken) == 0 && len(e.inbox) == 0 && names(e.world) == len(tt.pods) {
					break
				}
			}
			for _, want := range tt.log {
				if got := <-s.log; got != want {
					t.Fatalf("request %q, want %q", got, want)
				}
			}
			for _, name := range tt.pods {
				if e.world.pods[uidOf("p-"+name)] == nil {
					t.Errorf("pod %s is missing", name)
				}
			}
			if troubled != tt.trouble || len(e.broken) > 0 {
				t.Errorf("trouble %v, still %v", troubled, e.broken)
			}
		})
	}
}

func names(w *world) int { return len(w.pods) }

// TestOptionalSource: whoever may not read events does without them.
func TestOptionalSource(t *testing.T) {
	s := newScript()
	s.lists = []func() (runtime.Object, error){func() (runtime.Object, error) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no"))
	}}
	src := s.source()
	src.optional = true
	e := newEngine(Deps{}, db1)
	defer e.close()
	e.follow(t.Context(), src)
	if err := e.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLost: an API server that stays away ends the wait, with its last error.
func TestLost(t *testing.T) {
	s := newScript()
	s.lists = []func() (runtime.Object, error){func() (runtime.Object, error) { return nil, errors.New("connection refused") }}
	e := newEngine(Deps{Patience: 300 * time.Millisecond}, db1)
	defer e.close()
	e.follow(t.Context(), s.source())
	err := e.ready(t.Context())
	var lost *LostError
	if !errors.As(err, &lost) || lost.Err.Error() != "connection refused" {
		t.Fatalf("%v", err)
	}
}

// TestDroppedSource: what a follower sends after it was dropped is not taken.
func TestDroppedSource(t *testing.T) {
	e := newEngine(Deps{}, db1)
	e.open["pods"] = func() {}
	e.drop("pods")
	e.take(message{from: "pods", apply: func(w *world) { t.Error("taken") }})
}
