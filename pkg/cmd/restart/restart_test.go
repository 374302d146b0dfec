package restart

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	corefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

const key = "ovn.kubernetes.io/ip_address"

// machineOf returns a machine that is reserved 198.51.100.20 and whose template asks for it; running is
// what the annotation of its instance says, "-" for no instance at all.
func machineOf(t *testing.T, name, uid, reservedUID, running string) []runtime.Object {
	t.Helper()
	said, err := json.Marshal(ledger.Reservations{Ledger: "vmip-system", UID: types.UID(reservedUID), Interfaces: map[string]ledger.Reservation{
		"default": {Addresses: []string{"198.51.100.20"}, Annotations: map[string]string{key: "198.51.100.20"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	always := kubevirtv1.RunStrategyAlways
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: name, UID: types.UID(uid)}}
	if reservedUID != "" {
		vm.Annotations = map[string]string{ledger.AnnotationReservations: string(said)}
	}
	vm.Spec.RunStrategy = &always
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: "198.51.100.20"}}}
	vm.Spec.Template.Spec.Networks = []kubevirtv1.Network{{Name: "default", NetworkSource: kubevirtv1.NetworkSource{Pod: &kubevirtv1.PodNetwork{}}}}
	vm.Spec.Template.Spec.Domain.Devices.Interfaces = []kubevirtv1.Interface{{Name: "default", InterfaceBindingMethod: kubevirtv1.InterfaceBindingMethod{Bridge: &kubevirtv1.InterfaceBridge{}}}}
	if running == "-" {
		return []runtime.Object{vm}
	}
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant-a", Name: name, UID: types.UID("i-" + uid), Annotations: map[string]string{},
		OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachine", Name: name, UID: vm.UID, Controller: new(true)}},
	}, Spec: vm.Spec.Template.Spec}
	if running != "" {
		vmi.Annotations[key] = running
	}
	vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Running, "n1"
	return []runtime.Object{vm, vmi}
}

func run(t *testing.T, virt *kubevirtfake.Clientset, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut strings.Builder
	env := cli.NewEnv(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	env.Interactive = func() bool { return false }
	core := corefake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	env.Connect = func() (*cli.Clients, error) {
		return &cli.Clients{Core: core, KubeVirt: virt, Namespace: "tenant-a", Ledger: &ledger.Store{ConfigMaps: core.CoreV1().ConfigMaps("vmip-system"), Namespace: "vmip-system"}}, nil
	}
	cmd := New(env)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	if err != nil && err.Error() != "" {
		errOut.WriteString(err.Error())
	}
	return out.String(), errOut.String(), cli.ExitCode(err)
}

// TestPending: exactly the machines that run otherwise than reserved are restarted.
func TestPending(t *testing.T) {
	var objects []runtime.Object
	for _, m := range []struct{ name, uid, reserved, running string }{
		{"in-effect", "u-1", "u-1", "198.51.100.20"},
		{"without", "u-2", "u-2", ""},
		{"with-another", "u-3", "u-3", "198.51.100.99"},
		{"stopped", "u-4", "u-4", "-"},
		{"clone", "u-5", "u-1", ""},
		{"unreserved", "u-6", "", ""},
	} {
		objects = append(objects, machineOf(t, m.name, m.uid, m.reserved, m.running)...)
	}
	virt := kubevirtfake.NewSimpleClientset(objects...)
	stdout, stderr, code := run(t, virt, "--pending", "--yes", "--dry-run=server")
	if code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	for _, want := range []string{"/with-another restarted", "/without restarted"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in %s", want, stdout)
		}
	}
	if n := strings.Count(stdout, "\n"); n != 2 {
		t.Errorf("%d machines:\n%s", n, stdout)
	}
}

func TestNothingPending(t *testing.T) {
	stdout, stderr, code := run(t, kubevirtfake.NewSimpleClientset(machineOf(t, "db-1", "u-1", "u-1", "198.51.100.20")...), "--pending", "--yes")
	if code != 0 || stdout != "" || stderr != "No virtual machine waits for a restart in tenant-a namespace.\n" {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

func TestArguments(t *testing.T) {
	tests := []struct {
		args []string
		says string
	}{
		{nil, "no virtual machine named"},
		{[]string{"db-1", "--pending"}, "give only one of"},
		{[]string{"--pending", "--all"}, "give only one of"},
		{[]string{"vmi/db-1"}, "is a running instance"},
		{[]string{"db-1", "--max-parallel=0"}, "at least one virtual machine at a time"},
		{[]string{"db-1", "--timeout=-1s"}, "give a positive duration"},
		{[]string{"db-1"}, "standard input is not a terminal"},
	}
	for _, tt := range tests {
		virt := kubevirtfake.NewSimpleClientset(machineOf(t, "db-1", "u-1", "", "")...)
		virt.PrependReactor("put", "virtualmachines", func(clienttesting.Action) (bool, runtime.Object, error) {
			t.Error("restarted")
			return true, nil, nil
		})
		_, stderr, code := run(t, virt, tt.args...)
		if code != cli.ExitUsage || !strings.Contains(stderr, tt.says) {
			t.Errorf("%v: exit status %d, %s", tt.args, code, stderr)
		}
	}
}

// TestRunStrategies: what KubeVirt answers with 409 is refused with the way out (C31).
func TestRunStrategies(t *testing.T) {
	tests := []struct {
		strategy kubevirtv1.VirtualMachineRunStrategy
		running  string
		says     string
	}{
		{kubevirtv1.RunStrategyHalted, "-", "NotRunning   the machine is not running\n               (start it, which gives it its reserved address: virtctl start db-1 -n tenant-a)"},
		{kubevirtv1.RunStrategyManual, "-", "virtctl start db-1"},
		{kubevirtv1.RunStrategyOnce, "", "RestartNotSupported"},
	}
	for _, tt := range tests {
		objects := machineOf(t, "db-1", "u-1", "", tt.running)
		objects[0].(*kubevirtv1.VirtualMachine).Spec.RunStrategy = &tt.strategy
		_, stderr, code := run(t, kubevirtfake.NewSimpleClientset(objects...), "db-1", "--yes")
		if code != 1 || !strings.Contains(stderr, tt.says) || !strings.HasSuffix(stderr, "nothing was changed\n") {
			t.Errorf("%s: exit status %d, %s", tt.strategy, code, stderr)
		}
	}
}
