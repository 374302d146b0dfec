// Command vmip-cluster starts and stops the test cluster: a real control plane with KubeVirt's own
// controllers, and nodes that are simulated. See docs/design/test-cluster.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/control"
)

const usage = `Usage: vmip-cluster COMMAND [flags]

Commands:
  up                           start a cluster and wait until it is ready
  down                         stop it and remove what it has written
  status                       say what runs, and whether it is healthy
  kubeconfig --user NAME       print a kubeconfig for a user who has no rights yet
  restart-component COMPONENT  restart one component on its old port

Flags of all commands (and the variables that set their defaults):
  --name NAME   the cluster (CLUSTER_NAME, "vmip")
  --dir DIR     its folder, instead of .cluster/NAME in the repository (CLUSTER_DIR)

Run 'vmip-cluster COMMAND -h' for the others.
`

func main() {
	// A second signal ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Fprint(stderr, usage)
		return flag.ErrHelp
	}
	command, args := args[0], args[1:]
	flags := flag.NewFlagSet("vmip-cluster "+command, flag.ContinueOnError)
	flags.SetOutput(stderr)
	var o control.Options
	flags.StringVar(&o.Name, "name", env("CLUSTER_NAME", control.DefaultName), "name of the cluster (CLUSTER_NAME)")
	flags.StringVar(&o.Dir, "dir", os.Getenv("CLUSTER_DIR"), "folder of the cluster, instead of .cluster/NAME in the repository (CLUSTER_DIR)")
	// parse reads the flags, which may also follow the arguments.
	parse := func(arguments int) ([]string, error) {
		var rest []string
		for {
			if err := flags.Parse(args); err != nil {
				return nil, err
			}
			if flags.NArg() == 0 {
				break
			}
			rest, args = append(rest, flags.Arg(0)), flags.Args()[1:]
		}
		if len(rest) != arguments {
			return nil, fmt.Errorf("%s takes %d arguments, got %q", command, arguments, rest)
		}
		if o.Dir != "" {
			dir, err := filepath.Abs(o.Dir)
			o.Dir = dir
			return rest, err
		}
		root, err := repository()
		if err != nil {
			return nil, err
		}
		o.Dir, err = control.Dir(root, o.Name)
		return rest, err
	}
	switch command {
	case "up":
		return up(ctx, flags, &o, parse, stdout, stderr)
	case "down":
		if _, err := parse(0); err != nil {
			return err
		}
		return control.Down(o.Dir, stderr)
	case "status":
		if _, err := parse(0); err != nil {
			return err
		}
		return status(ctx, o, stdout)
	case "kubeconfig":
		user := flags.String("user", "", "name of the user")
		var groups list
		flags.Var(&groups, "group", "a group of the user; may be given several times")
		if _, err := parse(0); err != nil {
			return err
		}
		if *user == "" {
			return errors.New("kubeconfig needs --user NAME")
		}
		state, err := load(o)
		if err != nil {
			return err
		}
		data, err := control.UserKubeconfig(state, *user, groups)
		if err != nil {
			return err
		}
		_, err = stdout.Write(data)
		return err
	case "restart-component":
		kill := flags.Bool("kill", false, "end it with SIGKILL, as a crash would")
		down := flags.Duration("down", 0, "how long it is left down")
		rest, err := parse(1)
		if err != nil {
			return err
		}
		state, err := load(o)
		if err != nil {
			return err
		}
		if err := control.Restart(ctx, state, rest[0], *kill, *down); err != nil {
			return fmt.Errorf("restart %s: %w", rest[0], err)
		}
		fmt.Fprintf(stderr, "%s is restarted\n", rest[0])
		return nil
	case "run": // the supervisor; `up` calls it
		if len(args) != 1 {
			return errors.New("run is for vmip-cluster itself: use up")
		}
		if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
			return err
		}
		return control.Supervise(ctx, o)
	}
	return fmt.Errorf("unknown command %q\n\n%s", command, usage)
}

func up(ctx context.Context, flags *flag.FlagSet, o *control.Options, parse func(int) ([]string, error), stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	nodes, err := strconv.Atoi(env("CLUSTER_NODES", "3"))
	if err != nil {
		return fmt.Errorf("CLUSTER_NODES: %w", err)
	}
	flags.IntVar(&o.Nodes, "nodes", nodes, "how many nodes to simulate (CLUSTER_NODES)")
	flags.StringVar(&o.CNI, "cni", env("CLUSTER_CNI", "kube-ovn"), "the network plugin to simulate, one of "+strings.Join(control.CNIs(), ", ")+" (CLUSTER_CNI)")
	flags.StringVar(&o.KubeVirt, "kubevirt", os.Getenv("CLUSTER_KUBEVIRT"),
		`spec.configuration of the KubeVirt object as JSON, for example '{"migrations":{"parallelOutboundMigrationsPerNode":10}}' (CLUSTER_KUBEVIRT)`)
	flags.StringVar(&o.Bin, "bin", filepath.Dir(self), "folder of the binaries")
	timeout := flags.Duration("timeout", 3*time.Minute, "how long to wait until it is ready")
	if _, err := parse(0); err != nil {
		return err
	}
	if err := control.Validate(*o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not ready within %s", *timeout))
	defer cancel()
	if err := control.Up(ctx, *o, self, stderr); err != nil {
		return err
	}
	kubeconfig := o.Kubeconfig()
	if short := o.Shortcut(); short != "" {
		kubeconfig = short
	}
	fmt.Fprintf(stdout, "export KUBECONFIG=%s\n", kubeconfig)
	return nil
}

func status(ctx context.Context, o control.Options, out io.Writer) error {
	state, err := load(o)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "cluster %s: %s, %s, since %s\n", state.Name, state.Phase, state.Settings(), state.Started.Format(time.DateTime))
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "COMPONENT\tPID\tPORT\tMEMORY\tSTATUS")
	var total int64
	for _, c := range state.Components {
		memory := c.Resident()
		total += memory
		s, p := "running", strconv.Itoa(c.Port)
		if c.Died != "" {
			s = "died: " + c.Died
		} else if !c.Alive() {
			s = "not running"
		}
		if c.Port == 0 {
			p = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d MiB\t%s\n", c.Name, c.PID, p, memory>>20, s)
	}
	fmt.Fprintf(w, "total\t\t\t%d MiB\t\n", total>>20)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, "kubeconfig:", state.Kubeconfig())
	if err := state.Check(ctx); err != nil {
		return fmt.Errorf("cluster %s isn't healthy: %w", state.Name, err)
	}
	return nil
}

func load(o control.Options) (*control.State, error) {
	state, err := control.Load(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no cluster %s is running: start one with `make cluster-up`", o.Name)
	}
	return state, err
}

// repository is the folder above this one that holds the test cluster's sources.
func repository() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "cluster", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s isn't inside the repository: name the cluster's folder with --dir", wd)
		}
	}
}

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }
