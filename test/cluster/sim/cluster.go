package sim

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirt "kubevirt.io/client-go/kubevirt"
)

// Indexes of the stores.
const (
	byNode  = "node"
	byOwner = "owner"
	byUID   = "uid" // of the migration store
)

var eventScheme = runtime.NewScheme()

func init() {
	utilruntime.Must(corev1.AddToScheme(eventScheme))
	utilruntime.Must(kubevirtv1.AddToScheme(eventScheme))
}

// cluster is what scheduler, kubelets and virt-handlers share: clients, stores and events.
type cluster struct {
	log      *slog.Logger
	core     kubernetes.Interface
	kubevirt kubevirt.Interface
	// virtHandlers are clients that write as virt-handler does, by node.
	virtHandlers map[string]virtHandlerClient
	nodeNames    []string
	events       record.EventBroadcaster
	watch        stopwatch

	pods, nodes, vmis, vms, vmims cache.SharedIndexInformer
}

type virtHandlerClient struct {
	core     kubernetes.Interface
	kubevirt kubevirt.Interface
}

func newCluster(o Options) (*cluster, error) {
	config := rest.CopyConfig(o.Config)
	// The simulator stands for many processes, each with a budget of its own.
	config.QPS, config.Burst = -1, 0
	config.UserAgent = "kubectl-vmip-sim"
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	kv, err := kubevirt.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	c := &cluster{log: o.Log, core: core, kubevirt: kv, virtHandlers: map[string]virtHandlerClient{}, events: record.NewBroadcaster()}
	c.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: core.CoreV1().Events("")})
	for i := range o.Nodes {
		name := fmt.Sprintf("n%d", i+1)
		c.nodeNames = append(c.nodeNames, name)
		if c.virtHandlers[name], err = newVirtHandlerClient(config, name); err != nil {
			return nil, err
		}
	}

	c.nodes = informer(core.CoreV1().Nodes(), &corev1.Node{}, nil)
	c.pods = informer(core.CoreV1().Pods(""), &corev1.Pod{}, cache.Indexers{byNode: podNode, byOwner: podOwner})
	c.vmis = informer(kv.KubevirtV1().VirtualMachineInstances(""), &kubevirtv1.VirtualMachineInstance{}, nil)
	c.vms = informer(kv.KubevirtV1().VirtualMachines(""), &kubevirtv1.VirtualMachine{}, nil)
	c.vmims = informer(kv.KubevirtV1().VirtualMachineInstanceMigrations(""), &kubevirtv1.VirtualMachineInstanceMigration{}, cache.Indexers{byUID: uid})
	return c, nil
}

// newVirtHandlerClient acts as virt-handler's service account on a node: virt-api's webhook takes
// back what anybody else writes to a VMI's status, and NodeRestriction wants the node's name.
func newVirtHandlerClient(config *rest.Config, node string) (virtHandlerClient, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "virt-handler"
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kubevirt:kubevirt-handler",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kubevirt", "system:authenticated"},
		Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return virtHandlerClient{}, err
	}
	core, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return virtHandlerClient{}, err
	}
	kv, err := kubevirt.NewForConfigAndClient(config, httpClient)
	return virtHandlerClient{core, kv}, err
}

// lister is what the generated typed clients have in common.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func informer[L runtime.Object](client lister[L], object runtime.Object, indexers cache.Indexers) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: client.Watch,
	}
	return cache.NewSharedIndexInformer(lw, object, 0, indexers)
}

func podNode(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil }

func podOwner(obj any) ([]string, error) {
	if owner := metav1.GetControllerOf(obj.(*corev1.Pod)); owner != nil {
		return []string{string(owner.UID)}, nil
	}
	return nil, nil
}

func uid(obj any) ([]string, error) { return []string{string(obj.(metav1.Object).GetUID())}, nil }

