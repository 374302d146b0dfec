package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Options say which cluster to run, and where.
type Options struct {
	Name string `json:"name"`
	// Nodes is how many nodes the simulator plays.
	Nodes int `json:"nodes"`
	// CNI is the network plugin that the simulator plays.
	CNI string `json:"cni"`
	// KubeVirt is JSON for spec.configuration of the KubeVirt object; empty means KubeVirt's defaults.
	KubeVirt string `json:"kubeVirt,omitempty"`
	// Dir holds all that the cluster writes, except etcd's data.
	Dir string `json:"dir"`
	// Bin holds the binaries that cmd/build makes.
	Bin string `json:"bin"`
	// Unattended clusters have neither nodes nor a network plugin: the simulator's own tests play them.
	Unattended bool `json:"unattended,omitempty"`
}

// same tells whether a running cluster is the one that is asked for.
func (o Options) same(p Options) bool {
	return o.Nodes == p.Nodes && o.CNI == p.CNI && o.KubeVirt == p.KubeVirt
}

// Settings are the options in words.
func (o Options) Settings() string {
	nodes := "nodes"
	if o.Nodes == 1 {
		nodes = "node"
	}
	s := fmt.Sprintf("%d %s, CNI %s", o.Nodes, nodes, o.CNI)
	if o.KubeVirt != "" {
		s += ", KubeVirt configuration " + o.KubeVirt
	}
	return s
}

// Validate tells what is wrong with options before anything is started.
func Validate(o Options) error {
	if o.Nodes < 1 {
		return fmt.Errorf("%d nodes: at least 1 is needed", o.Nodes)
	}
	if !slices.Contains(CNIs(), o.CNI) {
		return fmt.Errorf("unknown CNI %q: choose one of %s", o.CNI, strings.Join(CNIs(), ", "))
	}
	if o.KubeVirt != "" {
		if err := json.Unmarshal([]byte(o.KubeVirt), &kubevirtv1.KubeVirtConfiguration{}); err != nil {
			return fmt.Errorf("configuration of KubeVirt: %w", err)
		}
	}
	for _, name := range []string{etcd, apiserver, controllerManager, virtController, virtAPI} {
		if _, err := exec.LookPath(filepath.Join(o.Bin, name)); err != nil {
			return fmt.Errorf("%s is missing: build it with `make cluster-build`", filepath.Join(o.Bin, name))
		}
	}
	return nil
}

// Phase is where a cluster stands.
type Phase string

// The phases of a cluster.
const (
	Starting Phase = "starting"
	Ready    Phase = "ready"
	// Failed is a cluster that didn't come up; nothing of it runs any more.
	Failed Phase = "failed"
)

// Component is one program of the cluster, or the simulator inside the supervisor.
type Component struct {
	Name string `json:"name"`
	Process
	Port int    `json:"port,omitempty"`
	Log  string `json:"log"`
	// Ready is how long after the start of the cluster the component was ready, 0 if it isn't yet.
	Ready time.Duration `json:"ready,omitempty"`
	// Died is how the component ended on its own; empty while it runs.
	Died string `json:"died,omitempty"`
}

// State is what the supervisor writes down for the other commands.
type State struct {
	Options
	Phase Phase `json:"phase"`
	// Error and Component say why a cluster failed.
	Error      string `json:"error,omitempty"`
	Component  string `json:"component,omitempty"`
	Supervisor Process
	// Address and Token lead to the supervisor's own API.
	Address    string      `json:"address,omitempty"`
	Token      string      `json:"token,omitempty"`
	Server     string      `json:"server,omitempty"`
	Data       string      `json:"data,omitempty"`
	Started    time.Time   `json:"started"`
	Components []Component `json:"components"`
}

// Kubeconfig is the administrator's kubeconfig.
func (o Options) Kubeconfig() string { return filepath.Join(o.Dir, "kubeconfig") }

func (o Options) path(elem ...string) string {
	return filepath.Join(append([]string{o.Dir}, elem...)...)
}

func (o Options) logFile(component string) string { return o.path("logs", component+".log") }

const stateFile = "state.json"

// Load reads the state of the cluster in dir; fs.ErrNotExist means that there is none.
func Load(dir string) (*State, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	s := &State{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	return s, nil
}

// save writes the state in one step: others read it at any time. It holds the token.
func (s *State) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temp := s.path(stateFile + ".new")
	if err := os.WriteFile(temp, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, s.path(stateFile))
}

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// DefaultName is the cluster that `make cluster-up` starts.
const DefaultName = "vmip"

// Dir is where the cluster of a name lives in a repository: .cluster/NAME. The default one is also
// reached by the short path .cluster/kubeconfig.
func Dir(root, name string) (string, error) {
	if !validName.MatchString(name) || name == "kubeconfig" {
		return "", fmt.Errorf("cluster name %q: use up to 40 lower-case letters, digits and hyphens, and not \"kubeconfig\"", name)
	}
	return filepath.Join(root, ".cluster", name), nil
}

// Shortcut is .cluster/kubeconfig for the default cluster of a repository, and empty for others.
func (o Options) Shortcut() string {
	parent := filepath.Dir(o.Dir)
	if o.Name != DefaultName || filepath.Base(parent) != ".cluster" || filepath.Base(o.Dir) != DefaultName {
		return ""
	}
	return filepath.Join(parent, "kubeconfig")
}

// lock keeps two commands from starting or stopping one cluster at the same time. The folder itself
// is what is locked; unlock lets go of it, whether or not it still exists.
func lock(dir string) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		// The holder before us may have removed the folder: then this is the lock of nothing.
		held, err := f.Stat()
		if err == nil {
			if now, statErr := os.Stat(dir); statErr == nil && os.SameFile(held, now) {
				return func() { f.Close() }, nil
			}
		}
		f.Close()
	}
}

func flock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// remove deletes what a cluster has written, once nothing of it runs.
func (s *State) remove() error {
	var errs []error
	// The path comes from a file: delete only what the supervisor would have made.
	if strings.HasPrefix(filepath.Base(s.Data), dataPrefix) {
		errs = append(errs, os.RemoveAll(s.Data))
	}
	if short := s.Shortcut(); short != "" {
		if err := os.Remove(short); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(s.Dir))
	if parent := filepath.Dir(s.Dir); filepath.Base(parent) == ".cluster" {
		removeIfUnused(parent)
	}
	return errors.Join(errs...)
}

// removeIfUnused removes .cluster when only its own .gitignore is left.
func removeIfUnused(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != ".gitignore" {
		return
	}
	_ = os.Remove(filepath.Join(dir, ".gitignore"))
	_ = os.Remove(dir)
}
