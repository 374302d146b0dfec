package cni

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Run is what kube-ovn-controller does apart from allocating.
func (d *kubeOVN) Run(ctx context.Context) error {
	// A pass over all records at the start: owners may have gone while nobody looked.
	if !persist(ctx, func() error { return d.locked(func() error { return d.collectAtStart(ctx) }) }) {
		return nil
	}
	w := newWatcher(d.kube)
	for _, err := range []error{
		on(ctx, w, d.namespaces, d.annotateNamespace, nil),
		on(ctx, w, d.subnets, d.subnetChanged, nil),
		on(ctx, w, d.ips, d.ipChanged, nil),
		on(ctx, w, d.pods, d.podChanged, d.podDeleted),
		on(ctx, w, d.vms, nil, d.vmDeleted),
	} {
		if err != nil {
			return err
		}
	}
	defer w.start(ctx)()
	marked := map[string]bool{}
	background(ctx, d.gcAfter, func(ctx context.Context) error {
		return d.locked(func() error { return d.collect(ctx, marked) })
	})
	return nil
}

func (d *kubeOVN) locked(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f()
}

func (d *kubeOVN) subnetChanged(ctx context.Context, s *ovnSubnet) error {
	return d.locked(func() error {
		if s.DeletionTimestamp != nil {
			return ignoreNotFound(d.subnets.patch(ctx, "", s.Name, withoutFinalizer(s.Finalizers, ovnFinalizer)))
		}
		if s.format() {
			// A patch: the object has fields that this package does not know.
			if err := d.subnets.patch(ctx, "", s.Name, map[string]any{"spec": s.Spec,
				"metadata": map[string]any{"finalizers": s.Finalizers, "resourceVersion": s.ResourceVersion}}); err != nil {
				return ignoreNotFound(err)
			}
		} else if _, ok := s.Status["v4availableIPs"]; ok {
			return nil
		}
		return d.refresh(ctx, s.Name)
	})
}

// ipChanged takes in a reservation that somebody made, and lets go what somebody deleted
// (Kube-OVN docs, static IP: an IP object made ahead of its VM).
func (d *kubeOVN) ipChanged(ctx context.Context, ip *ovnIP) error {
	return d.locked(func() error {
		if ip.DeletionTimestamp != nil {
			if slices.Contains(ip.Finalizers, ovnFinalizer) {
				return d.forget(ctx, ip)
			}
			return nil
		}
		if len(ip.Finalizers) > 0 {
			return nil
		}
		return d.reserve(ctx, ip)
	})
}

func (d *kubeOVN) reserve(ctx context.Context, ip *ovnIP) error {
	if ip.Spec.Subnet == "" || !slices.Contains([]string{"", "VirtualMachine", "StatefulSet"}, ip.Spec.PodType) {
		return nil // logged
	}
	s, err := d.subnets.get(ctx, "", ip.Spec.Subnet)
	if err != nil {
		return ignoreNotFound(err)
	}
	if ip.Name != ovnPortName(ip.Spec.PodName, ip.Spec.Namespace, s.Spec.Provider) {
		return nil // not a pod's address
	}
	if ip.Spec.V6IPAddress != strings.ToLower(ip.Spec.V6IPAddress) {
		return nil // logged: can not contain upper case
	}
	m, err := d.memory(ctx, s)
	if err != nil {
		return err
	}
	p := m.port(ip.Name, ip.Spec.Namespace+"/"+ip.Spec.PodName)
	var mac *string
	switch {
	case !s.ovn():
		mac = new(string)
	case ip.Spec.MACAddress != "":
		mac = &ip.Spec.MACAddress
	}
	var want []netip.Addr
	for _, v := range []string{ip.Spec.V4IPAddress, ip.Spec.V6IPAddress} {
		if v == "" {
			continue
		}
		a, err := netip.ParseAddr(v)
		if err != nil {
			return nil //nolint:nilerr // logged
		}
		want = append(want, a)
	}
	if len(want) == 0 {
		err = m.random(p, mac, true)
	} else {
		// The flag that spares a migrating VM the conflict check is set here too: two objects may
		// reserve one address.
		err = m.static(p, want, mac, false)
	}
	if err != nil {
		return nil //nolint:nilerr // logged, and tried again when the object changes
	}
	node := ip.Spec.NodeName
	pod := &corev1.Pod{}
	pod.Namespace = ip.Spec.Namespace
	if err := d.record(ctx, Request{Node: node}, pod, ip.Spec.PodName, p, s); err != nil {
		return err
	}
	if err := swap(ctx, func() error {
		now, err := d.ips.get(ctx, "", ip.Name)
		if err != nil {
			return ignoreNotFound(err)
		}
		now.Spec.PodType = ip.Spec.PodType
		if now.Labels[ovnReservedLabel] != "false" {
			now.Labels[ovnReservedLabel] = "true"
		}
		_, err = d.ips.update(ctx, "", now)
		return err
	}); err != nil {
		return err
	}
	return d.refresh(ctx, s.Name)
}

