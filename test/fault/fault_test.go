package fault

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Every action is what a client would see, and what the server would.
func TestActions(t *testing.T) {
	open := make(chan struct{})
	close(open)
	later := make(chan struct{})
	for name, c := range map[string]struct {
		action Action
		// err is what the client sees; arrives how many calls reach the server, out of two.
		err     error
		arrives int32
	}{
		"pass":       {Action{}, nil, 2},
		"wait":       {Action{Wait: open}, nil, 2},
		"kill":       {Action{Kill: true}, ErrDead, 0},
		"kill after": {Action{KillAfter: true}, ErrDead, 1},
		"lose":       {Action{Lose: true}, ErrBroken, 2},
		"drop":       {Action{Drop: true}, ErrBroken, 1},
		"pretend":    {Action{Pretend: true}, nil, 1},
		"late":       {Action{Late: later}, ErrBroken, 1},
	} {
		var arrived atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
		tr := &Transport{Next: http.DefaultTransport, Plan: At(1, c.action)}
		client := &http.Client{Transport: tr}
		resp, err := client.Post(server.URL+"/a?b=c", "text/plain", strings.NewReader("body"))
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%s: the client sees %v, want %v", name, err, c.err)
		}
		if resp, err := client.Get(server.URL); err == nil {
			resp.Body.Close()
		} else if !tr.Dead() {
			t.Errorf("%s: the second call fails: %v", name, err)
		}
		if got := arrived.Load(); got != c.arrives {
			t.Errorf("%s: %d calls arrive, want %d", name, got, c.arrives)
		}
		if calls := tr.Calls(); calls[0].String() != "POST /a?b=c" || string(calls[0].Body) != "body" || !calls[0].Writes() {
			t.Errorf("%s: recorded %v", name, calls)
		}
		if name == "late" {
			close(later)
			tr.Settle()
			if got := arrived.Load(); got != 2 {
				t.Errorf("the late call has not landed: %d", got)
			}
		}
		server.Close()
	}
}

func TestStatusIsTheAPIServers(t *testing.T) {
	for code, is := range map[int]func(error) bool{http.StatusConflict: apierrors.IsConflict, http.StatusForbidden: apierrors.IsForbidden, http.StatusInternalServerError: apierrors.IsInternalError, http.StatusGatewayTimeout: apierrors.IsTimeout} {
		cfg := &rest.Config{Host: "http://127.0.0.1:1", WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &Transport{Next: next, Plan: On(Action{Status: code}, "GET", "configmaps/x")}
		}}
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "x", metav1.GetOptions{}); !is(err) {
			t.Errorf("%d is seen as %v", code, err)
		}
	}
}
