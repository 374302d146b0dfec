package ledger

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// foreign are the rows of claims of others, as "address claimant".
func (w *world) foreign() (list []string) {
	w.t.Helper()
	for _, e := range w.rows() {
		if e.Row.State == ledger.Foreign {
			list = append(list, e.Addr.String()+" "+e.Row.VM)
		}
	}
	return list
}

// C19 and C20: what nodes, services and templates have or ask for is not given out, and is free
// again once nobody asks for it. The machine that asks may reserve it; nobody else.
func TestC20ClaimsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	net, net6 := w.net()
	core := w.boss.core.CoreV1()
	node := must[*corev1.Node](t)(core.Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-of-" + w.namespace}, Spec: corev1.NodeSpec{Unschedulable: true},
	}, metav1.CreateOptions{}))
	t.Cleanup(func() {
		if err := core.Nodes().Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: net + ".2"}, {Type: corev1.NodeInternalIP, Address: net6 + "::1"}}
	must[*corev1.Node](t)(core.Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))
	must[*corev1.Service](t)(core.Services(w.namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "lb"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{net + ".3"}},
	}, metav1.CreateOptions{}))
	for name, addr := range map[string]string{"a": net + ".4", "c": net + ".4", "b": net + ".5"} {
		if err := w.create(name, map[string]string{annotation: addr}); err != nil {
			t.Fatal(err)
		}
	}
	w.vm("new", "newer")
	out, errOut, code := w.command("", "pool", "add", "lab", "--cidr", net+".0/24,"+net6+"::/64", "--gateway", net+".1")
	if code != 0 || !strings.Contains(errOut, "in use by others, and not given out: "+net+".2 (node "+node.Name+": an address of the node)") {
		t.Errorf("pool add: %d %s%s", code, out, errOut)
	}
	want := fmt.Sprint([]string{net + ".2 node " + node.Name, net + ".3 service " + w.namespace + "/lb", net + ".4 " + w.namespace + "/a", net + ".5 " + w.namespace + "/b", net6 + "::1 node " + node.Name})
	if got := fmt.Sprint(w.foreign()); got != want {
		t.Errorf("claims of others:\n%s, want\n%s", got, want)
	}
	if out := w.ok("", "reserve", "new"); !strings.Contains(out, "new reserved "+net+".6,"+net6+"::2\n") {
		t.Errorf("automatic choice: %s", out)
	}
	for _, c := range []struct{ vm, ip, by string }{{"newer", net + ".2", node.Name}, {"newer", net + ".4", w.namespace + "/a"}, {"c", net + ".4", w.namespace + "/a"}} {
		_, errOut, code := w.command("", "reserve", c.vm, "--ip", c.ip)
		if code != 1 || !strings.Contains(errOut, "is claimed by") || !strings.Contains(errOut, c.by) || !strings.Contains(errOut, "audit --refresh") {
			t.Errorf("%s takes %s: %d %s", c.vm, c.ip, code, errOut)
		}
	}
	w.ok("", "reserve", "b", "--adopt")
	if got := fmt.Sprint(w.states("b")); got != "["+net+".5 reserved]" {
		t.Errorf("b has %s", got)
	}
	if out := w.ok("", "pool", "show", "lab"); !strings.Contains(out, "foreign") {
		t.Errorf("pool show: %s", out)
	}
	// A gap keeps what was recorded, and the end of the claim frees it.
	if err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for try := 0; ; try++ {
		if _, err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Get(t.Context(), "a", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			break
		}
		if try == 300 {
			t.Fatal("a does not go")
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := core.Services(w.namespace).Delete(t.Context(), "lb", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, errOut, code = w.command("", "audit", "--refresh", "--fail-on", "none")
	if code != 0 || !strings.Contains(errOut, "no longer in use by others: "+net+".3") || !strings.Contains(errOut, net+".4 ("+w.namespace+"/c: its template asks for it)") {
		t.Errorf("audit --refresh: %d %s", code, errOut)
	}
	want = fmt.Sprint([]string{net + ".2 node " + node.Name, net + ".4 " + w.namespace + "/c", net6 + "::1 node " + node.Name})
	if got := fmt.Sprint(w.foreign()); got != want {
		t.Errorf("claims of others:\n%s, want\n%s", got, want)
	}
	// Once more: nothing to write.
	before := fmt.Sprint(w.objects(ledger.KindBlock))
	w.ok("", "reclaimer", "--once")
	if after := fmt.Sprint(w.objects(ledger.KindBlock)); after != before {
		t.Errorf("a scan that finds nothing new wrote:\n%s\n%s", before, after)
	}
	if _, errOut, code := w.command("", "audit", "--refresh", "-f", "x"); code != 2 || !strings.Contains(errOut, "--refresh") {
		t.Errorf("a refresh of a dump: %d %s", code, errOut)
	}
}

// C20: a pool in what a load balancer hands out is refused, until that is left out.
func TestC20LoadBalancersRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	net, _ := w.net()
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	pools := schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	dyn := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(cluster.Config))
	must[*unstructured.Unstructured](t)(dyn.Resource(crds).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "ipaddresspools.metallb.io"},
		"spec": map[string]any{
			"group": "metallb.io", "scope": "Namespaced", "names": map[string]any{"plural": "ipaddresspools", "singular": "ipaddresspool", "kind": "IPAddressPool", "listKind": "IPAddressPoolList"},
			"versions": []any{map[string]any{"name": "v1beta1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}, metav1.CreateOptions{}))
	lan := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool", "metadata": map[string]any{"name": "lan"},
		"spec": map[string]any{"addresses": []any{net + ".150-" + net + ".160"}},
	}}
	for try := 0; ; try++ {
		_, err := dyn.Resource(pools).Namespace(w.namespace).Create(t.Context(), lan, metav1.CreateOptions{})
		if err == nil {
			break
		}
		if try == 100 {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the definition is not served yet
	}
	_, errOut, code := w.command("", "pool", "add", "lab", "--cidr", net+".0/24", "--gateway", net+".1")
	if code != 1 || !strings.Contains(errOut, "ipaddresspool "+w.namespace+"/lan of MetalLB") || !strings.Contains(errOut, "--exclude "+net+".150-"+net+".160") {
		t.Errorf("pool add: %d %s", code, errOut)
	}
	if left := w.objects(ledger.KindPool); len(left) > 0 {
		t.Errorf("a refused pool left %v", left)
	}
	w.ok("", "pool", "add", "lab", "--cidr", net+".0/24", "--gateway", net+".1", "--exclude", net+".150-"+net+".160")
	if _, errOut, code = w.command("", "pool", "set", "lab", "--exclude="); code != 0 || !strings.Contains(errOut, "would be handed out twice") {
		t.Errorf("pool set: %d %s", code, errOut)
	}
}
