package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

// Up starts the cluster of the options in the background and returns when all of it works. A cluster that
// already runs with the same settings is left alone. Progress goes to out; self is this executable,
// called as `self run` with the options in its environment.
func Up(ctx context.Context, o Options, self string, out io.Writer) error {
	unlock, err := lock(o.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := Load(o.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case old.Supervisor.Alive():
		if !old.same(o) {
			return fmt.Errorf("cluster %s runs with other settings (%s, asked for %s): stop it first, with `make cluster-down`",
				o.Name, old.Settings(), o.Settings())
		}
		if err := old.Check(ctx); err != nil {
			return fmt.Errorf("cluster %s runs but isn't healthy: %w: stop it first, with `make cluster-down`", o.Name, err)
		}
		fmt.Fprintf(out, "cluster %s is already running: %s\n", o.Name, old.Settings())
		return nil
	default:
		if err := old.clear(); err != nil {
			return fmt.Errorf("remains of an earlier cluster %s: %w", o.Name, err)
		}
	}
	if err := prepare(o); err != nil {
		return err
	}
	fmt.Fprintf(out, "cluster %s: starting (%s)\n", o.Name, o.Settings())
	cmd, err := startSupervisor(o, self)
	if err != nil {
		return err
	}
	state, err := watch(ctx, o, cmd, out)
	if err == nil {
		fmt.Fprintf(out, "cluster %s is ready after %.1f s\n", o.Name, time.Since(state.Started).Seconds())
		return nil
	}
	if state != nil && state.Phase == Failed {
		log := o.logFile("supervisor")
		for _, c := range state.Components {
			if c.Name == state.Component {
				log = c.Log
			}
		}
		fmt.Fprintf(out, "%s\n(the end of %s; nothing is left running)\n", indent(tail(log, 20)), log)
		return err
	}
	// Interrupted, timed out, or the supervisor is gone.
	if state != nil {
		err = errors.Join(err, state.clear())
	} else {
		_ = cmd.Process.Kill()
	}
	return err
}

// prepare makes the cluster's folder, and git overlook it.
func prepare(o Options) error {
	if err := os.MkdirAll(o.path("logs"), 0o755); err != nil {
		return err
	}
	parent := filepath.Dir(o.Dir)
	if filepath.Base(parent) == ".cluster" {
		if err := os.WriteFile(filepath.Join(parent, ".gitignore"), []byte("*\n"), 0o644); err != nil {
			return err
		}
	}
	if short := o.Shortcut(); short != "" {
		_ = os.Remove(short)
		return os.Symlink(filepath.Join(filepath.Base(o.Dir), "kubeconfig"), short)
	}
	return nil
}

// startSupervisor runs `self run` in a session of its own, so that it outlives the terminal.
func startSupervisor(o Options, self string) (*exec.Cmd, error) {
	f, err := os.Create(o.logFile("supervisor"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	options, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "run", string(options))
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

// watch reports what becomes ready until the cluster is, or has failed.
func watch(ctx context.Context, o Options, cmd *exec.Cmd, out io.Writer) (*State, error) {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	reported := map[string]bool{}
	for {
		var exit error
		select {
		case exit = <-ended:
			if exit == nil {
				exit = errors.New("exit status 0")
			}
		case <-ctx.Done():
			state, _ := Load(o.Dir)
			return state, fmt.Errorf("cluster %s: %w", o.Name, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
		state, err := Load(o.Dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if state != nil {
			for _, c := range state.Components {
				if c.Ready > 0 && !reported[c.Name] {
					reported[c.Name] = true
					fmt.Fprintf(out, "  %-24s ready after %4.1f s\n", c.Name, c.Ready.Seconds())
				}
			}
			switch state.Phase {
			case Ready:
				return state, nil
			case Failed:
				if exit != nil { // only now nothing is left running
					return state, fmt.Errorf("cluster %s failed: %s", o.Name, state.Error)
				}
			}
		}
		if exit != nil && (state == nil || state.Phase != Failed) {
			return state, fmt.Errorf("cluster %s: the supervisor ended: %w\n%s", o.Name, exit, indent(tail(o.logFile("supervisor"), 20)))
		}
	}
}

// Down stops the cluster in dir and removes what it has written. Where nothing runs it does nothing.
func Down(dir string, out io.Writer) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(out, "no cluster is running")
		return nil
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(out, "no cluster is running")
		return (&State{Options: Options{Dir: dir}}).remove()
	}
	if err != nil {
		return err
	}
	if err := state.clear(); err != nil {
		return err
	}
	fmt.Fprintf(out, "cluster %s is stopped\n", state.Name)
	return nil
}

// clear ends every process of the state and removes the files. The supervisor ends its children; what
// it may have left is looked for by process id and start time.
func (s *State) clear() error {
	s.Supervisor.Signal(syscall.SIGTERM)
	if !gone(15*time.Second, s.Supervisor) {
		s.Supervisor.Signal(syscall.SIGKILL)
	}
	if now, err := Load(s.Dir); err == nil {
		s = now
	}
	all := []Process{s.Supervisor}
	for _, c := range s.Components {
		all = append(all, c.Process)
	}
	if !gone(2*time.Second, all...) {
		for _, p := range all {
			p.Signal(syscall.SIGKILL)
		}
		if !gone(5*time.Second, all...) {
			return fmt.Errorf("cluster %s: processes are left that cannot be killed", s.Name)
		}
	}
	return s.remove()
}

func gone(timeout time.Duration, all ...Process) bool {
	deadline := time.Now().Add(timeout)
	for {
		alive := false
		for _, p := range all {
			alive = alive || p.Alive()
		}
		if !alive || time.Now().After(deadline) {
			return !alive
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Check looks whether a cluster that should be ready is: every component runs, the API server answers,
// virt-api is reached through it and the nodes are ready.
func (s *State) Check(ctx context.Context) error {
	if !s.Supervisor.Alive() {
		return errors.New("the supervisor is gone")
	}
	if s.Phase != Ready {
		return fmt.Errorf("it is %s", s.Phase)
	}
	for _, c := range s.Components {
		if c.Died != "" {
			return fmt.Errorf("%s died: %s: see %s", c.Name, c.Died, c.Log)
		}
		if !c.Alive() {
			return fmt.Errorf("%s is gone: see %s", c.Name, c.Log)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return err
	}
	config.Timeout = 10 * time.Second
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	kv := &kubevirt{client: client}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := kv.waitCondition(ctx, apiServiceGVR, "v1.subresources.kubevirt.io", "Available"); err != nil {
		return err
	}
	n, err := nodesReady(ctx, client)
	if err == nil && n < s.Nodes {
		err = fmt.Errorf("%d of %d nodes are ready", n, s.Nodes)
	}
	return err
}

// Restart restarts a component of a running cluster on its old port and returns when it works again. It is
// left down for a while, and killed where kill says so.
func Restart(ctx context.Context, s *State, component string, kill bool, down time.Duration) error {
	body, err := json.Marshal(restartRequest{component, kill, down})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Address+"/restart", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(resp.Body)
		return errors.New(strings.TrimSpace(string(msg)))
	}
	return nil
}

// UserKubeconfig returns a kubeconfig for a user and groups without any rights but those that are bound to them.
func UserKubeconfig(s *State, user string, groups []string) ([]byte, error) {
	ca, err := loadAuthority(s.path("pki", "ca.crt"), s.path("pki", "ca.key"))
	if err != nil {
		return nil, err
	}
	return ca.kubeconfig(s.Server, contextName(s.Name), user, groups)
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(s, "\n", "\n    ")
}
