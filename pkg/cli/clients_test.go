package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One connection for three clients: each request carries the same user agent and impersonation,
// teaches the clock, and its warnings come out once.
func TestClients(t *testing.T) {
	var mu sync.Mutex
	agents, users, accepts := map[string]int{}, map[string]int{}, map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		agents[r.UserAgent()]++
		users[r.Header.Get("Impersonate-User")]++
		accepts[r.URL.Path] = r.Header.Get("Accept")
		mu.Unlock()
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.Header().Set("Warning", `299 - "v1 is \u001b[31mold"`)
		w.Header().Set("Content-Type", "application/json")
		kinds := map[string]string{"pods": `"PodList", "apiVersion": "v1"`, "configmaps": `"ConfigMapList", "apiVersion": "v1"`, "virtualmachines": `"VirtualMachineList", "apiVersion": "kubevirt.io/v1"`}
		_, _ = fmt.Fprintf(w, `{"kind": %s, "items": []}`, kinds[path.Base(r.URL.Path)])
	}))
	defer server.Close()
	e, written := newEnv(t, "--kubeconfig", kubeconfig(t, server.URL), "--as=dev", "--ledger-namespace=l", "--field-manager=me")
	c, err := e.Clients()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := e.Clients(); again != c {
		t.Error("a second call connects again")
	}
	if off := time.Until(c.Clock.Now()).Abs(); off > time.Second {
		t.Errorf("before the first answer the clock is off by %v", off)
	}
	ctx := t.Context()
	if _, err := c.Core.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := c.KubeVirt.KubevirtV1().VirtualMachines("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := c.Ledger.ConfigMaps.List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if off := time.Until(c.Clock.Now()); off < 59*time.Minute || off > 61*time.Minute {
		t.Errorf("the clock is %v ahead, want an hour", off)
	}
	if len(agents) != 1 || !strings.HasPrefix(keys(agents), "kubectl-vmip/dev (") {
		t.Errorf("user agents are %v", agents)
	}
	if keys(users) != "dev" {
		t.Errorf("impersonated users are %v", users)
	}
	if got := accepts["/api/v1/namespaces/l/configmaps"]; !strings.HasPrefix(got, "application/vnd.kubernetes.protobuf,") {
		t.Errorf("the ledger is read as %q", got)
	}
	if c.Namespace != "tenant-a" || c.Ledger.Namespace != "l" || c.Ledger.FieldManager != "me" {
		t.Errorf("namespaces are %q and %q, field manager %q", c.Namespace, c.Ledger.Namespace, c.Ledger.FieldManager)
	}
	if _, errOut := written(); errOut != "Warning: v1 is u001b[31mold\n" {
		t.Errorf("warnings are %q", errOut)
	}
}

func keys(m map[string]int) (s string) {
	for k := range m {
		s += k
	}
	return s
}

func TestServerClock(t *testing.T) {
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name           string
		date           time.Duration
		sent, received time.Duration
		want           time.Duration
	}{
		{"agrees", 0, 100 * time.Millisecond, 200 * time.Millisecond, 0},
		{"agrees over the second", 0, -300 * time.Millisecond, 100 * time.Millisecond, 0},
		{"server ahead", 10 * time.Second, 0, time.Second, 9 * time.Second},
		{"server behind", -10 * time.Second, 0, time.Second, -9 * time.Second},
	} {
		var c ServerClock
		c.observe(at.Add(tc.date), at.Add(tc.sent), at.Add(tc.received))
		if got, known := c.Offset(); got != tc.want || !known {
			t.Errorf("%s: offset is %v (known: %v), want %v", tc.name, got, known, tc.want)
		}
	}
}

func TestVerbosity(t *testing.T) {
	e, _ := newEnv(t, "-v", "6", "-n", "other")
	if ns, err := e.Namespace(); ns != "other" || err != nil {
		t.Errorf("namespace is %q, %v", ns, err)
	}
	newEnv(t, "-v=0")
}
