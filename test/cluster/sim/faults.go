package sim

import (
	"maps"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Prefix is what the names of all annotations that the simulator knows begin with.
const Prefix = "sim.vmip.io/"

// Annotations that make something go wrong, or slowly. The package documentation says what each does.
const (
	FaultWrongAddress         = Prefix + "wrong-address"
	FaultWrongTargetAddress   = Prefix + "wrong-target-address"
	FaultSandboxFailure       = Prefix + "sandbox-failure"
	FaultTargetSandboxFailure = Prefix + "target-sandbox-failure"
	FaultStuckTermination     = Prefix + "stuck-termination"
	FaultSilent               = Prefix + "silent"
	FaultMigrationFail        = Prefix + "migration-fail"
	FaultMigrationHang        = Prefix + "migration-hang"
	FaultSlowStart            = Prefix + "slow-start"
	FaultSlowStop             = Prefix + "slow-stop"
	FaultSlowMigration        = Prefix + "slow-migration"
	FaultIgnoresShutdown      = Prefix + "guest-ignores-shutdown"
	FaultSourceLingers        = Prefix + "source-lingers"
)

// Annotations that say what guest runs in the VM.
const (
	GuestAgent    = Prefix + "guest-agent"
	GuestAddress  = Prefix + "guest-address"
	GuestPoweroff = Prefix + "guest-poweroff"
)

// sandboxAnnotation is where a kubelet writes down what the container runtime of a real node
// would remember.
const sandboxAnnotation = Prefix + "sandbox"

// faults are the annotations that apply to something, most specific first.
type faults []map[string]string

// podFaults are those on the pod, on its VMI, on the VirtualMachine and on the node.
func (c *cluster) podFaults(pod *corev1.Pod) faults {
	f := faults{pod.Annotations}
	if vmi := c.instance(pod); vmi != nil {
		return append(f, c.vmiFaults(vmi, pod.Spec.NodeName)...)
	}
	return append(f, c.nodeFaults(pod.Spec.NodeName)...)
}

// vmiFaults are those on the VMI, on the VirtualMachine and on a node.
func (c *cluster) vmiFaults(vmi *kubevirtv1.VirtualMachineInstance, node string) faults {
	f := faults{vmi.Annotations}
	if owner := metav1.GetControllerOf(vmi); owner != nil && owner.Kind == "VirtualMachine" {
		if vm := get[*kubevirtv1.VirtualMachine](c.vms, vmi.Namespace+"/"+owner.Name); vm != nil {
			f = append(f, vm.Annotations)
		}
	}
	return append(f, c.nodeFaults(node)...)
}

func (c *cluster) nodeFaults(name string) faults {
	if node := c.node(name); node != nil {
		return faults{node.Annotations}
	}
	return nil
}

// silent tells whether a node has stopped to talk.
func (c *cluster) silent(node string) bool { return c.nodeFaults(node).on(FaultSilent) }

// get is the first value found. "false" switches off what a less specific object switches on.
func (f faults) get(name string) (string, bool) {
	for _, annotations := range f {
		if value, ok := annotations[name]; ok {
			return value, value != "false"
		}
	}
	return "", false
}

func (f faults) on(name string) bool {
	_, ok := f.get(name)
	return ok
}

// duration is zero where nothing (or nothing readable) is set.
func (f faults) duration(name string) time.Duration {
	value, _ := f.get(name)
	d, _ := time.ParseDuration(value)
	return d
}

// at tells whether a fault names the phase of a migration.
func (f faults) at(name string, phase kubevirtv1.VirtualMachineInstanceMigrationPhase) bool {
	value, ok := f.get(name)
	return ok && strings.EqualFold(value, string(phase))
}

// guestAddresses is what a guest is told to report, by interface of the VM: "192.0.2.7,fd00::7" is
// for the primary one, "lan=198.51.100.7" for lan. An interface without any has an empty list.
func (f faults) guestAddresses(primary string) map[string][]string {
	value, ok := f.get(GuestAddress)
	if !ok {
		return nil
	}
	addresses, iface := map[string][]string{}, primary
	for field := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		if name, rest, ok := strings.Cut(field, "="); ok {
			iface, field = name, rest
		}
		addresses[iface] = append(addresses[iface], nil...)
		if _, err := netip.ParseAddr(field); err == nil {
			addresses[iface] = append(addresses[iface], field)
		}
	}
	return addresses
}

// sameFaults tells whether two versions of an object carry the same of the simulator's annotations.
func sameFaults(a, b metav1.Object) bool {
	own := func(o metav1.Object) map[string]string {
		m := maps.Clone(o.GetAnnotations())
		maps.DeleteFunc(m, func(name, _ string) bool { return !strings.HasPrefix(name, Prefix) })
		return m
	}
	return maps.Equal(own(a), own(b))
}
