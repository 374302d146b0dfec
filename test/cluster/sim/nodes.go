package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// How often a node shows that it lives: the kubelet's defaults and virt-handler's.
const (
	leaseDuration    = 40 * time.Second
	leasePeriod      = 10 * time.Second
	statusPeriod     = 5 * time.Minute
	heartbeatPeriod  = time.Minute
	heartbeatJitter  = 1.2
	leaseNamespace   = corev1.NamespaceNodeLease
	cpuModel         = "Skylake-Client-IBRS"
	canonicalMachine = "pc-q35-rhel9.6.0"
)

// nodes keeps the Node objects alive, as kubelet and virt-handler do, and plays the node lifecycle
// controller for silent ones, without its 50 s of patience.
type nodes struct {
	*cluster
	queue *queue

	mu  sync.Mutex
	due map[string]*due
}

// due is when a node's next signs of life are.
type due struct {
	lease, status, heartbeat time.Time
}

func newNodes(c *cluster) *nodes {
	n := &nodes{cluster: c, due: map[string]*due{}}
	for _, name := range c.nodeNames {
		n.due[name] = &due{}
	}
	n.queue = newQueue(c.log.With("component", "node"), 4, n.step)
	return n
}

// nodeAddress is the InternalIP of the i-th node: 192.0.2.11 is n1. From the 245th on they come
// from 198.18.0.0/15.
func nodeAddress(i int) netip.Addr {
	if i <= 244 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)})
	}
	return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
}

func nodeLabels(name string) map[string]string {
	return map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",

		kubevirtv1.NodeSchedulable: "true", kubevirtv1.CPUManager: "false", kubevirtv1.DeprecatedCPUManager: "false",
		kubevirtv1.SupportedMachineTypeLabel + "q35":            "true",
		kubevirtv1.SupportedMachineTypeLabel + "pc-q35":         "true",
		kubevirtv1.SupportedMachineTypeLabel + canonicalMachine: "true",
		kubevirtv1.CPUModelLabel + cpuModel:                     "true",
		kubevirtv1.CPUModelLabel + "Penryn":                     "true",
		kubevirtv1.SupportedHostModelMigrationCPU + cpuModel:    "true",
		kubevirtv1.SupportedHostModelMigrationCPU + "Penryn":    "true",
		kubevirtv1.HostModelCPULabel + cpuModel:                 "true",
		kubevirtv1.HostModelRequiredFeaturesLabel + "ssse3":     "true",
		kubevirtv1.CPUFeatureLabel + "ssse3":                    "true",
		kubevirtv1.CPUFeatureLabel + "vmx":                      "true",
		kubevirtv1.CPUModelVendorLabel + "Intel":                "true",
	}
}

// nodeResources are more than a real node has of most things: a benchmark may want many VMs on few nodes.
func nodeResources() corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, q := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: "4k", corev1.ResourceMemory: "64Ti", corev1.ResourceEphemeralStorage: "64Ti", corev1.ResourcePods: "10k",
		"devices.kubevirt.io/kvm": "10k", "devices.kubevirt.io/tun": "10k", "devices.kubevirt.io/vhost-net": "10k",
	} {
		list[name] = resource.MustParse(q)
	}
	return list
}

// register creates the nodes that aren't there, and completes those that are.
func (n *nodes) register(ctx context.Context) error {
	for i, name := range n.nodeNames {
		if err := n.registerNode(ctx, name, nodeAddress(i+1)); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return nil
}

func (n *nodes) registerNode(ctx context.Context, name string, address netip.Addr) error {
	client := n.core.CoreV1().Nodes()
	_, err := client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: nodeLabels(name)}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		before := node.DeepCopy()
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		maps.Copy(node.Labels, nodeLabels(name))
		// TaintNodesByCondition: a node is created with it and its first Ready status takes it away.
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
		if !equality.Semantic.DeepEqual(before, node) {
			if node, err = client.Update(ctx, node, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		node.Status.Capacity, node.Status.Allocatable = nodeResources(), nodeResources()
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: address.String()}, {Type: corev1.NodeHostName, Address: name},
		}
		node.Status.NodeInfo = corev1.NodeSystemInfo{
			Architecture: "amd64", OperatingSystem: "linux", OSImage: "Simulated Linux", KernelVersion: "6.12.0",
			ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.34.4",
		}
		if _, silent := (faults{node.Annotations}).get(FaultSilent); !silent {
			setReady(node)
		}
		_, err = client.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

func (n *nodes) step(ctx context.Context, name string) (time.Duration, error) {
	node := n.node(name)
	due := n.due[name]
	if node == nil || due == nil {
		return 0, nil
	}
	if n.silent(name) {
		return 0, n.lose(ctx, node)
	}
	if err := n.recover(ctx, node); err != nil {
		return 0, err
	}
	now := time.Now()
	if !now.Before(due.lease) {
		if err := n.renewLease(ctx, node); err != nil {
			return 0, err
		}
		due.lease = now.Add(leasePeriod)
	}
	if !now.Before(due.status) {
		if err := n.updateStatus(ctx, name, setReady); err != nil {
			return 0, err
		}
		due.status = now.Add(statusPeriod)
	}
	if !now.Before(due.heartbeat) {
		if err := n.heartbeat(ctx, name); err != nil {
			return 0, err
		}
		due.heartbeat = now.Add(heartbeatPeriod + time.Duration(rand.Float64()*heartbeatJitter*float64(heartbeatPeriod)))
	}
	return max(time.Until(due.lease), time.Millisecond), nil
}

// heartbeat is virt-handler's.
func (n *nodes) heartbeat(ctx context.Context, name string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": map[string]string{
			kubevirtv1.NodeSchedulable: "true", kubevirtv1.CPUManager: "false", kubevirtv1.DeprecatedCPUManager: "false",
		},
		"annotations": map[string]any{kubevirtv1.VirtHandlerHeartbeat: metav1.Now()},
	}})
	if err != nil {
		return err
	}
	_, err = n.virtHandlers[name].core.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (n *nodes) renewLease(ctx context.Context, node *corev1.Node) error {
	client := n.core.CoordinationV1().Leases(leaseNamespace)
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: &node.Name, LeaseDurationSeconds: ptr.To(int32(leaseDuration / time.Second)), RenewTime: ptr.To(metav1.NowMicro()),
	}
	lease, err := client.Get(ctx, node.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: leaseNamespace, Name: node.Name,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			},
			Spec: spec,
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec = spec
	_, err = client.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

