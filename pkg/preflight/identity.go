package preflight

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Codes of this file.
const (
	CodeNotPersistent   = "NotPersistent"
	CodeOwnedByPool     = "OwnedByPool"
	CodeManagedByGitOps = "ManagedByGitOps"
)

// object names the machine in verdicts.
func (f *Facts) object() string { return "virtualmachine " + f.View.Ref().String() }

// command is a command line of ours about the machine.
func (f *Facts) command(verb string, flags ...string) string {
	ref := f.View.Ref()
	return strings.Join(append([]string{"kubectl vmip", verb, ref.Name, "-n", ref.Namespace}, flags...), " ")
}

// template is the machine's, an empty one where there is none.
func (f *Facts) template() *kubevirtv1.VirtualMachineInstanceTemplateSpec {
	if f.View.VM == nil || f.View.VM.Spec.Template == nil {
		return &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	}
	return f.View.VM.Spec.Template
}

// machine is the VM, an empty one where there is none.
func (f *Facts) machine() *kubevirtv1.VirtualMachine {
	if f.View.VM == nil {
		return &kubevirtv1.VirtualMachine{}
	}
	return f.View.VM
}

// verdict makes a verdict about the machine.
func (f *Facts) verdict(s Severity, code, remedy, format string, args ...any) Verdict {
	return Verdict{Code: code, Severity: s, Object: f.object(), Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// about makes a verdict about one interface.
func (f *Facts) about(i Interface, s Severity, code, remedy, format string, args ...any) Verdict {
	v := f.verdict(s, code, remedy, format, args...)
	v.Interface = i.Name
	return v
}

// NotPersistent refuses a VMI without a VM: it ends with its pod and never comes back under the
// same identity.
func NotPersistent(f *Facts) []Verdict {
	if f.View.VM != nil || f.View.VMI == nil {
		return nil
	}
	owner := "nothing"
	if o := metav1.GetControllerOf(f.View.VMI); o != nil {
		owner = o.Kind + "/" + o.Name
	}
	v := f.verdict(Refuse, CodeNotPersistent, "make a virtualmachine of it", "the virtualmachineinstance is owned by %s and not by a virtualmachine: it is not persistent", owner)
	v.Object = "virtualmachineinstance " + f.View.Ref().String()
	return []Verdict{v}
}

// PoolOwned refuses a replica of a VirtualMachinePool: the pool rolls its own template out to it.
func PoolOwned(f *Facts) []Verdict {
	o := metav1.GetControllerOf(f.machine())
	if o == nil || o.Kind != "VirtualMachinePool" {
		return nil
	}
	return []Verdict{f.verdict(Refuse, CodeOwnedByPool, "reserve for a virtualmachine of its own, outside the pool",
		"owned by VirtualMachinePool/%s, which would revert a change of the template", o.Name)}
}

// gitOpsKeys mark objects that are put back to what a repository says. app.kubernetes.io/instance is
// not among them: everybody uses it.
var gitOpsKeys = []struct{ prefix, tool string }{
	{"argocd.argoproj.io/instance", "Argo CD"},
	{"argocd.argoproj.io/tracking-id", "Argo CD"},
	{"kustomize.toolkit.fluxcd.io/", "Flux"},
	{"helm.toolkit.fluxcd.io/", "Flux"},
}

// ManagedByGitOps warns that what is written to the machine may be taken back.
func ManagedByGitOps(f *Facts) []Verdict {
	for _, m := range []map[string]string{f.machine().Labels, f.machine().Annotations} {
		for _, k := range sortedKeys(m) {
			i := slices.IndexFunc(gitOpsKeys, func(g struct{ prefix, tool string }) bool { return strings.HasPrefix(k, g.prefix) })
			if i >= 0 {
				return []Verdict{f.verdict(Warn, CodeManagedByGitOps, "put the annotations into the repository too: "+f.command("reserve", "-o", "yaml"),
					"%s manages the machine (%s) and may take the annotations off its template again", gitOpsKeys[i].tool, k)}
			}
		}
	}
	return nil
}
