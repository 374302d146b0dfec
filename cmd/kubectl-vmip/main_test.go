//go:build unix

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// The test binary is the program where this is set.
const asProgram = "KUBECTL_VMIP_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func program(t *testing.T, kubeconfig string, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	var out, errOut bytes.Buffer
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = []string{asProgram + "=1", "KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir()}
	c.Stdout, c.Stderr = &out, &errOut
	return c, &out, &errOut
}

func TestExitStatus(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		status int
		out    string
		errOut string
	}{
		{[]string{"version", "--client"}, 0, "Client Version: dev\nLedger Format: v1alpha1\n", ""},
		{[]string{"nonsense"}, 2, "", "error: unknown command \"nonsense\" for \"kubectl vmip\"\nSee 'kubectl vmip -h' for help and examples\n"},
		{[]string{"list"}, 1, "", "error: no cluster to talk to: there is no kubeconfig at /nowhere; name one with --kubeconfig or KUBECONFIG\n"},
	} {
		c, out, errOut := program(t, "/nowhere", tc.args...)
		_ = c.Run()
		if c.ProcessState.ExitCode() != tc.status || out.String() != tc.out || errOut.String() != tc.errOut {
			t.Errorf("%v: status %d, output %q, errors %q", tc.args, c.ProcessState.ExitCode(), out, errOut)
		}
	}
}

// Ctrl-C while the API server keeps the program waiting, for whichever request came first.
func TestInterrupt(t *testing.T) {
	asked := make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer s.Close()
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, s.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, out, errOut := program(t, config, "list")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	case <-time.After(30 * time.Second):
		t.Error("no request was sent")
	}
	_ = c.Process.Signal(syscall.SIGINT)
	_ = c.Wait()
	if c.ProcessState.ExitCode() != 130 || out.String() != "" || !regexp.MustCompile(`^error: ([a-z -]+: )?interrupted\n$`).MatchString(errOut.String()) {
		t.Errorf("status %d, output %q, errors %q", c.ProcessState.ExitCode(), out, errOut)
	}
}
