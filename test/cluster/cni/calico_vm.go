package cni

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const migrationJobLabel = "kubevirt.io/migrationJobUID"

// calicoVM is the VM that a virt-launcher pod runs, as calico-ipam finds it.
type calicoVM struct {
	name, namespace  string
	vmiUID, vmUID    string
	migration        string // UID of the migration that the pod is the target of
	deleting, target bool
}

// vmOf attributes a pod: by its name, then its owner, then that owner as the API has it. A label
// alone is not believed (Calico docs 3.32, kubevirt-networking).
func (d *calico) vmOf(ctx context.Context, pod *corev1.Pod) (*calicoVM, error) {
	if !strings.HasPrefix(pod.Name, "virt-launcher-") {
		return nil, nil
	}
	ref := owner(pod, "VirtualMachineInstance")
	if ref == nil || ref.Controller == nil || !*ref.Controller {
		return nil, nil
	}
	vmi, err := d.vmis.get(ctx, pod.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("failed to query VMI resource %s/%s: %w", pod.Namespace, ref.Name, err)
	}
	if vmi.UID != ref.UID {
		return nil, fmt.Errorf("VMI UID mismatch: pod ownerReference has %s but VMI resource has %s", ref.UID, vmi.UID)
	}
	v := &calicoVM{name: vmi.Name, namespace: vmi.Namespace, vmiUID: string(vmi.UID), deleting: vmi.DeletionTimestamp != nil}
	if ref := owner(vmi, "VirtualMachine"); ref != nil {
		vm, err := d.vms.get(ctx, vmi.Namespace, ref.Name)
		if err != nil {
			return nil, fmt.Errorf("failed to query VMI resource %s/%s: %w", pod.Namespace, vmi.Name, err)
		}
		v.vmUID, v.deleting = string(vm.UID), vm.DeletionTimestamp != nil
	}
	v.migration = pod.Labels[migrationJobLabel]
	v.target = v.migration != ""
	return v, nil
}

// handle is Calico's handle for the VM on a network: its name, not its UID, so it outlives the VMI.
func (v *calicoVM) handle(network string) string {
	prefix, suffix := network+".vmi.", v.namespace+"."+v.name
	const limit = 128
	if len(prefix)+len(suffix) <= limit {
		return prefix + suffix
	}
	sum := sha256.Sum256([]byte(suffix))
	hash := base64.RawURLEncoding.EncodeToString(sum[:])
	return prefix + "_" + hash[:min(len(hash), limit-1-len(prefix))]
}

// persistent reads IPAMConfiguration's switch. Nothing written means enabled.
func (d *calico) persistent(ctx context.Context) bool {
	c, err := d.configs.get(ctx, "", "default")
	return err != nil || c.Spec.KubeVirtVMAddressPersistence != "Disabled"
}

// vmAddresses answers from the VM's handle, or prepares o for a first allocation. It does so before
// anybody looks at the address that was asked for: that is why the annotation of a VM that holds
// an address has no effect (calico-ipam, handleVirtLauncherPod).
func (d *calico) vmAddresses(ctx context.Context, pod *corev1.Pod, network string, o *allocation) (ips []netip.Addr, done bool, err error) {
	vm, err := d.vmOf(ctx, pod)
	if err != nil {
		return nil, false, fmt.Errorf("failed to get VMI info: %w", err)
	}
	if vm == nil {
		return nil, false, nil
	}
	if !d.persistent(ctx) {
		if vm.target {
			return nil, false, errors.New("live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled")
		}
		return nil, false, nil
	}
	o.handle, o.perVersion = vm.handle(network), 1
	o.attrs["vmi-name"], o.attrs["vmi-uid"] = vm.name, vm.vmiUID
	if vm.vmUID != "" {
		o.attrs["vm-uid"] = vm.vmUID
	}
	if vm.target {
		o.attrs["vmim-uid"] = vm.migration
	}
	ips, err = d.owned(ctx, o.handle)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("failed to get existing IPs for VM handle %s: %w", o.handle, err)
	case len(ips) == 0 && vm.target:
		return nil, false, fmt.Errorf("migration target pod but no IP allocated to VM handle %s", o.handle)
	case len(ips) == 0:
		return nil, false, nil
	}
	for _, a := range ips {
		if err := d.setOwner(ctx, a, o.handle, func(attr *calicoAttribute) {
			if vm.target {
				attr.Alternate = o.attrs
			} else {
				attr.Active = o.attrs
			}
		}); err != nil {
			return nil, false, fmt.Errorf("failed to set owner attributes for IP %s: %w", a, err)
		}
	}
	return ips, true, nil
}

// setOwner changes whose an address is without freeing it.
func (d *calico) setOwner(ctx context.Context, a netip.Addr, handle string, change func(*calicoAttribute)) error {
	return swap(ctx, func() error {
		blocks, err := d.blocks.list(ctx, "")
		if err != nil {
			return err
		}
		i := slices.IndexFunc(blocks, func(b calicoBlock) bool { return b.prefix().Contains(a) })
		if i < 0 || blocks[i].attribute(a) == nil {
			return nil
		}
		attr := blocks[i].attribute(a)
		if attr.Handle != handle {
			return fmt.Errorf("IP %s is not assigned to handle %s", a, handle)
		}
		before := *attr
		change(attr)
		if maps.Equal(before.Active, attr.Active) && maps.Equal(before.Alternate, attr.Alternate) {
			return nil
		}
		return d.updateBlock(ctx, &blocks[i])
	})
}

