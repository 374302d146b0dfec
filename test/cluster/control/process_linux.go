package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// spawn runs commands' Start on one OS thread that never ends. The children ask for a signal when
// their parent dies, and Linux sends it when the thread that forked them ends, not the process.
var spawn = sync.OnceValue(func() func(*exec.Cmd) error {
	type request struct {
		cmd *exec.Cmd
		err chan error
	}
	requests := make(chan request)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.err <- r.cmd.Start()
		}
	}()
	return func(cmd *exec.Cmd) error {
		r := request{cmd, make(chan error, 1)}
		requests <- r
		return <-r.err
	}
})

// process is one program of the cluster, under the supervisor.
type process struct {
	name string
	path string
	args []string
	env  []string
	log  string
	port int
	// ready is one look at whether the program does its work.
	ready func(context.Context) error

	mu   sync.Mutex
	cmd  *exec.Cmd
	exit chan struct{} // closed when cmd has ended
	err  error         // how cmd ended
	// stopping tells an end that was asked for from a death.
	stopping bool
}

// start runs the program. died is called when it ends without being asked to.
func (p *process) start(died func(*process, error)) error {
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := spawn()(cmd); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	exit := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.exit, p.err, p.stopping = cmd, exit, nil, false
	p.mu.Unlock()
	go func() {
		err := cmd.Wait()
		if err == nil {
			err = errors.New("exit status 0")
		}
		p.mu.Lock()
		stopping := p.stopping
		p.err = err
		p.mu.Unlock()
		close(exit)
		if !stopping {
			died(p, err)
		}
	}()
	return nil
}

// running returns the process id and a channel that is closed at its end, or 0 before start.
func (p *process) running() (pid int, exit <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0, nil
	}
	return p.cmd.Process.Pid, p.exit
}

// dead returns how the program ended, or nil while it runs.
func (p *process) dead() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// stop ends the program with sig, and with SIGKILL after grace.
func (p *process) stop(sig syscall.Signal, grace time.Duration) {
	p.mu.Lock()
	p.stopping = true
	cmd, exit := p.cmd, p.exit
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(sig) // knows when the process has ended
	select {
	case <-exit:
	case <-time.After(grace):
		_ = cmd.Process.Kill()
		<-exit
	}
}

// waitReady looks until the program is ready, has died, or ctx ends.
func (p *process) waitReady(ctx context.Context) error {
	_, exit := p.running()
	for {
		tryCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := p.ready(tryCtx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-exit:
			return &failure{p.name, fmt.Errorf("died: %w", p.dead())}
		case <-ctx.Done():
			return &failure{p.name, fmt.Errorf("not ready: %w", err)}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// failure is an error with the component that it is to be looked for in.
type failure struct {
	component string
	err       error
}

func (f *failure) Error() string { return f.component + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Process identifies a process beyond the reuse of its id.
type Process struct {
	PID int `json:"pid"`
	// Start is when the process started, in clock ticks since boot.
	Start uint64 `json:"start"`
}

func identify(pid int) Process {
	start, _ := procStart(pid)
	return Process{pid, start}
}

// Alive tells whether the process still runs.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	start, err := procStart(p.PID)
	return err == nil && start == p.Start
}

// Signal sends sig, if the process still runs.
func (p Process) Signal(sig syscall.Signal) {
	if p.Alive() {
		_ = syscall.Kill(p.PID, sig)
	}
}

// Resident is the memory that the process holds, in bytes; 0 if it doesn't run.
func (p Process) Resident() int64 {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "statm"))
	if err != nil || !p.Alive() {
		return 0
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// procStart is field 22 of /proc/PID/stat, counted from behind the command's closing bracket
// because a command may hold spaces and brackets. A zombie has ended.
func procStart(pid int) (uint64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	s := string(data)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// tail returns the last n lines of a file.
func tail(name string, n int) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 64<<10 {
		_, _ = f.Seek(-64<<10, io.SeekEnd)
	}
	data, _ := io.ReadAll(f)
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
