package machine

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/patch"
)

// Patch is what this project may change of a virtual machine: annotations of the template and of
// the machine itself, and the MACs of interfaces. Everything else is the user's.
type Patch struct {
	// SetTemplate and RemoveTemplate are annotations of spec.template.metadata.
	SetTemplate    map[string]string
	RemoveTemplate []string
	// Set and Remove are annotations of the machine's own metadata.
	Set    map[string]string
	Remove []string
	// MACs are to be pinned in the template, by interface name.
	MACs map[string]string
}

// operation is one operation of RFC 6902.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// For renders the JSON patch that makes the change to the machine as it was read; nil where
// nothing would change. The API server refuses it where somebody has written since (patch.IsConflict):
// its first operation puts back the resourceVersion that was read. No other field is touched,
// nor any annotation that is not named.
func (p Patch) For(vm *kubevirtv1.VirtualMachine) ([]byte, error) {
	if vm.Spec.Template == nil {
		return nil, fmt.Errorf("virtualmachine %s has no spec.template: nothing can be written there", RefOf(vm))
	}
	var ops []operation
	meta := vm.Spec.Template.ObjectMeta
	changes := annotationOps("/spec/template/metadata/annotations", meta.Annotations, p.SetTemplate, p.RemoveTemplate)
	// Inside a custom resource metadata may be missing, which the typed object does not show; an
	// empty one can be replaced in either case.
	if len(changes) > 0 && reflect.ValueOf(meta).IsZero() {
		ops = append(ops, operation{"add", "/spec/template/metadata", map[string]any{}})
	}
	ops = append(ops, changes...)
	macs, err := p.macOps(vm)
	if err != nil {
		return nil, err
	}
	ops = append(ops, macs...)
	ops = append(ops, annotationOps("/metadata/annotations", vm.Annotations, p.Set, p.Remove)...)
	return render("virtualmachine "+RefOf(vm).String(), vm, ops)
}

// PatchVMI renders the JSON patch of a running instance's annotations; nil where nothing would
// change. KubeVirt admits changes of annotations there and of nothing else (VMIUpdateAdmitter),
// and a migration's target pod is made from them.
func PatchVMI(vmi *kubevirtv1.VirtualMachineInstance, set map[string]string, remove []string) ([]byte, error) {
	return render("virtualmachineinstance "+vmi.Namespace+"/"+vmi.Name, vmi, annotationOps("/metadata/annotations", vmi.Annotations, set, remove))
}

func render(name string, o metav1.Object, ops []operation) ([]byte, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	if o.GetResourceVersion() == "" {
		return nil, fmt.Errorf("%s has no resourceVersion: only an object that was read from the API server can be patched", name)
	}
	guard := operation{"replace", "/metadata/resourceVersion", o.GetResourceVersion()}
	return json.Marshal(append([]operation{guard}, ops...))
}

// annotationOps changes single keys, in a stable order, and makes the map where there is none. A
// key that is both set and removed is set.
func annotationOps(path string, have, set map[string]string, remove []string) []operation {
	var ops []operation
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if v, ok := have[k]; !ok || v != set[k] {
			ops = append(ops, operation{"add", path + "/" + patch.Escape(k), set[k]})
		}
	}
	if len(ops) > 0 && len(have) == 0 {
		ops = slices.Insert(ops, 0, operation{"add", path, map[string]any{}})
	}
	for _, k := range slices.Compact(slices.Sorted(slices.Values(remove))) {
		_, there := have[k]
		if _, both := set[k]; there && !both {
			ops = append(ops, operation{Op: "remove", Path: path + "/" + patch.Escape(k)})
		}
	}
	return ops
}

// macOps pins MACs. Interfaces are a list without keys, so each change is guarded by the name at
// its index.
func (p Patch) macOps(vm *kubevirtv1.VirtualMachine) ([]operation, error) {
	list := vm.Spec.Template.Spec.Domain.Devices.Interfaces
	var ops []operation
	for _, name := range slices.Sorted(maps.Keys(p.MACs)) {
		hw, err := net.ParseMAC(p.MACs[name])
		if err != nil || len(hw) != 6 {
			return nil, fmt.Errorf("virtualmachine %s interface %s: %q is not a MAC address such as 02:00:00:00:00:20", RefOf(vm), name, p.MACs[name])
		}
		n := slices.IndexFunc(list, func(i kubevirtv1.Interface) bool { return i.Name == name })
		if n < 0 {
			return nil, fmt.Errorf("virtualmachine %s has no interface %q in spec.template.spec.domain.devices.interfaces to pin a MAC on: add it to the spec, or reserve without pinning the MAC", RefOf(vm), name)
		}
		if NormaliseMAC(list[n].MacAddress) == hw.String() {
			continue
		}
		at := fmt.Sprintf("/spec/template/spec/domain/devices/interfaces/%d", n)
		ops = append(ops, operation{"test", at + "/name", name}, operation{"add", at + "/macAddress", hw.String()})
	}
	return ops, nil
}