// vmRelease is DEL of a VM's pod: the pod stops being an owner, and the address goes only when the VM
// is going and no other pod is left. done is false for pods that have a handle of their own.
func (d *calico) vmRelease(ctx context.Context, req Request, network string) (done bool, err error) {
	if !strings.HasPrefix(req.Pod.Name, "virt-launcher-") {
		return false, nil
	}
	pod, err := d.core.CoreV1().Pods(req.Pod.Namespace).Get(ctx, req.Pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil // nobody is left to ask whose it was: nothing is cleaned up
	}
	if err != nil {
		return false, err
	}
	vm, err := d.vmOf(ctx, pod)
	if err != nil {
		return false, fmt.Errorf("failed to get VMI info: %w", err)
	}
	if vm == nil || !d.persistent(ctx) {
		return false, nil
	}
	ips, err := d.owned(ctx, vm.handle(network))
	if err != nil {
		return false, err
	}
	left := false
	for _, a := range ips {
		if err := d.setOwner(ctx, a, vm.handle(network), func(attr *calicoAttribute) {
			switch {
			case owns(attr.Active, pod):
				attr.Active = nil
			case owns(attr.Alternate, pod):
				attr.Alternate = nil
			}
			left = left || len(attr.Active) > 0 || len(attr.Alternate) > 0
		}); err != nil {
			return false, err
		}
	}
	if vm.deleting && !left {
		return true, d.releaseHandle(ctx, vm.handle(network))
	}
	return true, nil
}

func owns(attrs map[string]string, o metav1.Object) bool {
	return len(attrs) > 0 && attrs["pod"] == o.GetName() && attrs["namespace"] == o.GetNamespace()
}

// Run is kube-controllers' IPAM garbage collection, and Felix's part in a migration.
func (d *calico) Run(ctx context.Context) error {
	if d.persistence {
		w := newWatcher(d.kube)
		if err := on(ctx, w, d.vmis, d.handOver, nil); err != nil {
			return err
		}
		defer w.start(ctx)()
	}
	leaks := map[string]*calicoLeak{}
	background(ctx, d.gcAfter/2, func(ctx context.Context) error { return d.collect(ctx, leaks) })
	return nil
}

// handOver makes the target of a migration the active owner, and the source the alternate one, once
// the domain runs on the target. Felix does it when it sees the guest announce itself there.
func (d *calico) handOver(ctx context.Context, vmi *instance) error {
	m := vmi.Status.MigrationState
	if m == nil || m.TargetPod == "" || m.DomainReadyTimestamp == nil {
		return nil
	}
	vm := &calicoVM{name: vmi.Name, namespace: vmi.Namespace}
	target := &metav1.ObjectMeta{Namespace: vmi.Namespace, Name: m.TargetPod}
	ips, err := d.owned(ctx, vm.handle(calicoNetwork))
	if err != nil {
		return err
	}
	for _, a := range ips {
		if err := d.setOwner(ctx, a, vm.handle(calicoNetwork), func(attr *calicoAttribute) {
			if owns(attr.Alternate, target) {
				attr.Active, attr.Alternate = attr.Alternate, attr.Active
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// calicoLeak is what the collector remembers of an allocation: its owner as first seen, and since when
// that owner is gone. The memory is not written anywhere: a stopped VM's record names no owner, so a
// collector that starts later never frees it (kube-controllers, node controller's IPAM part).
type calicoLeak struct {
	attrs map[string]string
	since time.Time
}

func (d *calico) collect(ctx context.Context, seen map[string]*calicoLeak) error {
	blocks, err := d.blocks.list(ctx, "")
	if err != nil {
		return err
	}
	present := map[string]bool{}
	for _, b := range blocks {
		for n, i := range b.Spec.Allocations {
			if i == nil {
				continue
			}
			a, attr := b.addr(n), b.Spec.Attributes[*i]
			id := attr.Handle + "/" + a.String()
			present[id] = true
			if seen[id] == nil {
				seen[id] = &calicoLeak{attrs: maps.Clone(attr.Active)}
			}
			leak := seen[id]
			valid, nodeGone := d.valid(ctx, leak.attrs, a)
			switch {
			case valid:
				leak.since = time.Time{}
				continue
			case nodeGone:
			case leak.since.IsZero():
				leak.since = time.Now()
				continue
			case time.Since(leak.since) <= d.gcAfter:
				continue
			}
			if err := d.releaseAddress(ctx, a, attr.Handle); err != nil {
				return err
			}
		}
	}
	maps.DeleteFunc(seen, func(id string, _ *calicoLeak) bool { return !present[id] })
	return nil
}

// valid says whether an allocation still has its owner, and whether its node is gone too. In doubt it is valid.
func (d *calico) valid(ctx context.Context, attrs map[string]string, a netip.Addr) (ok, nodeGone bool) {
	ns, name := attrs["namespace"], attrs["pod"]
	if ns == "" || name == "" {
		return true, false
	}
	_, err := d.core.CoreV1().Nodes().Get(ctx, attrs["node"], metav1.GetOptions{})
	nodeGone = apierrors.IsNotFound(err)
	if vmi, isVM := attrs["vmi-name"]; isVM {
		_, err := d.vms.get(ctx, ns, vmi)
		if !apierrors.IsNotFound(err) {
			return true, nodeGone
		}
		i, err := d.vmis.get(ctx, ns, vmi)
		if err == nil {
			return owner(i, "VirtualMachine") == nil, nodeGone
		}
		return !apierrors.IsNotFound(err), nodeGone
	}
	pod, err := d.core.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return !apierrors.IsNotFound(err), nodeGone
	}
	return !podGone(pod, a) && pod.Spec.NodeName == attrs["node"], nodeGone
}
