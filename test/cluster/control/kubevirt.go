package control

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/install"
	"kubevirt.io/kubevirt/pkg/virt-operator/util"
)

// KubeVirtVersion is the release whose controllers run; cmd/build stamps the same into them.
const KubeVirtVersion = "v1.8.0"

const (
	kubevirtNamespace = "kubevirt"
	registry          = "quay.io/kubevirt"
)

func gvr(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

var (
	crdGVR        = gvr("apiextensions.k8s.io", "v1", "customresourcedefinitions")
	kubevirtGVR   = gvr("kubevirt.io", "v1", "kubevirts")
	vmGVR         = gvr("kubevirt.io", "v1", "virtualmachines")
	apiServiceGVR = gvr("apiregistration.k8s.io", "v1", "apiservices")
	nodeGVR       = gvr("", "v1", "nodes")
)

// kubevirt installs what virt-operator would install, from the operator's own generators, except the
// workloads: the supervisor runs those.
type kubevirt struct {
	client   dynamic.Interface
	strategy *install.Strategy
	object   *kubevirtv1.KubeVirt
}

// newKubeVirt computes the installation. overrides is JSON for spec.configuration, empty for KubeVirt's defaults.
func newKubeVirt(client dynamic.Interface, overrides string) (*kubevirt, error) {
	kv := &kubevirtv1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Name: "kubevirt", Namespace: kubevirtNamespace},
		Spec:       kubevirtv1.KubeVirtSpec{ImageRegistry: registry, ImageTag: KubeVirtVersion},
	}
	if overrides != "" {
		if err := json.Unmarshal([]byte(overrides), &kv.Spec.Configuration); err != nil {
			return nil, fmt.Errorf("configuration of KubeVirt: %w", err)
		}
	}
	// The operator's configuration may not depend on the environment of the developer.
	config := util.GetTargetConfigFromKVWithEnvVarManager(kv, &util.EnvVarManagerMock{})
	strategy, err := install.GenerateCurrentInstallStrategy(config, "", kubevirtNamespace)
	if err != nil {
		return nil, fmt.Errorf("KubeVirt's install strategy: %w", err)
	}
	if err := config.SetTargetDeploymentConfig(kv); err != nil {
		return nil, err
	}
	if err := config.SetObservedDeploymentConfig(kv); err != nil {
		return nil, err
	}
	kv.Status.Phase = kubevirtv1.KubeVirtPhaseDeployed
	kv.Status.DefaultArchitecture = "amd64" // of the simulated nodes, whatever runs this
	kv.Status.OperatorVersion = KubeVirtVersion
	kv.Status.OutdatedVirtualMachineInstanceWorkloads = ptr.To(0)
	util.UpdateConditionsCreated(kv)
	util.UpdateConditionsAvailable(kv)
	util.SetConditionTimestamps(&kubevirtv1.KubeVirt{}, kv)
	for i := range kv.Status.Conditions {
		kv.Status.Conditions[i].LastTransitionTime = kv.Status.Conditions[i].LastProbeTime
	}
	return &kubevirt{client, strategy, kv}, nil
}

