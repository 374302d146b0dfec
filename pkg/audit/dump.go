package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubevirtv1 "kubevirt.io/api/core/v1"
	snapshotv1 "kubevirt.io/api/snapshot/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Dump says where a dump is and what it stands for.
type Dump struct {
	// Paths are files, directories that are searched for .yaml, .yml and .json, or "-" for Stdin.
	Paths []string
	Stdin io.Reader
	// LedgerNamespace is the namespace of the ledger to audit.
	LedgerNamespace string
	// Whole says that the dump has all virtual machines of the cluster. Otherwise only those of
	// namespaces from which it has any are taken to be complete, and of Namespace.
	Whole     bool
	Namespace string
	// Now is the present time; the dump is taken to be as old as its newest file.
	Now time.Time
}

// Load reads the dump. Objects of kinds that the rules don't look at are passed over; a file that
// can't be parsed is an error that names it.
func (d Dump) Load(ctx context.Context) (*Snapshot, error) {
	r := &dumpReader{seen: map[string]int64{}, archive: newArchive()}
	for _, path := range d.Paths {
		if err := r.path(path, d.Stdin); err != nil {
			return nil, err
		}
	}
	if r.objects == 0 {
		return nil, fmt.Errorf("no Kubernetes object in %s: write a dump with kubectl get virtualmachines,virtualmachineinstances,pods,nodes,configmaps -A -o yaml", strings.Join(d.Paths, ", "))
	}
	s := &r.Snapshot
	s.Now = d.Now
	if !r.newest.IsZero() && r.newest.Before(d.Now) {
		s.Now = r.newest
	}
	s.LedgerNamespace = d.LedgerNamespace
	var rows []corev1.ConfigMap
	for _, cm := range r.configMaps {
		if cm.Namespace == d.LedgerNamespace {
			rows = append(rows, cm)
		} else {
			s.addLedger(cm.Namespace)
		}
	}
	s.Ledger = ledger.ParseSnapshot(rows)
	s.Restoring = restoring(r.restores)
	s.Complete, s.Unordered = r.complete(d), true
	s.Gaps = r.gaps(d, len(rows))
	return s, r.plugins(ctx)
}

// plugins finds out from the dump what serves its networks. Only a dump with
// CustomResourceDefinitions proves that a plugin is not there.
func (r *dumpReader) plugins(ctx context.Context) error {
	s := &r.Snapshot
	found, err := r.archive.detect(ctx)
	if err != nil {
		return err
	}
	n, why, err := NetworksOf(ctx, found, s)
	if err != nil {
		return err
	}
	if !r.archive.crds {
		n.Reads = nil
		if n.Primary != nil && n.Primary.Name() == profile.None {
			n.Primary, why = nil, "the dump shows none, and has no customresourcedefinitions to tell that there is none"
		}
	}
	s.Networks = n
	if n.Primary == nil {
		s.Gaps[Plugins] = Gap{Partial: true, Reason: "the network plugin of the pod network is not established: " + why}
	}
	return nil
}

// complete says of which namespaces the dump has all virtual machines. One without any may simply
// not have been dumped.
func (r *dumpReader) complete(d Dump) func(string) bool {
	if d.Whole {
		return nil
	}
	seen := map[string]bool{d.Namespace: d.Namespace != ""}
	for n := range r.VMs {
		seen[r.VMs[n].Namespace] = true
	}
	return func(namespace string) bool { return seen[namespace] }
}