// alive says whether a pod may still use its addresses.
func alive(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil &&
		time.Now().After(p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds)*time.Second)) {
		return false
	}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		return p.Spec.RestartPolicy == corev1.RestartPolicyAlways
	case corev1.PodFailed:
		return p.Spec.RestartPolicy != corev1.RestartPolicyNever && p.Status.Reason != "Evicted"
	}
	return true
}

func (d *kubeOVN) podChanged(ctx context.Context, pod *corev1.Pod) error {
	if pod.Spec.HostNetwork || alive(pod) {
		return nil
	}
	name, vm := d.podName(ctx, pod)
	if vm {
		if !d.vmGoing(ctx, pod.Namespace, name) {
			return nil
		}
	}
	return d.locked(func() error { return d.release(ctx, pod.Namespace, name) })
}

func (d *kubeOVN) podDeleted(ctx context.Context, pod *corev1.Pod) error {
	if pod.Spec.HostNetwork {
		return nil
	}
	name, vm := d.podName(ctx, pod)
	if vm {
		if !d.vmGoing(ctx, pod.Namespace, name) {
			return nil
		}
	} else if p, err := d.core.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, getOptions); err == nil && p.UID != pod.UID {
		return nil // another pod of that name has them now
	}
	return d.locked(func() error { return d.release(ctx, pod.Namespace, name) })
}

// vmGoing says whether a VM's addresses may go. An answer that the API does not give means no.
func (d *kubeOVN) vmGoing(ctx context.Context, namespace, name string) bool {
	vmName := name
	vmi, err := d.vmis.get(ctx, namespace, name)
	switch {
	case err == nil:
		ref := owner(vmi, "VirtualMachine")
		if vmi.DeletionTimestamp == nil {
			return false
		}
		if ref == nil {
			return true
		}
		vmName = ref.Name
	case !apierrors.IsNotFound(err):
		return false
	}
	vm, err := d.vms.get(ctx, namespace, vmName)
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return vm.DeletionTimestamp != nil
}

// release frees the addresses of a pod or VM, except what was reserved by hand.
func (d *kubeOVN) release(ctx context.Context, namespace, name string) error {
	list, err := d.ips.list(ctx, "")
	if err != nil {
		return err
	}
	for i := range list {
		ip := &list[i]
		if ip.Spec.Namespace == namespace && ip.Spec.PodName == name && ip.Labels[ovnReservedLabel] != "true" {
			if err := d.forget(ctx, ip); err != nil {
				return err
			}
		}
	}
	return nil
}

// vmDeleted frees the ports of a VM that is gone, those reserved by hand too. A reservation that never
// had a pod has no port, and stays.
func (d *kubeOVN) vmDeleted(ctx context.Context, vm *machine) error {
	return d.locked(func() error {
		list, err := d.ips.list(ctx, "")
		if err != nil {
			return err
		}
		for i := range list {
			ip := &list[i]
			if ip.Spec.Namespace == vm.Namespace && ip.Spec.PodName == vm.Name && ip.Spec.NodeName != "" {
				if err := d.forget(ctx, ip); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// collectAtStart frees every record whose owner is not there. A record of type VirtualMachine needs a
// VM of that name: one that was made ahead of its VM is lost, and so is a bare VMI's.
func (d *kubeOVN) collectAtStart(ctx context.Context) error {
	list, err := d.ips.list(ctx, "")
	if err != nil {
		return err
	}
	for i := range list {
		ip := &list[i]
		switch ip.Spec.PodType {
		case "VirtualMachine":
			_, err = d.vms.get(ctx, ip.Spec.Namespace, ip.Spec.PodName)
		case "":
			_, err = d.core.CoreV1().Pods(ip.Spec.Namespace).Get(ctx, ip.Spec.PodName, getOptions)
		default:
			continue
		}
		if apierrors.IsNotFound(err) {
			if err := d.forget(ctx, ip); err != nil {
				return err
			}
		}
	}
	return nil
}

// collect frees ports that have neither pod nor VM in two rounds, except what was reserved by hand.
func (d *kubeOVN) collect(ctx context.Context, marked map[string]bool) error {
	list, err := d.ips.list(ctx, "")
	if err != nil {
		return err
	}
	pods, err := d.core.CoreV1().Pods("").List(ctx, listOptions)
	if err != nil {
		return err
	}
	owners := map[string]bool{}
	for i := range pods.Items {
		if p := &pods.Items[i]; alive(p) {
			name, _ := d.podName(ctx, p)
			owners[p.Namespace+"/"+name] = true
		}
	}
	vms, err := d.vms.list(ctx, "")
	if err == nil {
		for _, vm := range vms {
			owners[vm.Namespace+"/"+vm.Name] = true
		}
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	now := map[string]bool{}
	for i := range list {
		ip := &list[i]
		switch {
		case ip.Spec.NodeName == "" || owners[ip.Spec.Namespace+"/"+ip.Spec.PodName]:
		case !marked[ip.Name]:
			now[ip.Name] = true
		case ip.Labels[ovnReservedLabel] != "true":
			if err := d.forget(ctx, ip); err != nil {
				return err
			}
		}
	}
	clear(marked)
	for name := range now {
		marked[name] = true
	}
	return nil
}
