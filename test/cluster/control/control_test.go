package control

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDir(t *testing.T) {
	for name, want := range map[string]string{
		"vmip":                  "/repo/.cluster/vmip",
		"a":                     "/repo/.cluster/a",
		"kubeconfig":            "", // is the default cluster's short path
		"":                      "",
		"..":                    "",
		"a/b":                   "",
		"Upper":                 "",
		"ends-":                 "",
		strings.Repeat("a", 41): "",
	} {
		got, err := Dir("/repo", name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", name, got, err, want)
		}
	}
}

func TestShortcut(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Name: "vmip", Dir: "/repo/.cluster/vmip"}, "/repo/.cluster/kubeconfig"},
		{Options{Name: "other", Dir: "/repo/.cluster/other"}, ""},
		{Options{Name: "vmip", Dir: "/tmp/test"}, ""},
	} {
		if got := tc.o.Shortcut(); got != tc.want {
			t.Errorf("%+v: got %q, want %q", tc.o, got, tc.want)
		}
	}
}

func TestValidate(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{etcd, apiserver, controllerManager, virtController, virtAPI} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	good := Options{Name: "a", Nodes: 1, CNI: "none", Bin: bin}
	for _, tc := range []struct {
		change func(*Options)
		want   string
	}{
		{func(*Options) {}, ""},
		{func(o *Options) { o.KubeVirt = `{"migrations":{"parallelMigrationsPerCluster":20}}` }, ""},
		{func(o *Options) { o.Nodes = 0 }, "0 nodes: at least 1 is needed"},
		{func(o *Options) { o.CNI = "flannel" }, `unknown CNI "flannel": choose one of `},
		{func(o *Options) { o.KubeVirt = `{"migrations":1}` }, "configuration of KubeVirt: json: cannot unmarshal number"},
		{func(o *Options) { o.Bin = "/nowhere" }, "/nowhere/etcd is missing: build it with `make cluster-build`"},
	} {
		o := good
		tc.change(&o)
		err := Validate(o)
		if (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%+v: got %v, want %q", o, err, tc.want)
		}
	}
}

// A name may hold what separates the fields of /proc/PID/stat.
func TestProcess(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(t.TempDir(), "a) b (c")
	if err := os.WriteFile(odd, data, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(odd, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := identify(cmd.Process.Pid)
	if !p.Alive() || p.Start == 0 || p.Resident() == 0 {
		t.Errorf("running, but got %+v with %d bytes", p, p.Resident())
	}
	if (Process{p.PID, p.Start + 1}).Alive() {
		t.Error("a process that started at another time passes for the same")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); p.Alive(); { // also while it is a zombie
		if time.Now().After(deadline) {
			t.Fatal("killed, but alive")
		}
		time.Sleep(time.Millisecond)
	}
	_ = cmd.Wait()
	if p.Alive() || p.Resident() != 0 {
		t.Errorf("gone, but got %+v", p)
	}
}

// Whoever waits for a folder that the holder removes must lock the new one.
func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan func())
	go func() {
		unlock, err := lock(dir)
		if err != nil {
			t.Error(err)
		}
		second <- unlock
	}()
	select {
	case <-second:
		t.Fatal("locked twice")
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
	unlock = <-second
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the second holder has no folder: %v", err)
	}
	unlock()
}

func TestRemove(t *testing.T) {
	root := t.TempDir()
	dir, err := Dir(root, DefaultName)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Name: DefaultName, Dir: dir}
	if err := prepare(o); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(root, "data")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	// Data is read from a file: a folder of another name isn't the supervisor's.
	if err := (&State{Options: o, Data: foreign}).remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("removed what isn't its own: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(root, ".cluster")); !os.IsNotExist(err) {
		t.Errorf(".cluster is left: %v", err)
	}
}

func TestFreePorts(t *testing.T) {
	ports, err := freePorts(portCount)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if seen[p] || p < 20000 || p >= 32768 {
			t.Errorf("port %d in %v", p, ports)
		}
		seen[p] = true
	}
}
