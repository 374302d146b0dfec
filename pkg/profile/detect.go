package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Reader is what detection and records are read with.
type Reader struct {
	Core    kubernetes.Interface
	Dynamic dynamic.Interface
	// listed is set for the reads of many machines.
	listed *listed
}

// Detect finds out which network plugins a cluster has and how they are configured. It makes a
// bounded number of requests, about twenty, whatever the size of the cluster. What can't be read
// becomes an Unverified capability with the reason, not an error: the only errors are those of
// ctx.
func Detect(ctx context.Context, r Reader) (*Cluster, error) {
	c := &Cluster{reader: r, groups: groupsOf(r.Core), attachments: map[string]attachmentResult{}}
	var wg sync.WaitGroup
	wg.Go(func() { c.calico = detectCalico(ctx, r, c.groups) })
	wg.Go(func() { c.kubeOVN = detectKubeOVN(ctx, r, c.groups) })
	wg.Go(func() { c.spiderpool = detectSpiderpool(ctx, r, c.groups) })
	wg.Go(func() { c.others, c.unseen = detectOthers(ctx, r, c.groups) })
	wg.Wait()
	return c, ctx.Err()
}

// setting is a value that was read, or the reason why it could not be. The zero value has not been
// looked at, as in a Cluster that was never detected.
type setting[T any] struct {
	value T
	read  bool
	err   error
}

func known[T any](v T) setting[T] { return setting[T]{value: v, read: true} }

func unknown[T any](err error) setting[T] { return setting[T]{err: err} }

var errNotRead = errors.New("it has not been looked at")

// failed says why the value is not known, nil where it is.
func (s setting[T]) failed() error {
	if s.err == nil && !s.read {
		return errNotRead
	}
	return s.err
}

// presence says whether a plugin is in the cluster.
type presence = setting[bool]

// groups are the API groups that the server serves, with their versions. Discovery is open to
// every user, so that a missing group proves that its plugin is missing where reading its objects
// would only be forbidden.
type groups struct {
	versions map[string][]string
	err      error
}

func groupsOf(core kubernetes.Interface) groups {
	list, err := core.Discovery().ServerGroups()
	if err != nil {
		return groups{err: fmt.Errorf("API groups can't be listed: %w", err)}
	}
	g := groups{versions: map[string][]string{}}
	for _, group := range list.Groups {
		for _, v := range group.Versions {
			g.versions[group.Name] = append(g.versions[group.Name], v.Version)
		}
	}
	return g
}

// missing says that the group is certainly not served.
func (g groups) missing(group string) bool { return g.err == nil && len(g.versions[group]) == 0 }

// get reads one object of any resource. namespace is empty for a cluster-scoped one.
func (r Reader) get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	if r.listed != nil {
		if o, err, ok := r.listed.get(ctx, r.Dynamic, gvr, namespace, name); ok {
			return o, err
		}
	}
	o, err := r.Dynamic.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unreadable(fmt.Sprintf("%s/%s", gvr.GroupResource(), name), err)
	}
	return o, nil
}

// unreadable names the object of a failed read. It keeps the cause, so that NotFound can be told
// from everything else.
func unreadable(object string, err error) error {
	return fmt.Errorf("%s can't be read: %w", object, err)
}

// absent says that an object is certainly not there.
func absent(err error) bool { return apierrors.IsNotFound(err) }

// workload is what is read of a DaemonSet or Deployment of a plugin.
type workload struct {
	kind, namespace, name string
	args                  []string
	image                 string
}

func (w workload) String() string { return fmt.Sprintf("%s %s/%s", w.kind, w.namespace, w.name) }

// version is the tag of the image, "" where it is none.
func (w workload) version() string {
	image, _, _ := strings.Cut(w.image, "@")
	i := strings.LastIndex(image, ":")
	if i < 0 || strings.Contains(image[i:], "/") {
		return ""
	}
	if tag := image[i+1:]; parseVersion(tag) != nil {
		return tag
	}
	return ""
}

// flag returns the value of a boolean flag among the arguments; ok is false where it is not given.
func (w workload) flag(name string) (value string, ok bool) {
	for _, a := range w.args {
		a = "-" + strings.TrimLeft(a, "-")
		if a == "-"+name {
			value, ok = "true", true
		} else if v, found := strings.CutPrefix(a, "-"+name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

func newWorkload(kind string, o metav1.Object, t corev1.PodTemplateSpec) workload {
	w := workload{kind: kind, namespace: o.GetNamespace(), name: o.GetName()}
	for n, c := range t.Spec.Containers {
		if n == 0 || c.Name == o.GetName() {
			w.image = c.Image
			w.args = append(slices.Clone(c.Command), c.Args...)
		}
	}
	return w
}

// daemonSet finds the first of several DaemonSets, named namespace/name. The error is NotFound
// where all are certainly missing.
func (r Reader) daemonSet(ctx context.Context, names ...string) (workload, error) {
	var failed error
	for _, full := range names {
		namespace, name, _ := strings.Cut(full, "/")
		d, err := r.Core.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return newWorkload("daemonset", d, d.Spec.Template), nil
		}
		if failed == nil || absent(failed) {
			failed = unreadable("daemonset "+full, err)
		}
	}
	return workload{}, failed
}

func parseVersion(s string) *version.Version {
	v, err := version.ParseGeneric(s)
	if err != nil {
		return nil
	}
	return v
}

// shortVersion is major.minor for sentences.
func shortVersion(s string) string {
	v := parseVersion(s)
	if v == nil {
		return s
	}
	return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
}

// before says whether a version is older than major.minor; ok is false where it can't be told.
func before(s string, major, minor uint) (older, ok bool) {
	v := parseVersion(s)
	if v == nil {
		return false, false
	}
	return v.Major() < major || v.Major() == major && v.Minor() < minor, true
}

var errNotDetected = errors.New("was not found in this cluster")
