package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// archive answers the API requests of plugin detection from the objects of a dump, so that a dump
// and a cluster are understood by the same code. It serves nothing else.
type archive struct {
	kinds map[schema.GroupResource]*archived
	// groups are those that the cluster certainly served.
	groups map[string]bool
	// crds says that the dump has CustomResourceDefinitions: only then is a group that is not
	// among them one that the cluster does not have.
	crds bool
}

func newArchive() *archive {
	return &archive{kinds: map[schema.GroupResource]*archived{}, groups: map[string]bool{}}
}

// archived are the objects of one kind.
type archived struct {
	kind    string
	objects []archivedObject
}

type archivedObject struct {
	head
	raw json.RawMessage
}

// implied are the workloads that don't run without an API group: with one of them in the dump the
// group was served, though the dump may have no object of it.
var implied = map[string]string{
	"DaemonSet/calico-node":          "crd.projectcalico.org",
	"DaemonSet/canal":                "crd.projectcalico.org",
	"Deployment/kube-ovn-controller": "kubeovn.io",
	"DaemonSet/spiderpool-agent":     "spiderpool.spidernet.io",
}

// unarchived are kinds of which a dump may have very many, and that detection does not read.
var unarchived = []string{"Secret", "Event", "ReplicaSet", "Endpoints", "EndpointSlice", "Lease", "ControllerRevision"}

func (a *archive) add(group string, raw json.RawMessage, h head) error {
	if slices.Contains(unarchived, h.Kind) {
		return nil
	}
	if group != "" {
		a.groups[group] = true
	}
	if g, ok := implied[h.Kind+"/"+h.Metadata.Name]; ok {
		a.groups[g] = true
	}
	if h.Kind == "CustomResourceDefinition" {
		return a.addCRD(raw)
	}
	at := schema.GroupResource{Group: group, Resource: resource(h.Kind)}
	if a.kinds[at] == nil {
		a.kinds[at] = &archived{kind: h.Kind}
	}
	a.kinds[at].objects = append(a.kinds[at].objects, archivedObject{h, raw})
	return nil
}

func (a *archive) addCRD(raw json.RawMessage) error {
	var crd struct {
		Spec struct {
			Group string `json:"group"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &crd); err != nil {
		return err
	}
	a.crds = true
	a.groups[crd.Spec.Group] = true
	return nil
}

// resource is the name of a kind in URLs.
func resource(kind string) string {
	if kind == "NetworkAttachmentDefinition" {
		return "network-attachment-definitions"
	}
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Version: "v1", Kind: kind})
	return plural.Resource
}

// detect finds out which network plugins the dumped cluster had.
func (a *archive) detect(ctx context.Context) (*profile.Cluster, error) {
	cfg := &rest.Config{Host: "http://dump", ContentConfig: rest.ContentConfig{ContentType: "application/json"}, QPS: -1}
	client := &http.Client{Transport: a}
	core, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	return profile.Detect(ctx, profile.Reader{Core: core, Dynamic: dyn})
}

// RoundTrip answers GET requests as an API server does.
func (a *archive) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := a.answer(r)
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(raw)), ContentLength: int64(len(raw)),
	}, nil
}

func (a *archive) answer(r *http.Request) (int, any) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/api":
		return http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case r.URL.Path == "/apis":
		return http.StatusOK, a.groupList()
	case parts[0] == "api" && len(parts) > 2:
		return a.object("", parts[1], parts[2:], r)
	case parts[0] == "apis" && len(parts) > 3:
		return a.object(parts[1], parts[1]+"/"+parts[2], parts[3:], r)
	}
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound, "the dump has no "+r.URL.Path)
}

func (a *archive) groupList() metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for g := range a.groups {
		v := metav1.GroupVersionForDiscovery{GroupVersion: g + "/v1", Version: "v1"}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: g, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	return list
}

// object answers for one object, or for the list of a resource. A kind that the dump has nothing
// of is forbidden rather than not found: nothing follows from it.
func (a *archive) object(group, version string, path []string, r *http.Request) (int, any) {
	namespace := ""
	if path[0] == "namespaces" && len(path) > 2 {
		namespace, path = path[1], path[2:]
	}
	kind := a.kinds[schema.GroupResource{Group: group, Resource: path[0]}]
	if kind == nil {
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden, "the dump has no "+path[0])
	}
	if len(path) > 1 {
		for _, o := range kind.objects {
			if o.Metadata.Name == path[1] && o.Metadata.Namespace == namespace {
				return http.StatusOK, o.raw
			}
		}
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("the dump has no %s %q", path[0], path[1]))
	}
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	items := []json.RawMessage{}
	for _, o := range kind.objects {
		about := fields.Set{"metadata.name": o.Metadata.Name, "metadata.namespace": o.Metadata.Namespace}
		if (namespace == "" || o.Metadata.Namespace == namespace) && byLabel.Matches(labels.Set(o.Metadata.Labels)) && byField.Matches(about) {
			items = append(items, o.raw)
		}
	}
	return http.StatusOK, map[string]any{"apiVersion": version, "kind": kind.kind + "List", "metadata": map[string]any{}, "items": items}
}

func failure(code int, reason metav1.StatusReason, message string) (int, any) {
	return code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Message: message, Code: int32(code)}
}
