package profile

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const kubeOVNGroup = "kubeovn.io"

// kubeOVNFacts is what was detected of Kube-OVN.
type kubeOVNFacts struct {
	present presence
	// controller is the Deployment; its zero value where it was not read.
	controller workload
	version    setting[string]
	// keepVMIP is --keep-vm-ip of the controller: addresses belong to the VM and not to its pods.
	keepVMIP setting[bool]
	// keepVMIPDefault is set where the flag is not given and the version decided.
	keepVMIPDefault bool
	// secondaryOnly is set where Kube-OVN leaves the pod network to another plugin.
	secondaryOnly bool
	// subnets are all of its subnets.
	subnets setting[[]kubeOVNSubnet]
}

// kubeOVNSubnet is a Subnet (kubeovn.io/v1).
type kubeOVNSubnet struct {
	name, provider string
	cidrs          []netip.Prefix
}

func (s kubeOVNSubnet) String() string {
	var cidrs []string
	for _, c := range s.cidrs {
		cidrs = append(cidrs, c.String())
	}
	return s.name + " " + strings.Join(cidrs, ",")
}

var kubeOVNSubnets = schema.GroupVersionResource{Group: kubeOVNGroup, Version: "v1", Resource: "subnets"}

// listSubnets reads the subnets. cidrBlock has one prefix of each family, with a comma between; a
// subnet without provider is the pod network's, "ovn" (pkg/util/const.go).
func listSubnets(ctx context.Context, r Reader) setting[[]kubeOVNSubnet] {
	list, err := r.Dynamic.Resource(kubeOVNSubnets).List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown[[]kubeOVNSubnet](unreadable("subnets of Kube-OVN", err))
	}
	var all []kubeOVNSubnet
	for i := range list.Items {
		o := &list.Items[i]
		s := kubeOVNSubnet{name: o.GetName()}
		s.provider, _, _ = unstructured.NestedString(o.Object, "spec", "provider")
		if s.provider == "" {
			s.provider = "ovn"
		}
		block, _, _ := unstructured.NestedString(o.Object, "spec", "cidrBlock")
		for _, text := range strings.Split(block, ",") {
			if c, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
				s.cidrs = append(s.cidrs, c)
			}
		}
		all = append(all, s)
	}
	return known(all)
}

func (f kubeOVNFacts) unread() []error {
	if !f.present.value && f.present.failed() == nil {
		return nil
	}
	return []error{f.present.failed(), f.version.failed(), f.keepVMIP.failed()}
}

func detectKubeOVN(ctx context.Context, r Reader, g groups) kubeOVNFacts {
	none := fmt.Errorf("kube-ovn %w", errNotDetected)
	if g.missing(kubeOVNGroup) {
		return kubeOVNFacts{present: known(false), version: unknown[string](none), keepVMIP: unknown[bool](none)}
	}
	w, err := r.kubeOVNController(ctx)
	if err != nil {
		return kubeOVNFacts{present: unknown[bool](err), version: unknown[string](err), keepVMIP: unknown[bool](err)}
	}
	f := kubeOVNFacts{present: known(true), controller: w}
	f.version = known(w.version())
	if f.version.value == "" {
		f.version = unknown[string](fmt.Errorf("the image %q of %s has no version", w.image, w))
	}
	if v, ok := w.flag("non-primary-cni-mode"); ok {
		f.secondaryOnly, _ = strconv.ParseBool(v)
	}
	f.detectKeepVMIP()
	f.subnets = listSubnets(ctx, r)
	return f
}

// detectKeepVMIP reads the flag. Its default is true since 1.12 and false before
// (cmd/controller, and the ENABLE_KEEP_VM_IP of the chart).
func (f *kubeOVNFacts) detectKeepVMIP() {
	if v, ok := f.controller.flag("keep-vm-ip"); ok {
		b, err := strconv.ParseBool(v)
		if err != nil {
			f.keepVMIP = unknown[bool](fmt.Errorf("%s has --keep-vm-ip=%s, which is no boolean", f.controller, v))
			return
		}
		f.keepVMIP = known(b)
		return
	}
	older, ok := before(f.version.value, 1, 12)
	if !ok {
		f.keepVMIP = unknown[bool](fmt.Errorf("%s has no --keep-vm-ip, and its default depends on the version, which is unknown", f.controller))
		return
	}
	f.keepVMIP, f.keepVMIPDefault = known(!older), true
}

// kubeOVNController finds the controller where it is installed as a rule, and otherwise by its label.
func (r Reader) kubeOVNController(ctx context.Context) (workload, error) {
	const name = "kube-ovn-controller"
	d, err := r.Core.AppsV1().Deployments("kube-system").Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return newWorkload("deployment", d, d.Spec.Template), nil
	}
	failed := unreadable("deployment kube-system/"+name, err)
	if !absent(err) {
		return workload{}, failed
	}
	list, err := r.Core.AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil || len(list.Items) == 0 {
		return workload{}, failed
	}
	d = &list.Items[0]
	return newWorkload("deployment", d, d.Spec.Template), nil
}
