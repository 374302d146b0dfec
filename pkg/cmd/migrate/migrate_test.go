package migrate

import (
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	corefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

func node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{kubevirtv1.NodeSchedulable: "true", corev1.LabelHostname: name}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// running returns a machine on n1 that nothing keeps from moving.
func running() []runtime.Object {
	always := kubevirtv1.RunStrategyAlways
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "db-1", UID: "u-1"}}
	vm.Spec.RunStrategy = &always
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant-a", Name: "db-1", UID: "i-1",
		OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachine", Name: "db-1", UID: "u-1", Controller: new(true)}},
	}}
	vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Running, "n1"
	vmi.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
	return []runtime.Object{vm, vmi}
}

func TestMigrate(t *testing.T) {
	blocked := func(o []runtime.Object) {
		o[1].(*kubevirtv1.VirtualMachineInstance).Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{
			Type: kubevirtv1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: "InterfaceNotLiveMigratable", Message: "cannot migrate VMI which does not use masquerade",
		}}
	}
	pinned := func(o []runtime.Object) {
		o[1].(*kubevirtv1.VirtualMachineInstance).Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n1"}
	}
	tests := []struct {
		name           string
		args           []string
		edit           func([]runtime.Object)
		denied         bool
		code           int
		stdout, stderr string
	}{
		{name: "preflight", args: []string{"--preflight"}, stdout: "virtualmachine.kubevirt.io/db-1 migratable\n"},
		{name: "server dry run", args: []string{"--dry-run=server"}, stdout: "virtualmachine.kubevirt.io/db-1 migrated (server dry run)\n"},
		{name: "client dry run", args: []string{"--dry-run=client", "--to-node=n2"}, stdout: "kubernetes.io/hostname=n2"},
		{name: "C32", args: []string{"--yes"}, edit: blocked, code: 1, stderr: "cannot migrate VMI which does not use masquerade"},
		{name: "C40: hostname selector", args: []string{"--yes"}, edit: pinned, code: 1, stderr: "NoMigrationTarget"},
		{name: "C40: onto itself", args: []string{"--yes", "--to-node=n1"}, code: 1, stderr: "NoMigrationTarget"},
		{name: "no such node", args: []string{"--yes", "--to-node=n9"}, code: 1, stderr: "node n9 does not exist"},
		{name: "no rights", args: []string{"--preflight"}, denied: true, code: 1, stderr: "(kubectl create rolebinding kubectl-vmip-migrate --clusterrole=kubevirt.io:migrate"},
		{name: "no terminal", code: 2, stderr: "standard input is not a terminal"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objects := running()
			if tt.edit != nil {
				tt.edit(objects)
			}
			virt, core := kubevirtfake.NewSimpleClientset(objects...), corefake.NewClientset(node("n1"), node("n2"))
			core.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
				return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: !tt.denied}}, nil
			})
			virt.PrependReactor("create", "virtualmachineinstancemigrations", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if o := a.(clienttesting.CreateActionImpl).CreateOptions; len(o.DryRun) != 1 {
					t.Error("created in earnest")
				}
				return true, a.(clienttesting.CreateAction).GetObject(), nil
			})
			var out, errOut strings.Builder
			env := cli.NewEnv(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
			env.Interactive = func() bool { return false }
			env.Connect = func() (*cli.Clients, error) {
				return &cli.Clients{Core: core, KubeVirt: virt, Namespace: "tenant-a", Ledger: &ledger.Store{ConfigMaps: core.CoreV1().ConfigMaps("vmip-system"), Namespace: "vmip-system"}}, nil
			}
			cmd := New(env)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(append([]string{"db-1"}, tt.args...))
			err := cmd.ExecuteContext(t.Context())
			if err != nil {
				errOut.WriteString(err.Error())
			}
			if cli.ExitCode(err) != tt.code || !strings.Contains(out.String(), tt.stdout) || !strings.Contains(errOut.String(), tt.stderr) {
				t.Errorf("exit status %d\nstdout: %s\nstderr: %s", cli.ExitCode(err), out.String(), errOut.String())
			}
		})
	}
}