// subscribe connects the stores to those who act on them.
func (c *cluster) subscribe(n *nodes, s *scheduler, k *kubelet, h *handler) error {
	podsOf := func(vmi *kubevirtv1.VirtualMachineInstance) {
		for _, pod := range c.podsOwnedBy(vmi.UID) {
			k.queue.add(key(pod))
		}
	}
	handlers := []struct {
		informer cache.SharedIndexInformer
		handle   func(old, obj any)
	}{
		{c.nodes, func(old, obj any) {
			node, ok := latest[*corev1.Node](old, obj)
			if !ok {
				return
			}
			n.queue.add(node.Name)
			before, _ := old.(*corev1.Node)
			if obj == nil || before == nil || !sameForScheduling(before, node) {
				s.retryUnschedulable()
			}
			// A kubelet's heartbeat is no reason to look at all its pods.
			if before == nil || !sameFaults(before, node) {
				for _, pod := range c.podsOn(node.Name) {
					k.queue.add(key(pod))
					if owner := vmiOf(pod); owner != nil {
						h.queue.add(pod.Namespace + "/" + owner.Name)
					}
				}
			}
		}},
		{c.pods, func(old, obj any) {
			pod, ok := latest[*corev1.Pod](old, obj)
			if !ok {
				return
			}
			switch {
			case obj == nil:
				k.deleted(pod)
				s.forget(pod)
				s.retryUnschedulable()
			case pod.Spec.NodeName == "":
				s.queue.add(key(pod))
			default:
				s.bound(pod)
				if before, _ := old.(*corev1.Pod); terminal(pod) && before != nil && !terminal(before) {
					s.retryUnschedulable()
				}
				k.queue.add(key(pod))
			}
			if owner := vmiOf(pod); owner != nil {
				h.queue.add(pod.Namespace + "/" + owner.Name)
			}
		}},
		{c.vmis, func(old, obj any) {
			if vmi, ok := latest[*kubevirtv1.VirtualMachineInstance](old, obj); ok {
				if obj == nil {
					c.watch.drop(vmi.UID)
				}
				h.queue.add(key(vmi))
				podsOf(vmi)
			}
		}},
		{c.vms, func(old, obj any) {
			vm, ok := latest[*kubevirtv1.VirtualMachine](old, obj)
			before, _ := old.(*kubevirtv1.VirtualMachine)
			if !ok || before != nil && sameFaults(before, vm) {
				return
			}
			h.queue.add(key(vm))
			if vmi := c.vmi(vm.Namespace, vm.Name); vmi != nil {
				podsOf(vmi)
			}
		}},
		{c.vmims, func(old, obj any) {
			if vmim, ok := latest[*kubevirtv1.VirtualMachineInstanceMigration](old, obj); ok {
				h.queue.add(vmim.Namespace + "/" + vmim.Spec.VMIName)
				if vmi := c.vmi(vmim.Namespace, vmim.Spec.VMIName); vmi != nil {
					podsOf(vmi)
				}
			}
		}},
	}
	for _, x := range handlers {
		if _, err := x.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { x.handle(nil, obj) },
			UpdateFunc: x.handle,
			DeleteFunc: func(old any) {
				if gone, ok := old.(cache.DeletedFinalStateUnknown); ok {
					old = gone.Obj
				}
				x.handle(old, nil)
			},
		}); err != nil {
			return err
		}
	}
	return nil
}

// latest is obj, or its last known state where it is gone.
func latest[T any](old, obj any) (T, bool) {
	if obj == nil {
		obj = old
	}
	t, ok := obj.(T)
	return t, ok
}