// gaps are the kinds that the dump has nothing of though it should. A dump does not tell "none"
// from "not asked for": running instances without any pod mean that pods were not dumped.
func (r *dumpReader) gaps(d Dump, rows int) map[Resource]Gap {
	gaps := map[Resource]Gap{}
	missing := func(res Resource, dumped int, because string) {
		if dumped == 0 && because != "" {
			gaps[res] = Gap{Reason: fmt.Sprintf("the dump has no %s, though it has %s", res, because)}
		}
	}
	running := ""
	for n := range r.VMIs {
		if r.VMIs[n].IsRunning() {
			running = "running virtualmachineinstances"
		}
	}
	scheduled := ""
	for n := range r.Pods {
		if r.Pods[n].Spec.NodeName != "" {
			scheduled = "pods on nodes"
		}
	}
	if len(r.Pods) == 0 {
		missing(Pods, 0, running)
	}
	missing(Nodes, len(r.Nodes), scheduled)
	missing(VMs, len(r.VMs), ownedBy(r.VMIs))
	if rows == 0 {
		gaps[Ledger] = Gap{Reason: noLedger(d.LedgerNamespace, r.OtherLedgers)}
	}
	return gaps
}

// ownedBy says that there are instances that virtual machines own.
func ownedBy(vmis []kubevirtv1.VirtualMachineInstance) string {
	for n := range vmis {
		if o := metav1.GetControllerOf(&vmis[n]); o != nil && o.Kind == "VirtualMachine" {
			return "virtualmachineinstances of some"
		}
	}
	return ""
}

// dumpReader collects objects. One that is in several files, as in must-gather trees, counts once,
// in its newest version.
type dumpReader struct {
	Snapshot
	configMaps []corev1.ConfigMap
	restores   []snapshotv1.VirtualMachineRestore
	seen       map[string]int64
	objects    int
	newest     time.Time
	// archive has everything else, for the detection of network plugins.
	archive *archive
}

func (r *dumpReader) path(path string, stdin io.Reader) error {
	if path == "-" {
		r.newest = time.Now()
		return r.stream("standard input", stdin, true)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err // it names the path
	}
	if !info.IsDir() {
		return r.file(path, info, true)
	}
	return filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return r.file(file, info, false)
	})
}

func (r *dumpReader) file(path string, info fs.FileInfo, named bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if t := info.ModTime(); t.After(r.newest) {
		r.newest = t
	}
	return r.stream(path, f, named)
}

// stream reads JSON documents one after the other, or YAML documents separated by "---". named is
// set for a file that the user named: what is no object is then an error.
func (r *dumpReader) stream(name string, in io.Reader, named bool) error {
	buffered := bufio.NewReaderSize(in, 64<<10)
	next := jsonDocuments(buffered)
	if !startsJSON(buffered) {
		next = yamlDocuments(buffered)
	}
	for n := 1; ; n++ {
		raw, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = r.document(raw, named)
		}
		if err != nil {
			return fmt.Errorf("%s, document %d: %w", name, n, err)
		}
	}
}

func startsJSON(in *bufio.Reader) bool {
	for n := 1; ; n++ {
		b, err := in.Peek(n)
		if err != nil {
			return false
		}
		switch b[n-1] {
		case ' ', '\t', '\r', '\n':
		default:
			return b[n-1] == '{' || b[n-1] == '['
		}
	}
}

func jsonDocuments(in io.Reader) func() (json.RawMessage, error) {
	decoder := json.NewDecoder(in)
	return func() (json.RawMessage, error) {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		return raw, err
	}
}

func yamlDocuments(in *bufio.Reader) func() (json.RawMessage, error) {
	reader := utilyaml.NewYAMLReader(in)
	return func() (json.RawMessage, error) {
		raw, err := reader.Read()
		if err != nil {
			return nil, err
		}
		return yaml.YAMLToJSON(raw)
	}
}

