// Package reservation gives virtual machines addresses and takes them back: the protocol of
// docs/design/ledger.md over the ledger, the machine's template and the network profile.
package reservation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Service reserves and releases. Its methods may be called concurrently.
type Service struct {
	Ledger   *ledger.Store
	KubeVirt kubevirt.Interface
	Core     kubernetes.Interface
	Dynamic  dynamic.Interface
	// Profiles detects the cluster's network plugins; it is called once.
	Profiles func(context.Context) (*profile.Cluster, error)
	// FieldManager is written with every change.
	FieldManager string
	// Preview decides and writes nothing. DryRun sends every write for the server to check only.
	Preview, DryRun bool
	// Warn takes notes for people that are no part of the result.
	Warn func(format string, args ...any)

	detect  sync.Once
	cluster *profile.Cluster
	failure error
}

// RefusedError is a request that was refused before anything was written.
type RefusedError struct {
	Object string
	Code   string
	Err    error
}

func (e *RefusedError) Error() string {
	if text := e.Err.Error(); strings.HasPrefix(text, e.Object) {
		return text
	}
	return e.Object + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

func object(ref machine.Ref) string { return "virtualmachine " + ref.String() }

// codeOf is the reason of a refusal; "" of any other error.
func codeOf(err error) string {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

func refuse(ref machine.Ref, code, format string, args ...any) error {
	return &RefusedError{Object: object(ref), Code: code, Err: fmt.Errorf(format, args...)}
}

func (s *Service) profiles(ctx context.Context) (*profile.Cluster, error) {
	s.detect.Do(func() { s.cluster, s.failure = s.Profiles(ctx) })
	return s.cluster, s.failure
}

func (s *Service) warn(format string, args ...any) {
	if s.Warn != nil {
		s.Warn(format, args...)
	}
}

func (s *Service) dryRun() []string {
	if s.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func (s *Service) getVM(ctx context.Context, ref machine.Ref) (*kubevirtv1.VirtualMachine, error) {
	vm, err := s.KubeVirt.KubevirtV1().VirtualMachines(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", object(ref), err)
	}
	return vm, nil
}

// getVMI returns nil where the machine does not run.
func (s *Service) getVMI(ctx context.Context, ref machine.Ref) (*kubevirtv1.VirtualMachineInstance, error) {
	vmi, err := s.KubeVirt.KubevirtV1().VirtualMachineInstances(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("virtualmachineinstance %s: %w", ref, err)
	}
	return vmi, nil
}

// podsWith lists the unfinished pods that show an address as their first one. It is a hint, no
// proof: the second family and secondary networks can't be asked for, and a pod without address
// yet is not found. May is false where the caller may not list pods.
func (s *Service) podsWith(ctx context.Context, r *reads, a netip.Addr) (pods []corev1.Pod, may bool, err error) {
	if r != nil {
		return r.pods[a], r.mayPods, nil
	}
	list, err := s.Core.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("status.podIP", a.String()).String()})
	if apierrors.IsForbidden(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, true, fmt.Errorf("looking for pods with address %s: %w", a, err)
	}
	for _, p := range list.Items {
		if !machine.Finished(&p) {
			pods = append(pods, p)
		}
	}
	return pods, true, nil
}

// carries says whether a pod carries the machine: by UIDs, pod -> VMI -> VM.
func carries(p *corev1.Pod, vmi *kubevirtv1.VirtualMachineInstance, vm types.UID) bool {
	if vmi == nil {
		return false
	}
	owner, own := metav1.GetControllerOf(p), metav1.GetControllerOf(vmi)
	return owner != nil && owner.UID == vmi.UID && own != nil && own.UID == vm
}

// look finds out whether anything of that namespace and name, of whatever UID, still names or
// has the address: "" where nothing does. A failed look is an error and counts as "in use".
func (s *Service) look(ctx context.Context, ref machine.Ref, iface string, a netip.Addr, template bool) (string, error) {
	vm, err := s.getVM(ctx, ref)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	if template && err == nil && vm.Spec.Template != nil {
		named, err := s.names(ctx, vm, iface, a)
		if err != nil {
			return "", err
		}
		if named {
			return fmt.Sprintf("the template of virtualmachine %s names it", ref), nil
		}
	}
	vmi, err := s.getVMI(ctx, ref)
	if err != nil {
		return "", err
	}
	pods, err := s.podsOf(ctx, ref)
	if err != nil {
		return "", err
	}
	for i := range pods {
		if why := s.podUses(&pods[i], vmi, iface, a); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// podsOf lists the unfinished launcher pods of a machine of that namespace and name, whatever its
// UID.
func (s *Service) podsOf(ctx context.Context, ref machine.Ref) (pods []corev1.Pod, err error) {
	list, err := s.Core.CoreV1().Pods(ref.Namespace).List(ctx, metav1.ListOptions{LabelSelector: kubevirtv1.AppLabel + "=" + launcher})
	if err != nil {
		return nil, fmt.Errorf("pods of %s: %w", object(ref), err)
	}
	for _, p := range list.Items {
		if p.Annotations[kubevirtv1.DomainAnnotation] == ref.Name && !machine.Finished(&p) {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// launcher is the value of KubeVirt's app label on the pods that carry machines.
const launcher = "virt-launcher"

// podUses says why an unfinished pod may use the address.
func (s *Service) podUses(p *corev1.Pod, vmi *kubevirtv1.VirtualMachineInstance, iface string, a netip.Addr) string {
	have, known := podAddresses(p, vmi, iface)
	switch {
	case slices.Contains(have, a):
		return fmt.Sprintf("pod %s/%s has it", p.Namespace, p.Name)
	case !known || len(have) == 0:
		return fmt.Sprintf("pod %s/%s shows no address yet", p.Namespace, p.Name)
	}
	return ""
}

// podAddresses reads the addresses of one interface from the pod; the interface is looked up in
// the running instance, and where there is none any more the pod's own list is all there is.
func podAddresses(p *corev1.Pod, vmi *kubevirtv1.VirtualMachineInstance, iface string) ([]netip.Addr, bool) {
	if vmi != nil {
		for _, i := range machine.InstanceInterfaces(vmi) {
			if i.Name == iface {
				return machine.PodAddresses(p, i)
			}
		}
	}
	return machine.PodAddresses(p, machine.Interface{Name: iface, Pod: true})
}

// names says whether the VM's template asks for the address on the interface.
func (s *Service) names(ctx context.Context, vm *kubevirtv1.VirtualMachine, iface string, a netip.Addr) (bool, error) {
	cluster, err := s.profiles(ctx)
	if err != nil {
		return false, err
	}
	for _, i := range machine.Interfaces(vm.Namespace, &vm.Spec.Template.Spec) {
		if i.Name != iface {
			continue
		}
		p, err := cluster.For(ctx, i)
		if err != nil {
			return false, nil // no profile reads the template: nothing in it can ask for an address
		}
		claims, err := p.Claims(vm.Spec.Template.ObjectMeta.Annotations, i)
		if err != nil || slices.Contains(claims, a) {
			return true, nil // what can't be parsed counts as "in use"
		}
	}
	return false, nil
}

// pick finds the interface that a request is for: the only one, or the one on the pod network.
func pick(ref machine.Ref, all []machine.Interface, name string) (machine.Interface, error) {
	var names []string
	for _, i := range all {
		if i.Name == name {
			return i, nil
		}
		names = append(names, i.Name)
	}
	if name != "" {
		return machine.Interface{}, refuse(ref, "UnknownInterface", "no interface %q: its interfaces are %s", name, strings.Join(names, ", "))
	}
	for _, i := range all {
		if i.Pod || i.MultusDefault || len(all) == 1 {
			return i, nil
		}
	}
	if len(all) == 0 {
		return machine.Interface{}, refuse(ref, "NoInterface", "it has no network interface to give an address to")
	}
	return machine.Interface{}, refuse(ref, "InterfaceNeeded", "it has several interfaces and none on the pod network: choose one of %s with --interface", strings.Join(names, ", "))
}

var errLost = errors.New("another command is reserving for the same interface")