func (n *nodes) updateStatus(ctx context.Context, name string, change func(*corev1.Node)) error {
	client := n.core.CoreV1().Nodes()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(node)
		_, err = client.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

func setReady(node *corev1.Node) {
	setNodeCondition(node, corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	setNodeCondition(node, corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	setNodeCondition(node, corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	setNodeCondition(node, corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available")
}

func setUnknown(node *corev1.Node) {
	for _, t := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		setNodeCondition(node, t, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
	}
}

func setNodeCondition(node *corev1.Node, t corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) {
	c := corev1.NodeCondition{Type: t, Status: status, Reason: reason, Message: message, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == t })
	if i < 0 {
		node.Status.Conditions = append(node.Status.Conditions, c)
		return
	}
	if old := node.Status.Conditions[i]; old.Status == status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	// The last sign of life is the kubelet's own, not that of who missed it.
	if status == corev1.ConditionUnknown {
		c.LastHeartbeatTime = node.Status.Conditions[i].LastHeartbeatTime
	}
	node.Status.Conditions[i] = c
}

func nodeReady(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

var unreachable = []corev1.Taint{
	{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
}

// lose does to a node that has fallen silent what the node lifecycle controller does: conditions,
// taints, and pods that aren't ready any more. The pods themselves stay.
func (n *nodes) lose(ctx context.Context, node *corev1.Node) error {
	if nodeReady(node) != corev1.ConditionUnknown {
		if err := n.updateStatus(ctx, node.Name, setUnknown); err != nil {
			return err
		}
		n.recorder("node-controller", "").Eventf(node, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	}
	if err := n.taint(ctx, node, true); err != nil {
		return err
	}
	for _, pod := range n.podsOn(node.Name) {
		if c := condition(&pod.Status, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue || terminal(pod) {
			continue
		}
		if _, err := patchPodStatus(ctx, n.core, pod, func(s *corev1.PodStatus) {
			setCondition(s, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse})
		}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		n.recorder("node-controller", "").Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return nil
}

// recover takes back what lose has done.
func (n *nodes) recover(ctx context.Context, node *corev1.Node) error {
	if nodeReady(node) != corev1.ConditionTrue {
		if err := n.updateStatus(ctx, node.Name, setReady); err != nil {
			return err
		}
		n.recorder("kubelet", node.Name).Eventf(node, corev1.EventTypeNormal, "NodeReady", "Node %s status is now: NodeReady", node.Name)
	}
	return n.taint(ctx, node, false)
}

func (n *nodes) taint(ctx context.Context, node *corev1.Node, on bool) error {
	if !slices.ContainsFunc(unreachable, func(t corev1.Taint) bool { return hasTaint(node, t) != on }) {
		return nil
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := n.core.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, t := range unreachable {
			switch has := hasTaint(node, t); {
			case on && !has:
				if t.Effect == corev1.TaintEffectNoExecute {
					t.TimeAdded = ptr.To(metav1.Now())
				}
				node.Spec.Taints = append(node.Spec.Taints, t)
			case !on && has:
				node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(old corev1.Taint) bool { return old.MatchTaint(&t) })
			}
		}
		_, err = n.core.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

func hasTaint(node *corev1.Node, t corev1.Taint) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(old corev1.Taint) bool { return old.MatchTaint(&t) })
}