// head is what tells what an object is.
type head struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             types.UID         `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

func (r *dumpReader) document(raw json.RawMessage, named bool) error {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if raw[0] != '{' {
		if named {
			return errors.New("it is no Kubernetes object")
		}
		return nil // must-gather trees hold much else
	}
	var h head
	if err := json.Unmarshal(raw, &h); err != nil {
		return err
	}
	if h.Items != nil && (h.Kind == "" || strings.HasSuffix(h.Kind, "List")) {
		for n, item := range h.Items {
			if err := r.item(item, h.TypeMeta); err != nil {
				return fmt.Errorf("item %d: %w", n, err)
			}
		}
		return nil
	}
	if h.Kind == "" {
		if named {
			return errors.New("it is no Kubernetes object: it has no kind")
		}
		return nil
	}
	return r.object(raw, h)
}

// item reads an element of a list. In typed lists elements don't repeat their kind.
func (r *dumpReader) item(raw json.RawMessage, list metav1.TypeMeta) error {
	var h head
	if err := json.Unmarshal(raw, &h); err != nil {
		return err
	}
	if h.Kind == "" {
		h.Kind, h.APIVersion = strings.TrimSuffix(list.Kind, "List"), list.APIVersion
		raw = append(fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,`, h.APIVersion, h.Kind), bytes.TrimPrefix(bytes.TrimSpace(raw), []byte("{"))...)
	}
	return r.object(raw, h)
}

func (r *dumpReader) object(raw json.RawMessage, h head) error {
	r.objects++
	group, _, grouped := strings.Cut(h.APIVersion, "/")
	if !grouped {
		group = ""
	}
	if group == "" && h.Kind == "Namespace" {
		return r.cluster(h)
	}
	read, again := r.newer(group, h)
	if !read {
		return nil
	}
	switch group + "/" + h.Kind {
	case "kubevirt.io/VirtualMachine":
		return into(raw, h, again, &r.VMs, trimVM)
	case "kubevirt.io/VirtualMachineInstance":
		return into(raw, h, again, &r.VMIs, trimVMI)
	case "kubevirt.io/VirtualMachineInstanceMigration":
		return into(raw, h, again, &r.Migrations, nil)
	case "snapshot.kubevirt.io/VirtualMachineRestore":
		return into(raw, h, again, &r.restores, nil)
	case "/Pod":
		return into(raw, h, again, &r.Pods, trimPod)
	case "/Node":
		return into(raw, h, again, &r.Nodes, nil)
	case "/ConfigMap":
		if h.Metadata.Labels[ledger.LabelKind] != "" {
			return into(raw, h, again, &r.configMaps, nil)
		}
	}
	if again {
		return nil // two versions of it say the same about the network plugin
	}
	return r.archive.add(group, raw, h)
}

// newer says whether this version of an object is to be read, and whether an older one was.
func (r *dumpReader) newer(group string, h head) (read, again bool) {
	key := strings.Join([]string{group, h.Kind, h.Metadata.Namespace, h.Metadata.Name}, "/")
	version, _ := strconv.ParseInt(h.Metadata.ResourceVersion, 10, 64)
	last, again := r.seen[key]
	if again && version <= last {
		return false, true
	}
	r.seen[key] = version
	return true, again
}

// cluster notes whose dump it is.
func (r *dumpReader) cluster(h head) error {
	uid := h.Metadata.UID
	if h.Metadata.Name != metav1.NamespaceSystem || uid == "" {
		return nil
	}
	if r.Cluster != "" && uid != r.Cluster {
		return fmt.Errorf("the dump is of two clusters: namespace kube-system has UID %s and UID %s; audit them one by one", r.Cluster, uid)
	}
	r.Cluster = uid
	return nil
}

// into decodes an object and puts it in a list, in place of an older version where there was one.
func into[T any, P interface {
	*T
	metav1.Object
}](raw json.RawMessage, h head, again bool, list *[]T, trim func(P)) error {
	var item T
	if err := json.Unmarshal(raw, &item); err != nil {
		return fmt.Errorf("%s %s/%s: %w", strings.ToLower(h.Kind), h.Metadata.Namespace, h.Metadata.Name, err)
	}
	if trim != nil {
		trim(&item)
	}
	if again {
		*list = slices.DeleteFunc(*list, func(old T) bool {
			return P(&old).GetName() == h.Metadata.Name && P(&old).GetNamespace() == h.Metadata.Namespace
		})
	}
	*list = append(*list, item)
	return nil
}
