// Package testcluster starts test clusters for tests and benchmarks of this module: real control
// planes with simulated nodes, docs/design/test-cluster.md.
package testcluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Build builds what the clusters are made of, where it is not in the cache, and returns the folder
// of the programs. root is the repository.
func Build(root string) (string, error) {
	build := exec.Command("go", "-C", filepath.Join(root, "test/cluster"), "run", "./cmd/build")
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("building the control plane: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Cluster is a running test cluster.
type Cluster struct {
	// Binaries is the folder of the programs, Dir that of the cluster's state.
	Binaries, Dir, Kubeconfig string
	// Config is an administrator's, without a limit on requests.
	Config *rest.Config
}

// Start starts a cluster and returns when it is ready.
func Start(binaries, dir, name, cni string) (*Cluster, error) {
	c := &Cluster{Binaries: binaries, Dir: dir, Kubeconfig: filepath.Join(dir, "kubeconfig")}
	up := exec.Command(filepath.Join(binaries, "vmip-cluster"), "up", "--name", name, "--dir", dir, "--cni", cni)
	if out, err := up.CombinedOutput(); err != nil {
		return c, fmt.Errorf("starting the %s cluster: %w\n%s", cni, err, out)
	}
	var err error
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return c, err
	}
	c.Config.QPS = -1
	return c, nil
}

// Stop ends everything that Start started; also where Start has failed.
func (c *Cluster) Stop() error {
	if out, err := exec.Command(filepath.Join(c.Binaries, "vmip-cluster"), "down", "--dir", c.Dir).CombinedOutput(); err != nil {
		return fmt.Errorf("stopping %s: %w\n%s", c.Dir, err, out)
	}
	return nil
}
