// Command build makes the binaries of the test cluster that are missing, into a cache outside the
// repository, and prints the folder that holds them. It uses the standard library only, so that
// `go run ./cmd/build` starts at once.
//
// KUBEBUILDER_ASSETS, as setup-envtest prints it, supplies kube-apiserver, etcd and kubectl where it
// is set. VMIP_CACHE names another cache folder.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	kubernetes = "v1.34.4"
	kubeVirt   = "v1.8.0"
	// unusedFor is after how long the binaries of other versions are deleted.
	unusedFor = 14 * 24 * time.Hour
)

// binary is one program. Its time is that of a first build on two cores, in this order: what the
// programs share is compiled once.
type binary struct {
	name, pkg string
	first     time.Duration
}

var binaries = []binary{
	{"etcd", "go.etcd.io/etcd/server/v3", 30 * time.Second},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 4 * time.Minute},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", 80 * time.Second},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl", 30 * time.Second},
	{"virt-controller", "kubevirt.io/kubevirt/cmd/virt-controller", 90 * time.Second},
	{"virt-api", "kubevirt.io/kubevirt/cmd/virt-api", 20 * time.Second},
	{"virtctl", "kubevirt.io/kubevirt/cmd/virtctl", 20 * time.Second},
}

// own is our program. The go command decides whether it is up to date, so it is always asked.
var own = binary{"vmip-cluster", "./cmd/vmip-cluster", 90 * time.Second}

var ldflags = strings.Join([]string{
	"-s", "-w",
	"-X", "k8s.io/component-base/version.gitVersion=" + kubernetes,
	"-X", "k8s.io/component-base/version.gitMajor=1",
	"-X", "k8s.io/component-base/version.gitMinor=34",
	"-X", "k8s.io/client-go/pkg/version.gitVersion=" + kubernetes,
	"-X", "k8s.io/client-go/pkg/version.gitMajor=1",
	"-X", "k8s.io/client-go/pkg/version.gitMinor=34",
	"-X", "kubevirt.io/client-go/version.gitVersion=" + kubeVirt,
}, " ")

func flags(b binary) []string {
	if b == own {
		return []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w"}
	}
	return []string{"-trimpath", "-buildvcs=false", "-ldflags=" + ldflags}
}

func main() {
	dir, err := build()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func build() (string, error) {
	cache := os.Getenv("VMIP_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("%w: name a cache folder with VMIP_CACHE", err)
		}
		cache = filepath.Join(user, "kubectl-vmip")
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	supplied := assets()
	key, err := hash(supplied)
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "cluster-"+key)
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(root, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	// The folder's time tells prune when it was last used.
	now := time.Now()
	if err := os.Chtimes(root, now, now); err != nil {
		return "", err
	}
	var missing []binary
	for _, b := range binaries {
		if _, err := exec.LookPath(filepath.Join(bin, b.name)); err == nil {
			continue
		}
		if from := supplied[b.name]; from != "" {
			_ = os.Remove(filepath.Join(bin, b.name))
			if err := os.Symlink(from, filepath.Join(bin, b.name)); err != nil {
				return "", err
			}
			continue
		}
		missing = append(missing, b)
	}
	if len(missing) > 0 {
		var total time.Duration
		for _, b := range missing {
			total += b.first
		}
		fmt.Fprintf(os.Stderr, "building %d binaries of the test cluster into %s\n(once; up to %s the first time on two cores)\n",
			len(missing), bin, round(total))
	}
	for i, b := range missing {
		if err := compile(b, bin, fmt.Sprintf("%d of %d", i+1, len(missing)), false); err != nil {
			return "", err
		}
	}
	_, statErr := os.Stat(filepath.Join(bin, own.name))
	if err := compile(own, bin, "our own", statErr == nil); err != nil {
		return "", err
	}
	prune(cache, root)
	return bin, nil
}

// assets returns the paths of what KUBEBUILDER_ASSETS supplies, by name.
func assets() map[string]string {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	found := map[string]string{}
	if dir == "" {
		return found
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			if path, err = filepath.Abs(path); err == nil {
				found[name] = path
			}
		}
	}
	return found
}

// hash names a folder for all that the binaries depend on.
func hash(supplied map[string]string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("%w: run this in test/cluster", err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	version, err := exec.Command("go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	fmt.Fprintf(h, "%s%q", version, flags(binaries[0]))
	for _, b := range binaries {
		fmt.Fprintf(h, "%q%q%q", b.name, b.pkg, supplied[b.name])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

// lock waits for the other builds of the same folder.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		fmt.Fprintln(os.Stderr, "waiting for another build of the test cluster")
		for err = syscall.EINTR; err == syscall.EINTR; {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

// compile builds one program beside its place and moves it there when it is whole. A quiet build says
// something only when it takes long or fails.
func compile(b binary, bin, count string, quiet bool) error {
	temp := filepath.Join(bin, "."+b.name)
	defer os.Remove(temp)
	if quiet {
		// With the old program in place the go command doesn't link again what hasn't changed.
		_ = os.Link(filepath.Join(bin, b.name), temp)
	}
	cmd := exec.Command("go", append(append([]string{"build"}, flags(b)...), "-o", temp, b.pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	stop := progress(b, count, quiet)
	err := cmd.Run()
	stop(err)
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", b.name, err, output.String())
	}
	return os.Rename(temp, filepath.Join(bin, b.name))
}

// progress says what is built and for how long: in one ticking line on a terminal, in two lines elsewhere.
func progress(b binary, count string, quiet bool) (stop func(error)) {
	start := time.Now()
	terminal := isTerminal(os.Stderr)
	head := fmt.Sprintf("  building %s (%s; up to %s the first time)", b.name, count, round(b.first))
	elapsed := func() string { return fmt.Sprintf("%d s", int(time.Since(start).Seconds())) }
	done, ended := make(chan struct{}), make(chan struct{})
	said := false
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		delay := time.Duration(0)
		if quiet {
			delay = 5 * time.Second
		}
		select {
		case <-done:
			return
		case <-time.After(delay):
		}
		said = true
		if !terminal {
			fmt.Fprintln(os.Stderr, head)
			<-done
			return
		}
		for {
			fmt.Fprintf(os.Stderr, "\r%s %s", head, elapsed())
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func(err error) {
		close(done)
		<-ended
		switch {
		case !said:
		case err != nil && terminal:
			fmt.Fprintln(os.Stderr)
		case err != nil:
		case terminal:
			fmt.Fprintf(os.Stderr, "\r\x1b[K  built %s in %s\n", b.name, elapsed())
		default:
			fmt.Fprintf(os.Stderr, "  built %s in %s\n", b.name, elapsed())
		}
	}
}

// isTerminal is a guess from the kind of file: /dev/null passes as well, and doesn't mind.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && runtime.GOOS != "windows"
}

func round(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
	return fmt.Sprintf("%d min", int((d + 30*time.Second).Minutes()))
}

// prune deletes the folders of other versions that have not been used for long: each holds 500 MB.
func prune(cache, keep string) {
	dirs, _ := filepath.Glob(filepath.Join(cache, "cluster-*"))
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil && dir != keep && time.Since(info.ModTime()) > unusedFor {
			_ = os.RemoveAll(dir)
		}
	}
}
