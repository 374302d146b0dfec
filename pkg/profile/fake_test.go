package profile

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// listKinds are the custom resources that are listed or read.
var listKinds = map[schema.GroupVersionResource]string{
	{Group: calicoCRDs, Version: "v1", Resource: "ippools"}:               "IPPoolList",
	{Group: calicoCRDs, Version: "v1", Resource: "ipamblocks"}:            "IPAMBlockList",
	{Group: calicoCRDs, Version: "v1", Resource: "ipamhandles"}:           "IPAMHandleList",
	{Group: calicoCRDs, Version: "v1", Resource: "ipamconfigs"}:           "IPAMConfigList",
	{Group: calicoNative, Version: "v3", Resource: "ippools"}:             "IPPoolList",
	{Group: calicoNative, Version: "v3", Resource: "ipamconfigurations"}:  "IPAMConfigurationList",
	{Group: calicoNative, Version: "v3", Resource: "clusterinformations"}: "ClusterInformationList",
	spiderIPPools:   "SpiderIPPoolList",
	spiderEndpoints: "SpiderEndpointList",
	kubeOVNIPs:      "IPList",
	kubeOVNSubnets:  "SubnetList",
	attachmentGVR:   "NetworkAttachmentDefinitionList",
}

// world is a cluster of fakes.
type world struct {
	core *fake.Clientset
	dyn  *dynamicfake.FakeDynamicClient
}

// load fills a cluster with the objects of a file; change may edit its text first.
func load(t *testing.T, file string, change ...string) world {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for n := 0; n < len(change); n += 2 {
		if !strings.Contains(text, change[n]) {
			t.Fatalf("%s does not contain %q", file, change[n])
		}
		text = strings.ReplaceAll(text, change[n], change[n+1])
	}
	var list struct {
		Items []map[string]any `json:"items"`
	}
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	w := world{core: fake.NewClientset(), dyn: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds)}
	served := map[string]bool{}
	for _, item := range list.Items {
		// As decoded from the wire: integers are int64.
		o := &unstructured.Unstructured{}
		raw, err := yaml.Marshal(item)
		if err == nil {
			raw, err = yaml.YAMLToJSON(raw)
		}
		if err == nil {
			err = o.UnmarshalJSON(raw)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.add(t, o)
		served[o.GetAPIVersion()] = true
	}
	for _, gv := range slices.Sorted(mapsKeys(served)) {
		w.core.Resources = append(w.core.Resources, &metav1.APIResourceList{GroupVersion: gv})
	}
	return w
}

func mapsKeys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (w world) add(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	var typed runtime.Object
	switch o.GetKind() {
	case "DaemonSet":
		typed = &appsv1.DaemonSet{}
	case "Deployment":
		typed = &appsv1.Deployment{}
	case "ConfigMap":
		typed = &corev1.ConfigMap{}
	case "Pod":
		typed = &corev1.Pod{}
	}
	if typed != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
			t.Fatal(err)
		}
		if err := w.core.Tracker().Add(typed); err != nil {
			t.Fatal(err)
		}
		return
	}
	gvk := o.GroupVersionKind()
	gvr := gvk.GroupVersion().WithResource(strings.ToLower(gvk.Kind) + "s")
	if gvk.Kind == "NetworkAttachmentDefinition" {
		gvr = attachmentGVR
	}
	if err := w.dyn.Tracker().Create(gvr, o, o.GetNamespace()); err != nil {
		t.Fatal(err)
	}
}

// pod adds a pod that a VMI of that name controls, or nothing for "".
func (w world) pod(t *testing.T, namespace, name, vmi string) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if vmi != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "VirtualMachineInstance", Name: vmi, UID: "x", Controller: new(true)}}
	}
	if err := w.core.Tracker().Add(p); err != nil {
		t.Fatal(err)
	}
}

// forbid refuses a verb on a resource of either client.
func (w world) forbid(verb, resource string) {
	refuse := func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("not yours"))
	}
	w.core.PrependReactor(verb, resource, refuse)
	w.dyn.PrependReactor(verb, resource, refuse)
}

func (w world) detect(t *testing.T) *Cluster {
	t.Helper()
	c, err := Detect(context.Background(), Reader{Core: w.core, Dynamic: w.dyn})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// on is the profile of an interface.
func (w world) on(t *testing.T, i machine.Interface) Profile {
	t.Helper()
	p, err := w.detect(t).For(context.Background(), i)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var (
	db1    = machine.Ref{Namespace: "tenant-a", Name: "db-1"}
	podNet = machine.Interface{Name: "default", Pod: true, Binding: machine.Bridge}
)

func secondary(name, attachment string) machine.Interface {
	return machine.Interface{Name: name, Attachment: attachment, Binding: machine.Bridge, Ordinal: 1}
}

func ips(list ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range list {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs
}

// answers writes capabilities in short: choose, restart, migration, dual stack.
func answers(c Capabilities) string {
	var s []string
	for _, a := range []Capability{c.Choose, c.Restart, c.Migration, c.DualStack} {
		s = append(s, a.Answer.String())
	}
	return strings.Join(s, " ")
}

func contains(t *testing.T, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s: %q does not say %q", what, text, part)
	}
}