// install creates everything that virt-controller and virt-api need before they start.
func (k *kubevirt) install(ctx context.Context, ca []byte) error {
	if err := k.create(ctx, gvr("", "v1", "namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   kubevirtNamespace,
		Labels: map[string]string{"kubevirt.io": ""},
	}}); err != nil {
		return err
	}
	kubevirtCRD, err := components.NewKubeVirtCrd()
	if err != nil {
		return err
	}
	crds := append(k.strategy.CRDs(), kubevirtCRD, networkAttachmentDefinitionCRD())
	rbac := func(r string) schema.GroupVersionResource { return gvr("rbac.authorization.k8s.io", "v1", r) }
	g, objects := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, o := range crds {
		g.Go(func() error { return k.create(objects, crdGVR, o) })
	}
	for _, o := range k.strategy.ServiceAccounts() {
		g.Go(func() error { return k.create(objects, gvr("", "v1", "serviceaccounts"), o) })
	}
	for _, o := range k.strategy.ClusterRoles() {
		g.Go(func() error { return k.create(objects, rbac("clusterroles"), o) })
	}
	for _, o := range k.strategy.ClusterRoleBindings() {
		g.Go(func() error { return k.create(objects, rbac("clusterrolebindings"), o) })
	}
	for _, o := range k.strategy.Roles() {
		g.Go(func() error { return k.create(objects, rbac("roles"), o) })
	}
	for _, o := range k.strategy.RoleBindings() {
		g.Go(func() error { return k.create(objects, rbac("rolebindings"), o) })
	}
	for _, o := range k.strategy.ConfigMaps() {
		o.Data = map[string]string{components.CABundleKey: string(ca)}
		g.Go(func() error { return k.create(objects, gvr("", "v1", "configmaps"), o) })
	}
	g.Go(func() error {
		return k.create(objects, gvr("scheduling.k8s.io", "v1", "priorityclasses"), components.NewKubeVirtPriorityClassCR())
	})
	if err := g.Wait(); err != nil {
		return err
	}
	// A controller whose informer meets a kind that isn't served yet backs off for seconds.
	g, established := errgroup.WithContext(ctx)
	for _, o := range crds {
		g.Go(func() error { return k.waitCondition(established, crdGVR, o.Name, string(extv1.Established)) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := k.create(ctx, kubevirtGVR, k.object); err != nil {
		return err
	}
	k.object.Status.ObservedGeneration = ptr.To(int64(1))
	status, err := json.Marshal(map[string]any{"status": k.object.Status})
	if err != nil {
		return err
	}
	_, err = k.client.Resource(kubevirtGVR).Namespace(kubevirtNamespace).Patch(ctx, k.object.Name,
		types.MergePatchType, status, metav1.PatchOptions{}, "status")
	return err
}

// register puts virt-api in front of the API server, as an aggregated API and as webhooks. Both keep the
// service that KubeVirt names; its type leads them to the loopback port, since no proxy serves cluster addresses.
func (k *kubevirt) register(ctx context.Context, ca []byte, port int) error {
	for _, o := range k.strategy.Services() {
		if o.Name == components.VirtApiServiceName {
			o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
		}
		if err := k.create(ctx, gvr("", "v1", "services"), o); err != nil {
			return err
		}
	}
	here := func(c *admissionv1.WebhookClientConfig) {
		c.Service.Port, c.CABundle = ptr.To(int32(port)), ca
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, o := range k.strategy.APIServices() {
		o.Spec.Service.Port, o.Spec.CABundle = ptr.To(int32(port)), ca
		g.Go(func() error { return k.create(ctx, apiServiceGVR, o) })
	}
	for _, o := range k.strategy.ValidatingWebhookConfigurations() {
		if o.Name != components.VirtAPIValidatingWebhookName {
			continue // virt-operator's own, and there is no virt-operator
		}
		for i := range o.Webhooks {
			here(&o.Webhooks[i].ClientConfig)
		}
		g.Go(func() error {
			return k.create(ctx, gvr("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"), o)
		})
	}
	for _, o := range k.strategy.MutatingWebhookConfigurations() {
		if o.Name != components.VirtAPIMutatingWebhookName {
			continue // the operator creates the other one with the feature gate ContainerPathVolumes only
		}
		for i := range o.Webhooks {
			here(&o.Webhooks[i].ClientConfig)
		}
		g.Go(func() error {
			return k.create(ctx, gvr("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations"), o)
		})
	}
	return g.Wait()
}

// waitRegistered waits until the aggregated API answers and the webhooks do their work.
func (k *kubevirt) waitRegistered(ctx context.Context) error {
	for _, o := range k.strategy.APIServices() {
		if err := k.waitCondition(ctx, apiServiceGVR, o.Name, "Available"); err != nil {
			return err
		}
	}
	var last error
	for {
		if last = k.probeWebhooks(ctx); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return &failure{"virt-api", fmt.Errorf("its webhooks don't answer: %w", last)}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// probeWebhooks creates a VM in a dry run. That it succeeds is not enough, because the API server
// reads the webhook configurations from a cache: the mutating webhook must have left its mark.
func (k *kubevirt) probeWebhooks(ctx context.Context) error {
	probe := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
		"metadata": map[string]any{"name": "probe"},
		"spec": map[string]any{
			"runStrategy": "Halted",
			"template": map[string]any{"spec": map[string]any{"domain": map[string]any{
				"devices": map[string]any{},
				"memory":  map[string]any{"guest": "64Mi"},
			}}},
		},
	}}
	vms := k.client.Resource(vmGVR).Namespace(metav1.NamespaceDefault)
	vm, err := vms.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if arch, _, _ := unstructured.NestedString(vm.Object, "spec", "template", "spec", "architecture"); arch == "" {
		return fmt.Errorf("the mutating webhook for virtual machines isn't called yet")
	}
	restricted := probe.DeepCopy()
	if err := unstructured.SetNestedField(restricted.Object, "x",
		"spec", "template", "metadata", "labels", kubevirtv1.CreatedByLabel); err != nil {
		return err
	}
	if _, err := vms.Create(ctx, restricted, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
		return fmt.Errorf("the validating webhook for virtual machines isn't called yet")
	}
	return nil
}

// create creates a typed object, or does nothing where it is.
func (k *kubevirt) create(ctx context.Context, r schema.GroupVersionResource, o runtime.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: content}
	// A status may be empty but not null, and is dropped or set on its own anyway.
	unstructured.RemoveNestedField(u.Object, "status")
	if u.GetKind() == "" {
		u.SetGroupVersionKind(r.GroupVersion().WithKind(kinds[r.Resource]))
	}
	for {
		_, err = k.client.Resource(r).Namespace(u.GetNamespace()).Create(ctx, u, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		// On a machine under load the answer may be late. Whether the object is there, creating it again tells.
		late := apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
		if !late || ctx.Err() != nil {
			return fmt.Errorf("%s %s: %w", r.Resource, u.GetName(), err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// kinds of the resources whose generated objects don't name their own.
var kinds = map[string]string{
	"namespaces":                "Namespace",
	"customresourcedefinitions": "CustomResourceDefinition",
	"kubevirts":                 "KubeVirt",
}

// waitCondition waits until a cluster-scoped object has the condition.
func (k *kubevirt) waitCondition(ctx context.Context, r schema.GroupVersionResource, name, condition string) error {
	for {
		o, err := k.client.Resource(r).Get(ctx, name, metav1.GetOptions{})
		why := ""
		if err == nil {
			raw, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, c := range conditions(raw) {
				if c.Type == condition && c.Status == metav1.ConditionTrue {
					return nil
				}
				if c.Type == condition {
					why = c.Message
				}
			}
		} else {
			why = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s isn't %s: %s", r.Resource, name, condition, why)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func conditions(raw []any) []metav1.Condition {
	var out []metav1.Condition
	for _, r := range raw {
		var c metav1.Condition
		if m, ok := r.(map[string]any); ok && runtime.DefaultUnstructuredConverter.FromUnstructured(m, &c) == nil {
			out = append(out, c)
		}
	}
	return out
}

// nodesReady counts the nodes that are ready.
func nodesReady(ctx context.Context, client dynamic.Interface) (int, error) {
	nodes, err := client.Resource(nodeGVR).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, node := range nodes.Items {
		raw, _, _ := unstructured.NestedSlice(node.Object, "status", "conditions")
		if meta.IsStatusConditionTrue(conditions(raw), string(corev1.NodeReady)) {
			n++
		}
	}
	return n, nil
}

// networkAttachmentDefinitionCRD is the kind that Multus and its users share: VMs name its objects for
// their secondary networks.
func networkAttachmentDefinitionCRD() *extv1.CustomResourceDefinition {
	return &extv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "network-attachment-definitions.k8s.cni.cncf.io"},
		Spec: extv1.CustomResourceDefinitionSpec{
			Group: "k8s.cni.cncf.io",
			Scope: extv1.NamespaceScoped,
			Names: extv1.CustomResourceDefinitionNames{
				Plural: "network-attachment-definitions", Singular: "network-attachment-definition",
				Kind: "NetworkAttachmentDefinition", ListKind: "NetworkAttachmentDefinitionList",
				ShortNames: []string{"net-attach-def"},
			},
			Versions: []extv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &extv1.CustomResourceValidation{OpenAPIV3Schema: &extv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]extv1.JSONSchemaProps{
						"spec": {
							Type:       "object",
							Properties: map[string]extv1.JSONSchemaProps{"config": {Type: "string"}},
						},
					},
				}},
			}},
		},
	}
}
