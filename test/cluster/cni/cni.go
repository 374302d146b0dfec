// Package cni plays the network plugin of the test cluster: to a client (its CRDs, DaemonSet,
// configuration and allocation records) and to a pod (what its IPAM answers to ADD and DEL).
// Every driver follows the contract of the real plugin, its traps included; it must never be
// kinder than the original. What is modelled, and from which source, is in
// docs/design/cluster-cni.md.
package cni

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// Driver is one network plugin. Install is called once, before any pod is created; Add and Del
// may be called concurrently.
type Driver interface {
	// Name is the value of CLUSTER_CNI that selects the driver.
	Name() string
	// Install creates what a client sees of the plugin: CRDs, workloads, configuration, pools. It is idempotent.
	Install(ctx context.Context) error
	// Run does what the plugin's controllers do on their own (freeing the addresses of deleted
	// VMs, for example) until ctx ends.
	Run(ctx context.Context) error
	// Add is CNI ADD for the sandbox of a pod. An *Error becomes events on the pod, and the
	// kubelet tries again, as it does with a real plugin. After a failed Add the caller sends Del
	// for the same container, as containerd does: what was half allocated is freed there.
	Add(ctx context.Context, req Request) (Result, error)
	// Del is CNI DEL. It is idempotent and succeeds where nothing is left to free.
	Del(ctx context.Context, req Request) error
}

// Request names the sandbox that an ADD or DEL is for.
type Request struct {
	Pod         *corev1.Pod
	Node        string
	ContainerID string
}

// Result is what the sandbox got.
type Result struct {
	// IPs holds at most one address a family, the first one is status.podIP.
	IPs []netip.Addr
	MAC string
	// Annotations are written on the pod, as the plugin or Multus writes them.
	Annotations map[string]string
}

// Event is an event that the plugin itself records on the pod, besides the kubelet's own
// FailedCreatePodSandBox.
type Event struct {
	Type, Reason, Message, Component string
}

// Error is an ADD that failed as the plugin would say it. Events come from the plugin; the
// kubelet's FailedCreatePodSandBox with Message inside is added by the caller. Message begins
// as libcni begins it: plugin type="calico" failed (add): …
type Error struct {
	Message string
	Events  []Event
}

func (e *Error) Error() string { return e.Message }

// Options are what every driver is built from.
type Options struct {
	// Config is a client configuration with cluster-admin rights.
	Config *rest.Config
	// PodCIDRs are where automatic addresses come from, one a family at most. The first address of
	// each is the gateway. Addresses that are asked for have to be in them too, or in a pool that
	// was added.
	PodCIDRs []netip.Prefix
	// GCAfter replaces the time that a record without an owner survives in the plugin's own garbage
	// collector. Zero keeps the plugin's default: 15 minutes in Calico, 6 in Kube-OVN, 10 in Spiderpool.
	GCAfter time.Duration
}

var drivers = map[string]func(Options) (Driver, error){
	"none":        newNone,
	"calico-3.31": newCalico331,
	"calico-3.32": newCalico332,
	"kube-ovn":    newKubeOVN,
	"spiderpool":  newSpiderpool,
}

// Names are the values that New knows, sorted.
func Names() []string { return slices.Sorted(maps.Keys(drivers)) }

// New returns the driver for a value of CLUSTER_CNI.
func New(name string, o Options) (Driver, error) {
	f, ok := drivers[name]
	if !ok {
		return nil, fmt.Errorf("unknown CNI %q: choose one of %v", name, Names())
	}
	v4, v6 := families(o.PodCIDRs)
	o.PodCIDRs = nil
	for _, p := range []*netip.Prefix{v4, v6} {
		if p != nil {
			o.PodCIDRs = append(o.PodCIDRs, p.Masked())
		}
	}
	if len(o.PodCIDRs) == 0 {
		return nil, fmt.Errorf("CNI %s: no pod CIDR", name)
	}
	return f(o)
}
