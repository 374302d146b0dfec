package restart

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
)

// pendingIn lists the machines whose reservation is not in effect. It reads the namespace in three
// requests, however many machines there are.
func pendingIn(ctx context.Context, env *cli.Env, c *cli.Clients, t *cli.Targets) ([]machine.Ref, error) {
	namespace := t.Namespace(c)
	vms, err := c.KubeVirt.KubevirtV1().VirtualMachines(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	vmis, err := c.KubeVirt.KubevirtV1().VirtualMachineInstances(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := launchers(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	index := machine.NewIndex(vms.Items, vmis.Items, pods, nil)
	var refs []machine.Ref
	for _, ref := range index.Refs() {
		view, _ := index.View(ref)
		waits, err := pending(view)
		if err != nil {
			return nil, fmt.Errorf("virtualmachine %s: %w", ref, err)
		}
		if waits {
			refs = append(refs, ref)
		}
	}
	if len(refs) == 0 {
		where := " in " + c.Namespace + " namespace"
		if t.AllNamespaces {
			where = ""
		}
		fmt.Fprintf(env.ErrOut, "No virtual machine waits for a restart%s.\n", where)
	}
	return refs, nil
}

// pending says whether the machine runs as it was before its reservation.
func pending(view *machine.View) (bool, error) {
	said, err := ledger.ReservationsOf(view.VM.Annotations)
	if err != nil || said == nil || said.UID != view.VM.UID {
		return false, err
	}
	facts := preflight.Facts{View: view}
	for _, i := range view.Interfaces() {
		if r, ok := said.Interfaces[i.Name]; ok {
			facts.Interfaces = append(facts.Interfaces, preflight.Interface{Interface: i, Annotations: r.Annotations})
		}
	}
	return len(preflight.RestartPending(&facts)) > 0, nil
}

func launchers(ctx context.Context, c *cli.Clients, namespace string) ([]corev1.Pod, error) {
	list, err := c.Core.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: kubevirtv1.AppLabel + "=virt-launcher"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