// start begins to watch and returns when every store has been filled once.
func (c *cluster) start(ctx context.Context) error {
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{c.nodes, c.vms, c.vmis, c.vmims, c.pods} {
		go i.RunWithContext(ctx)
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}

// recorder records events as component does on node; node may be empty.
func (c *cluster) recorder(component, node string) record.EventRecorder {
	return c.events.NewRecorder(eventScheme, corev1.EventSource{Component: component, Host: node})
}

func (c *cluster) plays(node string) bool {
	_, ok := c.virtHandlers[node]
	return ok
}

func get[T any](i cache.SharedIndexInformer, key string) (found T) {
	if obj, ok, _ := i.GetStore().GetByKey(key); ok {
		found = obj.(T)
	}
	return found
}

func (c *cluster) pod(key string) *corev1.Pod { return get[*corev1.Pod](c.pods, key) }

func (c *cluster) node(name string) *corev1.Node { return get[*corev1.Node](c.nodes, name) }

func (c *cluster) vmi(namespace, name string) *kubevirtv1.VirtualMachineInstance {
	return get[*kubevirtv1.VirtualMachineInstance](c.vmis, namespace+"/"+name)
}

func (c *cluster) podsIndexed(index, value string) []*corev1.Pod {
	objs, _ := c.pods.GetIndexer().ByIndex(index, value)
	pods := make([]*corev1.Pod, len(objs))
	for i, obj := range objs {
		pods[i] = obj.(*corev1.Pod)
	}
	return pods
}

func (c *cluster) podsOn(node string) []*corev1.Pod { return c.podsIndexed(byNode, node) }

func (c *cluster) podsOwnedBy(uid types.UID) []*corev1.Pod {
	return c.podsIndexed(byOwner, string(uid))
}

// instance is the VMI that owns a launcher pod; nil where the pod is no launcher, or its VMI is gone.
func (c *cluster) instance(pod *corev1.Pod) *kubevirtv1.VirtualMachineInstance {
	owner := vmiOf(pod)
	if owner == nil {
		return nil
	}
	if vmi := c.vmi(pod.Namespace, owner.Name); vmi != nil && vmi.UID == owner.UID {
		return vmi
	}
	return nil
}

// liveInstance asks the API server, because stores lag behind it and behind each other: after its
// restart by seconds. What can't be taken back isn't done on a store's word.
func (c *cluster) liveInstance(ctx context.Context, pod *corev1.Pod) (*kubevirtv1.VirtualMachineInstance, error) {
	owner := vmiOf(pod)
	vmi, err := c.kubevirt.KubevirtV1().VirtualMachineInstances(pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && vmi.UID != owner.UID {
		return nil, nil
	}
	return vmi, err
}

// migration is the VMIM that a pod was created for; nil where there is none.
func (c *cluster) migration(pod *corev1.Pod) *kubevirtv1.VirtualMachineInstanceMigration {
	vmim := get[*kubevirtv1.VirtualMachineInstanceMigration](c.vmims, pod.Namespace+"/"+pod.Annotations[kubevirtv1.MigrationJobNameAnnotation])
	if vmim == nil || string(vmim.UID) != pod.Labels[kubevirtv1.MigrationJobLabel] {
		return nil
	}
	return vmim
}

// migrationPhase is the phase of the VMIM that a VMI's migration state belongs to.
func (c *cluster) migrationPhase(m *kubevirtv1.VirtualMachineInstanceMigrationState) kubevirtv1.VirtualMachineInstanceMigrationPhase {
	objs, _ := c.vmims.GetIndexer().ByIndex(byUID, string(m.MigrationUID))
	if len(objs) == 0 {
		return ""
	}
	return objs[0].(*kubevirtv1.VirtualMachineInstanceMigration).Status.Phase
}

func vmiOf(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "VirtualMachineInstance" {
		return nil
	}
	return owner
}

// isLauncher tells whether a pod runs (or will run) a guest.
func isLauncher(pod *corev1.Pod) bool {
	return vmiOf(pod) != nil && pod.Labels[kubevirtv1.AppLabel] == "virt-launcher" &&
		pod.Annotations[kubevirtv1.EphemeralProvisioningObject] == ""
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func key(obj metav1.Object) string {
	if obj.GetNamespace() == "" {
		return obj.GetName()
	}
	return obj.GetNamespace() + "/" + obj.GetName()
}
