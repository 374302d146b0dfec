// Package fault breaks the connection between a client and the API server on purpose: a transport
// that asks a plan what to do with each call. It is for tests.
package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Call is one request as the plan sees it.
type Call struct {
	// N counts the calls of the transport from 1.
	N            int
	Method, Path string
	Query        string
	Body         []byte
}

// Writes says whether the call would change something.
func (c Call) Writes() bool { return c.Method != http.MethodGet }

func (c Call) String() string {
	if c.Query == "" {
		return c.Method + " " + c.Path
	}
	return c.Method + " " + c.Path + "?" + c.Query
}

// Action is what becomes of a call. The zero value lets it pass.
type Action struct {
	// Wait holds the call back until the channel is closed, as a process that was stopped would.
	Wait <-chan struct{}
	// Delay holds it back for a time.
	Delay time.Duration
	// Kill ends the process: this call is not sent, nor any later one.
	Kill bool
	// KillAfter sends the call; its answer, and every later call, is lost.
	KillAfter bool
	// Lose sends the call and loses its answer.
	Lose bool
	// Drop does not send the call, and the client can't tell: its connection breaks.
	Drop bool
	// Late breaks the connection at once and sends the call when the channel is closed.
	Late <-chan struct{}
	// Rewrite changes what is sent.
	Rewrite func([]byte) []byte
	// Pretend does not send the call and tells the client that it was done.
	Pretend bool
	// Answer is what a pretended call answers; nil stands for the body that was sent, as an update's
	// answer has it.
	Answer []byte
	// Status answers with a Kubernetes status of that code, without sending the call.
	Status int
}

// Plan decides about a call. It is called by one goroutine at a time.
type Plan func(Call) Action

// Errors of broken connections, as a client sees them.
var (
	ErrBroken = errors.New("connection reset by peer")
	ErrDead   = errors.New("the process is dead")
)

// Transport passes calls on to Next as its plan says.
type Transport struct {
	Next http.RoundTripper
	Plan Plan
	// Wrote is told of every write that the server has carried out: when it was sent, and when its
	// answer had come. nil asks for nothing.
	Wrote func(c Call, sent, answered time.Time)

	mu    sync.Mutex
	calls []Call
	dead  bool
	late  []<-chan struct{} // closed when a late call has landed
	// writes are the answered ones, conflicts those that met another writer's.
	writes, conflicts int
}

// Conflicts says how many of the answered writes met another writer's.
func (t *Transport) Conflicts() (conflicts, writes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conflicts, t.writes
}

// count notes the answer to a write: 409, and the 422 of a JSON patch's failed test.
func (t *Transport) count(c Call, resp *http.Response) {
	if resp == nil || !c.Writes() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writes++
	if resp.StatusCode == http.StatusConflict || resp.StatusCode == http.StatusUnprocessableEntity {
		t.conflicts++
	}
}

// Calls are the calls so far.
func (t *Transport) Calls() []Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Call{}, t.calls...)
}

// Dead says whether the process was killed.
func (t *Transport) Dead() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dead
}

// Settle waits until the late ones of the calls so far have landed.
func (t *Transport) Settle() {
	t.mu.Lock()
	late := slices.Clone(t.late)
	t.mu.Unlock()
	for _, landed := range late {
		<-landed
	}
}

// begin counts a call and asks what to do with it.
func (t *Transport) begin(r *http.Request) (Call, Action, error) {
	c := Call{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return c, Action{}, err
		}
		r.Body.Close()
		c.Body = body
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead {
		return c, Action{}, ErrDead
	}
	c.N = len(t.calls) + 1
	t.calls = append(t.calls, c)
	var a Action
	if t.Plan != nil {
		a = t.Plan(c)
	}
	if a.Kill {
		t.dead = true
		return c, a, ErrDead
	}
	return c, a, nil
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	c, a, err := t.begin(r)
	if err != nil {
		return nil, err
	}
	if a.Wait != nil {
		select {
		case <-a.Wait:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if a.Delay > 0 {
		select {
		case <-time.After(a.Delay):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	switch {
	case a.Status != 0:
		resp := status(r, a.Status)
		t.count(c, resp)
		return resp, nil
	case a.Pretend:
		if a.Answer != nil {
			return answer(r, http.StatusOK, a.Answer), nil
		}
		return answer(r, http.StatusOK, c.Body), nil
	case a.Drop:
		return nil, ErrBroken
	case a.Late != nil:
		landed := make(chan struct{})
		t.mu.Lock()
		t.late = append(t.late, landed)
		t.mu.Unlock()
		go func() {
			defer close(landed)
			t.sendLate(r.Clone(context.WithoutCancel(r.Context())), c.Body, a.Late)
		}()
		return nil, ErrBroken
	}
	if a.Rewrite != nil {
		body := a.Rewrite(c.Body)
		r = r.Clone(r.Context())
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	sent := time.Now()
	resp, err := t.Next.RoundTrip(r)
	t.count(c, resp)
	if t.Wrote != nil && err == nil && c.Writes() && resp.StatusCode < http.StatusBadRequest {
		t.Wrote(c, sent, time.Now())
	}
	if !a.Lose && !a.KillAfter {
		return resp, err
	}
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if a.KillAfter {
		t.mu.Lock()
		t.dead = true
		t.mu.Unlock()
		return nil, ErrDead
	}
	return nil, ErrBroken
}

func (t *Transport) sendLate(r *http.Request, body []byte, at <-chan struct{}) {
	<-at
	r.Body = io.NopCloser(bytes.NewReader(body))
	if resp, err := t.Next.RoundTrip(r); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// status is the API server's answer of that code.
func status(r *http.Request, code int) *http.Response {
	reason := map[int]metav1.StatusReason{
		http.StatusConflict: metav1.StatusReasonConflict, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusGatewayTimeout: metav1.StatusReasonTimeout,
		http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable, http.StatusNotFound: metav1.StatusReasonNotFound,
	}[code]
	body, _ := json.Marshal(&metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
		Message: fmt.Sprintf("injected %d for %s %s", code, r.Method, r.URL.Path),
	})
	return answer(r, code, body)
}

func answer(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{
		Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// At is a plan that does one thing at the n-th call.
func At(n int, a Action) Plan {
	return func(c Call) Action {
		if c.N == n {
			return a
		}
		return Action{}
	}
}

// On is a plan that does one thing at the first call whose text (Call.String) has all the words.
func On(a Action, words ...string) Plan {
	done := false
	return func(c Call) Action {
		if done {
			return Action{}
		}
		for _, w := range words {
			if !strings.Contains(c.String(), w) {
				return Action{}
			}
		}
		done = true
		return a
	}
}
