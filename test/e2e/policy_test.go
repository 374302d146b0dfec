package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// guard applies what the plugin prints, and returns once the API server enforces it: it compiles
// policies a moment after they are stored. The type checker must have nothing to warn of.
func (c *cluster) guard(t *testing.T) {
	t.Helper()
	r := c.vmip(t, "policy")
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("policy: %s", r)
	}
	c.kubectl(t, r.stdout, "apply", "-f", "-")
	w := &world{cluster: c, t: t}
	w.eventually("enforcement of the policy", func(ctx context.Context) (string, bool, error) {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "vmip-block-probe"}}
		_, err := c.core.CoreV1().ConfigMaps("vmip-system").Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(err), err != nil && strings.Contains(err.Error(), "ledger.vmip.io"), nil
	})
	w.eventually("type checking of the policy", func(ctx context.Context) (string, bool, error) {
		policy, err := c.core.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, "ledger.vmip.io", metav1.GetOptions{})
		if err != nil || policy.Status.TypeChecking == nil || policy.Status.ObservedGeneration != policy.Generation {
			return "not checked", false, err
		}
		for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("type checking %s: %s", warning.FieldRef, warning.Warning)
		}
		return "", true, nil
	})
}

// configMaps returns the ledger's ConfigMaps as a user sees them.
func (c *cluster) configMaps(t *testing.T, user string) corev1client.ConfigMapInterface {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS, cfg.Burst, cfg.Impersonate.UserName = 500, 1000, user
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return core.CoreV1().ConfigMaps("vmip-system")
}

const (
	guardedBlock = "vmip-block-lan-198.51.100.0-24"
	guardedSix   = "vmip-block-lan-2001-0db8-0001-0000-0000-0000-0000-0000-120"
	guardedPool  = "vmip-pool-lab"
)

// ledgerRow is one row as the plugin writes it.
func ledgerRow(vm, state, more string) string {
	return `{"vm":"` + vm + `","uid":"5d2b8e5c-0f54-4d1c-9d3b-0c86a1b1f0aa","interface":"default","mac":"02:00:00:00:00:20","state":"` + state +
		`","op":"01JDZ9V8Q2M4K6T8W0Y2A4C6E8","since":"2026-12-01T10:00:00Z"` + more + `}`
}

// ownerLabel is the label of a machine's interface.
func ownerLabel(vm string) string {
	sum := sha256.Sum256([]byte(vm + "/default"))
	return "owner.vmip.io/" + hex.EncodeToString(sum[:])[:32]
}

// object is an object of the ledger with the labels and annotations that the plugin gives it.
func object(name, kind string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"vmip.io/kind": kind, "vmip.io/network": "lan"},
		Annotations: map[string]string{"vmip.io/format": "v1alpha1"},
	}, Data: data}
}

// reserveRow is what a reserve does to a block: row and label.
func reserveRow(cm *corev1.ConfigMap, key, vm string) {
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[key] = ledgerRow(vm, "reserved", "")
	cm.Labels[ownerLabel(vm)] = ""
}

const (
	held       = `,"until":"2026-12-01T10:10:00Z"`
	labSpec    = "cidrs:\n- 198.51.100.0/22\nholdFor: 10m0s\nnamespaces:\n- t-x\nnetwork: lan\nopenBlocks: 2\nprofile: auto\n"
	damagedRow = `{"vm":"t-x/db-9"`
)

// plant writes the ledger that the table starts from. It has to come before the policy, which
// would refuse the damaged row.
func plant(t *testing.T, maps corev1client.ConfigMapInterface) {
	t.Helper()
	block := object(guardedBlock, "block", nil)
	block.Annotations["vmip.io/fence"] = "01JDZ9V8Q2M4K6T8W0Y2A4C6E7"
	reserveRow(block, "198.51.100.10", "t-x/db-1")
	reserveRow(block, "198.51.100.11", "t-y/web-1")
	reserveRow(block, "198.51.100.13", "t-y/old-1")
	reserveRow(block, "198.51.100.14", "t-x/old-1")
	block.Data["198.51.100.12"] = damagedRow
	block.Data["198.51.100.13"] = ledgerRow("t-y/old-1", "held", held)
	block.Data["198.51.100.14"] = ledgerRow("t-x/old-1", "held", held)
	block.Data["198.51.100.15"] = `{"vm":"t-x/web","state":"foreign","since":"2026-12-01T10:00:00Z","reason":"pod"}`
	block.Data["198.51.100.17"] = strings.Replace(ledgerRow("t-x/db-1", "reserved", ""), "}", `,"vm":"t-y/web-1"}`, 1)
	block.Data["198.51.100.18"] = strings.Replace(ledgerRow("t-x/db-1", "reserved", ""), "}", `,"VM":"t-y/web-1"}`, 1)
	six := object(guardedSix, "block", nil)
	reserveRow(six, "2001-0db8-0001-0000-0000-0000-0000-0010", "t-x/db-1")
	pool := object(guardedPool, "pool", map[string]string{"spec": labSpec})
	pool.Labels["vmip.io/pool"] = "lab"
	busy := object("vmip-pool-busy", "pool", map[string]string{"spec": labSpec, "pending": labSpec})
	busy.Labels["vmip.io/pool"] = "busy"
	registry := object("vmip-network-lan", "network", map[string]string{"pools": "lab:\n- 198.51.100.0/22\n", "cluster": "c1"})
	empty := object("vmip-block-lan-198.51.101.0-24", "block", nil)
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "unrelated"}, Data: map[string]string{"a": "b"}}
	for _, cm := range []*corev1.ConfigMap{block, six, pool, busy, registry, empty, other} {
		if _, err := maps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// write is one write to the ledger. It says who may make it: for each kind of writer the text that
// the refusal has to contain, "" where the write is allowed.
type write struct {
	name   string
	object string
	// change alters the object as it is; nil deletes it.
	change func(*corev1.ConfigMap)
	// create starts from nothing instead.
	create                     bool
	operator, tenant, stranger string
}

const (
	noPatch   = "written by those who may patch virtualmachines.kubevirt.io there"
	notYours  = "rows that other namespaces have or had, and damaged ones, stay as they are: "
	twoSpaces = "one write has rows of one namespace"
	poolKept  = "no pool is made, and of a pool only openBlocks is changed, to more"
	kept      = "nothing of the ledger is deleted"
	labelKept = "an owner label goes only with a row"
	tooMany   = "adds at most as many owner labels as it writes rows"
	metaKept  = "annotations, such as vmip.io/fence, finalizers and labels other than those of owners stay as they are"
	registry  = "the registry of pools stays as it is"
	noObject  = "do not make an object of the ledger"
	hasRows   = "has rows: blocks are never deleted"
)

// everybody is refused the same.
func everybody(text, name, object string, change func(*corev1.ConfigMap)) write {
	return write{name: name, object: object, change: change, operator: text, tenant: text, stranger: text}
}

// rowOf writes one row of t-x, which is refused to everybody.
func rowOf(text, name, row string) write {
	return everybody(text, name, guardedBlock, func(cm *corev1.ConfigMap) {
		reserveRow(cm, "198.51.100.20", "t-x/db-2")
		cm.Data["198.51.100.20"] = row
	})
}

func malformed(name, row string) write { return rowOf("malformed rows: 198.51.100.20 (", name, row) }

func impossible(name, row string) write {
	return rowOf("rows with a time or an address that does not exist: 198.51.100.20", name, row)
}

func misplaced(object, key string) write {
	return everybody("keys that are no address of block "+object+": "+key, "key "+key, object, func(cm *corev1.ConfigMap) { reserveRow(cm, key, "t-x/db-2") })
}

func spec(from, to string) func(*corev1.ConfigMap) {
	return func(cm *corev1.ConfigMap) { cm.Data["spec"] = strings.Replace(cm.Data["spec"], from, to, 1) }
}

func writes() []write {
	good := ledgerRow("t-x/db-2", "reserved", "")
	list := []write{
		// What reserve and release do.
		{name: "reserve own", object: guardedBlock, stranger: noPatch, change: func(cm *corev1.ConfigMap) { reserveRow(cm, "198.51.100.20", "t-x/db-2") }},
		{name: "reserve own IPv6", object: guardedSix, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			reserveRow(cm, "2001-0db8-0001-0000-0000-0000-0000-00ff", "t-x/db-2")
		}},
		{name: "reserve own in a new block", object: "vmip-block-lan-198.51.102.0-24", create: true, stranger: noPatch, change: func(cm *corev1.ConfigMap) { reserveRow(cm, "198.51.102.0", "t-x/db-2") }},
		{name: "an empty block", object: "vmip-block-lan-198.51.102.0-24", create: true, change: func(*corev1.ConfigMap) {}},
		{name: "release own", object: guardedBlock, stranger: noPatch, change: func(cm *corev1.ConfigMap) { cm.Data["198.51.100.10"] = ledgerRow("t-x/db-1", "releasing", "") }},
		{name: "hold own", object: guardedBlock, stranger: noPatch, change: func(cm *corev1.ConfigMap) { cm.Data["198.51.100.10"] = ledgerRow("t-x/db-1", "held", held) }},
		{name: "own row for a machine to come", object: guardedBlock, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			reserveRow(cm, "198.51.100.20", "t-x/db-2")
			cm.Data["198.51.100.20"] = `{"vm":"t-x/db-2","interface":"lan_2","state":"leaving","op":"01JDZ9V8Q2M4K6T8W0Y2A4C6E8","since":"2028-02-29T10:00:00Z","replaces":"2001:db8::1"}`
		}},
		{name: "own row that cooled down handed on", object: guardedBlock, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			reserveRow(cm, "198.51.100.14", "t-x/db-2")
			delete(cm.Labels, ownerLabel("t-x/old-1"))
		}},
		{name: "own row removed", object: guardedBlock, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			delete(cm.Data, "198.51.100.14")
			delete(cm.Labels, ownerLabel("t-x/old-1"))
		}},
		{name: "nothing changed", object: guardedBlock, change: func(*corev1.ConfigMap) {}},
		// The damaged row stands in the block all the time; this names the case.
		{name: "damaged row untouched while own row is written", object: guardedBlock, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			cm.Data["198.51.100.10"] = ledgerRow("t-x/db-1", "reserved", "")
			reserveRow(cm, "198.51.100.16", "t-x/db-3")
		}},

		// Rows of others.
		{name: "row of another namespace changed", object: guardedBlock, tenant: "rows of namespace t-y are " + noPatch, stranger: noPatch, change: func(cm *corev1.ConfigMap) { cm.Data["198.51.100.11"] = ledgerRow("t-y/web-1", "releasing", "") }},
		{name: "row of another namespace removed", object: guardedBlock, tenant: "rows of namespace t-y are " + noPatch, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			delete(cm.Data, "198.51.100.11")
			delete(cm.Labels, ownerLabel("t-y/web-1"))
		}},
		{name: "row of another namespace removed beside an own one", object: guardedBlock, tenant: notYours + "198.51.100.11", stranger: notYours + "198.51.100.11", change: func(cm *corev1.ConfigMap) {
			delete(cm.Data, "198.51.100.11")
			reserveRow(cm, "198.51.100.20", "t-x/db-2")
		}},
		{name: "row of another namespace taken over", object: guardedBlock, tenant: notYours + "198.51.100.11", stranger: notYours + "198.51.100.11", change: func(cm *corev1.ConfigMap) { reserveRow(cm, "198.51.100.11", "t-x/db-2") }},
		{name: "row of another namespace that cooled down taken over", object: guardedBlock, tenant: notYours + "198.51.100.13", stranger: notYours + "198.51.100.13", change: func(cm *corev1.ConfigMap) {
			reserveRow(cm, "198.51.100.13", "t-x/db-2")
			delete(cm.Labels, ownerLabel("t-y/old-1"))
		}},
		{name: "damaged row removed", object: guardedBlock, tenant: notYours + "198.51.100.12", stranger: notYours + "198.51.100.12", change: func(cm *corev1.ConfigMap) { delete(cm.Data, "198.51.100.12") }},
		{name: "damaged row written over", object: guardedBlock, tenant: notYours + "198.51.100.12", stranger: notYours + "198.51.100.12", change: func(cm *corev1.ConfigMap) { reserveRow(cm, "198.51.100.12", "t-x/db-2") }},
		{name: "foreign claim removed", object: guardedBlock, tenant: notYours + "198.51.100.15", stranger: notYours + "198.51.100.15", change: func(cm *corev1.ConfigMap) { delete(cm.Data, "198.51.100.15") }},
		{name: "foreign claim recorded", object: guardedBlock, tenant: "none of state foreign: not 198.51.100.20", stranger: "none of state foreign: not 198.51.100.20", change: func(cm *corev1.ConfigMap) {
			cm.Data["198.51.100.20"] = `{"vm":"pod t-x/web","interface":"","state":"foreign","since":"2026-12-01T10:00:00Z","reason":"\"p\" \u003c"}`
		}},
		{name: "row that names two owners", object: guardedBlock, tenant: notYours + "198.51.100.17", stranger: notYours + "198.51.100.17", change: func(cm *corev1.ConfigMap) { reserveRow(cm, "198.51.100.17", "t-x/db-2") }},
		{name: "row that names two owners, one in capitals", object: guardedBlock, tenant: notYours + "198.51.100.18", stranger: notYours + "198.51.100.18", change: func(cm *corev1.ConfigMap) { reserveRow(cm, "198.51.100.18", "t-x/db-2") }},
		{name: "two namespaces in one write", object: guardedBlock, tenant: twoSpaces, stranger: twoSpaces, change: func(cm *corev1.ConfigMap) {
			reserveRow(cm, "198.51.100.20", "t-x/db-2")
			reserveRow(cm, "198.51.100.21", "t-y/db-2")
		}},
		{name: "a namespace that begins alike", object: guardedBlock, tenant: "rows of namespace t are " + noPatch, stranger: noPatch, change: func(cm *corev1.ConfigMap) { reserveRow(cm, "198.51.100.20", "t/db-2") }},

		// Labels and annotations.
		{name: "owner label removed", object: guardedBlock, tenant: labelKept, stranger: labelKept, change: func(cm *corev1.ConfigMap) { delete(cm.Labels, ownerLabel("t-y/web-1")) }},
		{name: "owner label removed with a release", object: guardedBlock, tenant: labelKept, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			cm.Data["198.51.100.10"] = ledgerRow("t-x/db-1", "releasing", "")
			delete(cm.Labels, ownerLabel("t-y/web-1"))
		}},
		{name: "more labels than rows", object: guardedBlock, tenant: tooMany, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			reserveRow(cm, "198.51.100.20", "t-x/db-2")
			cm.Labels[ownerLabel("t-y/db-7")] = ""
		}},
		{name: "a label without a row", object: guardedBlock, tenant: tooMany, stranger: tooMany, change: func(cm *corev1.ConfigMap) { cm.Labels[ownerLabel("t-y/db-7")] = "" }},
		{name: "fence changed", object: guardedBlock, tenant: metaKept, stranger: metaKept, change: func(cm *corev1.ConfigMap) { cm.Annotations["vmip.io/fence"] = "01JDZ9V8Q2M4K6T8W0Y2A4C6E9" }},
		{name: "fence removed", object: guardedBlock, tenant: metaKept, stranger: metaKept, change: func(cm *corev1.ConfigMap) { delete(cm.Annotations, "vmip.io/fence") }},
		{name: "another label", object: guardedBlock, tenant: metaKept, stranger: metaKept, change: func(cm *corev1.ConfigMap) { cm.Labels["example.com/prune"] = "yes" }},
		{name: "an owner label with a value", object: guardedBlock, tenant: metaKept, stranger: noPatch, change: func(cm *corev1.ConfigMap) {
			reserveRow(cm, "198.51.100.20", "t-x/db-2")
			cm.Labels[ownerLabel("t-x/db-2")] = "x"
		}},
		{name: "a new block with another label", object: "vmip-block-lan-198.51.102.0-24", create: true, tenant: metaKept, stranger: metaKept, change: func(cm *corev1.ConfigMap) { cm.Labels["example.com/prune"] = "yes" }},
		{name: "a new block with a fence", object: "vmip-block-lan-198.51.102.0-24", create: true, tenant: metaKept, stranger: metaKept, change: func(cm *corev1.ConfigMap) { cm.Annotations["vmip.io/fence"] = "01JDZ9V8Q2M4K6T8W0Y2A4C6E9" }},
		{name: "a finalizer", object: guardedBlock, tenant: metaKept, stranger: metaKept, change: func(cm *corev1.ConfigMap) { cm.Finalizers = []string{"example.com/keep"} }},

		// Pools and the registry.
		{name: "openBlocks raised", object: guardedPool, change: spec("openBlocks: 2", "openBlocks: 3")},
		{name: "openBlocks raised far", object: guardedPool, tenant: poolKept, stranger: poolKept, change: spec("openBlocks: 2", "openBlocks: 65537")},
		{name: "openBlocks lowered", object: guardedPool, tenant: poolKept, stranger: poolKept, change: spec("openBlocks: 2", "openBlocks: 1")},
		{name: "openBlocks twice", object: guardedPool, tenant: poolKept, stranger: poolKept, change: spec("openBlocks: 2", "openBlocks: 3\nopenBlocks: 3")},
		{name: "openBlocks moved", object: guardedPool, tenant: poolKept, stranger: poolKept, change: func(cm *corev1.ConfigMap) {
			spec("openBlocks: 2\n", "")(cm)
			spec("cidrs:\n", "cidrs:\nopenBlocks: 3\n")(cm)
		}},
		{name: "openBlocks gone", object: guardedPool, tenant: poolKept, stranger: poolKept, change: spec("openBlocks: 2\n", "")},
		{name: "pool CIDR changed", object: guardedPool, tenant: poolKept, stranger: poolKept, change: spec("198.51.100.0/22", "198.51.100.0/23")},
		{name: "pool CIDR changed while openBlocks is raised", object: guardedPool, tenant: poolKept, stranger: poolKept, change: func(cm *corev1.ConfigMap) {
			spec("198.51.100.0/22", "198.51.100.0/23")(cm)
			spec("openBlocks: 2", "openBlocks: 3")(cm)
		}},
		{name: "pool change announced", object: guardedPool, tenant: poolKept, stranger: poolKept, change: func(cm *corev1.ConfigMap) { cm.Data["pending"] = labSpec }},
		{name: "openBlocks raised while a pool change is announced", object: "vmip-pool-busy", change: spec("openBlocks: 2", "openBlocks: 3")},
		{name: "pool change withdrawn", object: "vmip-pool-busy", tenant: poolKept, stranger: poolKept, change: func(cm *corev1.ConfigMap) { delete(cm.Data, "pending") }},
		{name: "pool made", object: "vmip-pool-lab-2", create: true, tenant: poolKept, stranger: poolKept, change: func(cm *corev1.ConfigMap) {
			cm.Labels["vmip.io/kind"], cm.Labels["vmip.io/pool"] = "pool", "lab-2"
			cm.Data = map[string]string{"spec": labSpec}
		}},
		{name: "pool deleted", object: guardedPool, tenant: kept, stranger: kept},
		{name: "registry changed", object: "vmip-network-lan", tenant: registry, stranger: registry, change: func(cm *corev1.ConfigMap) { cm.Data["pools"] = "{}\n" }},
		{name: "registry made", object: "vmip-network-dmz", create: true, tenant: registry, stranger: registry, change: func(cm *corev1.ConfigMap) {
			cm.Labels["vmip.io/kind"], cm.Labels["vmip.io/network"] = "network", "dmz"
		}},
		{name: "registry deleted", object: "vmip-network-lan", tenant: kept, stranger: kept},

		// Blocks as a whole.
		everybody(hasRows, "block deleted", guardedBlock, nil),
		{name: "empty block deleted", object: "vmip-block-lan-198.51.101.0-24", tenant: kept, stranger: kept},
		everybody("no ownerReferences", "owner reference", guardedBlock, func(cm *corev1.ConfigMap) {
			cm.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "5d2b8e5c-0f54-4d1c-9d3b-0c86a1b1f0aa"}}
		}),
		everybody("not immutable", "immutable", guardedBlock, func(cm *corev1.ConfigMap) { yes := true; cm.Immutable = &yes }),
		everybody("no binaryData", "binary data", guardedBlock, func(cm *corev1.ConfigMap) { cm.BinaryData = map[string][]byte{"x": {1}} }),
		everybody(noObject, "kind removed", guardedBlock, func(cm *corev1.ConfigMap) { delete(cm.Labels, "vmip.io/kind") }),
		everybody(noObject, "network changed", guardedBlock, func(cm *corev1.ConfigMap) { cm.Labels["vmip.io/network"] = "dmz" }),
		everybody("knows the format v1alpha1 only", "format changed", guardedBlock, func(cm *corev1.ConfigMap) { cm.Annotations["vmip.io/format"] = "v1" }),
		everybody("an owner label has to be", "short owner label", guardedBlock, func(cm *corev1.ConfigMap) {
			reserveRow(cm, "198.51.100.20", "t-x/db-2")
			cm.Labels["owner.vmip.io/abc"] = ""
		}),

		// What is none of the policy's business.
		{name: "unrelated ConfigMap changed", object: "unrelated", change: func(cm *corev1.ConfigMap) { cm.Data["a"] = "c" }},
		{name: "unrelated ConfigMap deleted", object: "unrelated"},
		everybody(noObject, "unrelated ConfigMap labelled as a block", "unrelated", func(cm *corev1.ConfigMap) {
			cm.Labels = map[string]string{"vmip.io/kind": "block", "vmip.io/network": "lan"}
		}),

		// Rows that the plugin would not write.
		malformed("no JSON", "reserved"),
		malformed("empty", ""),
		malformed("two owners", strings.Replace(good, `,"uid"`, `,"vm":"t-y/web-1","uid"`, 1)),
		malformed("two owners, the second after all", strings.TrimSuffix(good, "}")+`,"vm":"t-y/web-1"}`),
		malformed("a second owner in capitals", strings.TrimSuffix(good, "}")+`,"VM":"t-y/web-1"}`),
		malformed("a second state", strings.TrimSuffix(good, "}")+`,"state":"foreign"}`),
		malformed("a field that nobody knows", strings.TrimSuffix(good, "}")+`,"new":"x"}`),
		malformed("two lines", strings.Replace(good, `,"uid"`, ",\n\"uid\"", 1)),
		malformed("no namespace", strings.Replace(good, "t-x/", "", 1)),
		malformed("an escaped owner", strings.Replace(good, "t-x/", `t-\u0078/`, 1)),
		malformed("no interface", strings.Replace(good, `"interface":"default",`, "", 1)),
		malformed("no operation", strings.Replace(good, `"op":"01JDZ9V8Q2M4K6T8W0Y2A4C6E8",`, "", 1)),
		malformed("a state that nobody knows", strings.Replace(good, `"reserved"`, `"lost"`, 1)),
		malformed("held without an end", ledgerRow("t-x/db-2", "held", "")),
		malformed("a time that is none", strings.Replace(good, "T10:00:00Z", "", 1)),
		malformed("text after it", good+"}"),
		malformed("a state after it", good+`,"state":"reserved"}`),
		malformed("a row that fills the block", strings.Replace(good, `"uid":"`, `"uid":"`+strings.Repeat("0", 1000), 1)),
		impossible("30 February", strings.Replace(good, "2026-12-01", "2026-02-30", 1)),
		impossible("29 February of no leap year", strings.Replace(good, "2026-12-01", "2026-02-29", 1)),
		impossible("31 November", strings.Replace(good, "2026-12-01", "2026-11-31", 1)),
		impossible("24 o'clock", strings.Replace(good, "T10:", "T24:", 1)),
		impossible("an end that never comes", ledgerRow("t-x/db-2", "held", `,"until":"2026-13-01T10:00:00Z"`)),
		impossible("an address that is none", ledgerRow("t-x/db-2", "reserved", `,"replaces":"198.51.100.256"`)),
		misplaced(guardedSix, "198.51.100.20"),
		misplaced(guardedSix, "2001-0db8-0001-0000-0000-0000-0000-0110"),
		misplaced(guardedSix, "2001-0db8-0001-0000-0000-0000-0000-00FF"),
		misplaced(guardedSix, "2001-0db8-0001-0000-0000-0000-0000-0010x"),
	}
	for _, key := range []string{"198.51.101.20", "198.51.100.256", "198.51.100.020", "198.51.100.", "198.51.100.1.1", "198x51.100.20", "note"} {
		list = append(list, misplaced(guardedBlock, key))
	}
	for _, name := range []string{"vmip-block-lan-198.51.100.0-25", "vmip-block-lan-198.51.256.0-24", "vmip-block-lan-198.51.100.7-24", "vmip-block-lan-2001-0db8-0001-0000-0000-0000-0000-0010-120", "vmip-block-lan-0000-0000-0000-0000-0000-ffff-c633-6400-120", "vmip-block-dmz-198.51.100.0-24", "vmip-block-lan"} {
		w := everybody(noObject, "block named "+name, name, func(*corev1.ConfigMap) {})
		w.create = true
		list = append(list, w)
	}
	return list
}

// The policy on the real API server, in a cluster of its own: it holds for every writer of a ledger.
func TestPolicy(t *testing.T) {
	t.Parallel()
	c := clusterNamed(t, "policy", "kube-ovn")
	c.kubectl(t, "", "apply", "-f", filepath.Join(root, "manifests/rbac.yaml"))
	plant(t, c.core.CoreV1().ConfigMaps("vmip-system"))
	c.guard(t)
	t.Run("writes", c.policyWrites)
	t.Run("full block", c.policyFullBlock)
	t.Run("commands", c.policyCommands)
	// Whoever may delete the namespace may: half a ledger in a namespace that never ends helps nobody.
	c.kubectl(t, "", "delete", "namespace", "vmip-system", "--wait", "--timeout=60s")
}

// policyWrites sends every write that a user might make to the ledger, as each kind of user, as a
// dry run, so that admission decides and nothing is stored.
func (c *cluster) policyWrites(t *testing.T) {
	admin := c.core.CoreV1().ConfigMaps("vmip-system")
	// All of them may do everything to ConfigMaps, so that it is the policy that refuses.
	c.kubectl(t, "", "create", "role", "writer", "-n", "vmip-system", "--verb=*", "--resource=configmaps")
	for _, user := range []string{"operator", "tenant", "stranger"} {
		c.kubectl(t, "", "create", "rolebinding", "writer-"+user, "-n", "vmip-system", "--role=writer", "--user="+user)
	}
	c.kubectl(t, "", "create", "rolebinding", "operator", "-n", "vmip-system", "--clusterrole=vmip.io:admin", "--user=operator")
	c.kubectl(t, "", "create", "namespace", "t-x")
	c.kubectl(t, "", "create", "rolebinding", "tenant", "-n", "t-x", "--clusterrole=kubevirt.io:edit", "--user=tenant")
	users := map[string]corev1client.ConfigMapInterface{}
	for _, user := range []string{"operator", "tenant", "stranger"} {
		users[user] = c.configMaps(t, user)
	}
	for _, w := range writes() {
		for user, want := range map[string]string{"operator": w.operator, "tenant": w.tenant, "stranger": w.stranger} {
			t.Run(w.name+"/"+user, func(t *testing.T) {
				err := w.try(t, admin, users[user])
				switch {
				case want == "" && err != nil:
					t.Errorf("refused: %v", err)
				case want != "" && err == nil:
					t.Errorf("allowed; should be refused with %q", want)
				case want != "" && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'ledger.vmip.io'"):
					t.Errorf("refused by something else: %v", err)
				case want != "" && !strings.Contains(err.Error(), want):
					t.Errorf("refused with %v, want %q", err, want)
				}
			})
		}
	}
	// A deletion of all of them asks for each.
	if err := users["tenant"].DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "vmip.io/kind"}); err == nil || !strings.Contains(err.Error(), "ledger.vmip.io") {
		t.Errorf("all deleted at once: %v", err)
	}
	if list, err := admin.List(t.Context(), metav1.ListOptions{LabelSelector: "vmip.io/kind"}); err != nil || len(list.Items) != 6 {
		t.Errorf("the ledger has %d objects, %v", len(list.Items), err)
	}
}

func (w write) try(t *testing.T, admin, user corev1client.ConfigMapInterface) error {
	t.Helper()
	dry := []string{metav1.DryRunAll}
	if w.change == nil {
		return user.Delete(t.Context(), w.object, metav1.DeleteOptions{DryRun: dry})
	}
	if w.create {
		cm := object(w.object, "block", nil)
		w.change(cm)
		_, err := user.Create(t.Context(), cm, metav1.CreateOptions{DryRun: dry})
		return err
	}
	cm, err := admin.Get(t.Context(), w.object, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.change(cm)
	_, err = user.Update(t.Context(), cm, metav1.UpdateOptions{DryRun: dry})
	return err
}

// A block in which every address has a row, names as long as they get, stays within what an
// expression may cost: when all rows are written at once, when one is, and when it is refused.
func (c *cluster) policyFullBlock(t *testing.T) {
	namespace := "t-" + strings.Repeat("n", 61)
	c.kubectl(t, "", "create", "namespace", namespace)
	c.kubectl(t, "", "create", "rolebinding", "tenant", "-n", namespace, "--clusterrole=kubevirt.io:edit", "--user=full-tenant")
	c.kubectl(t, "", "create", "rolebinding", "full-tenant", "-n", "vmip-system", "--clusterrole=vmip.io:edit", "--user=full-tenant")
	tenant := c.configMaps(t, "full-tenant")
	vm := func(i int) string { return fmt.Sprintf("%s/%s-%d", namespace, strings.Repeat("v", 59), i) }
	for _, block := range []struct {
		name string
		key  func(int) string
	}{
		{"vmip-block-lan-203.0.113.0-24", func(i int) string { return fmt.Sprintf("203.0.113.%d", i) }},
		{"vmip-block-lan-2001-0db8-0002-0000-0000-0000-0000-0000-120", func(i int) string { return fmt.Sprintf("2001-0db8-0002-0000-0000-0000-0000-00%02x", i) }},
	} {
		cm := object(block.name, "block", nil)
		for i := range 256 {
			reserveRow(cm, block.key(i), vm(i))
		}
		cm, err := tenant.Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("%s with all its rows: %v", block.name, err)
		}
		// The next release of one machine, and of all of them.
		cm.Data[block.key(7)] = ledgerRow(vm(7), "releasing", "")
		if cm, err = tenant.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("%s, one row: %v", block.name, err)
		}
		for i := range 256 {
			cm.Data[block.key(i)] = ledgerRow(vm(i), "held", held)
		}
		if cm, err = tenant.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("%s, all rows changed: %v", block.name, err)
		}
		refused := cm.DeepCopy()
		for i := range 256 {
			refused.Data[block.key(i)] = strings.Replace(refused.Data[block.key(i)], namespace, "other", 1)
		}
		if _, err := tenant.Update(t.Context(), refused, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(notYours, ": ")) {
			t.Errorf("%s, all rows given to others: %v", block.name, err)
		}
		for i := range 256 {
			refused.Data[block.key(i)] = "x"
		}
		if _, err := tenant.Update(t.Context(), refused, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "malformed rows") {
			t.Errorf("%s, all rows damaged: %v", block.name, err)
		}
		for i := range 256 {
			delete(cm.Data, block.key(i))
			delete(cm.Labels, ownerLabel(vm(i)))
		}
		if _, err := tenant.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
			t.Errorf("%s, all rows removed: %v", block.name, err)
		}
	}
}

// policyCommands runs the plugin's own commands as an operator and as a tenant.
func (c *cluster) policyCommands(t *testing.T) {
	w := newWorldIn(t, c)
	for _, user := range []string{"an-operator", "a-tenant"} {
		w.kubectl(t, "", "create", "clusterrolebinding", user, "--clusterrole=vmip.io:view", "--user="+user)
	}
	w.kubectl(t, "", "create", "rolebinding", "an-operator", "-n", "vmip-system", "--clusterrole=vmip.io:admin", "--user=an-operator")
	w.kubectl(t, "", "create", "rolebinding", "a-tenant", "-n", "vmip-system", "--clusterrole=vmip.io:edit", "--user=a-tenant")
	for _, user := range []string{"an-operator", "a-tenant"} {
		w.kubectl(t, "", "create", "rolebinding", user, "-n", w.namespace, "--clusterrole=kubevirt.io:edit", "--user="+user)
	}
	operator, tenant := w.user("an-operator"), w.user("a-tenant")
	run := func(user []string, args ...string) result {
		t.Helper()
		return w.vmipWith(t, user, append(args, "-n", w.namespace)...)
	}
	ok := func(user []string, args ...string) string {
		t.Helper()
		r := run(user, args...)
		if r.code != 0 {
			t.Fatalf("kubectl vmip %s: %s", strings.Join(args, " "), r)
		}
		return r.stdout
	}
	refused := func(text string, args ...string) {
		t.Helper()
		if r := run(tenant, args...); r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, text) || !strings.Contains(r.stderr, "vmip.io:admin") {
			t.Errorf("kubectl vmip %s should be refused with %q: %s", strings.Join(args, " "), text, r)
		}
	}
	pool := []string{"pool", "add", w.lab, "--cidr", w.prefix + ".0/24", "--gateway", w.ip(1), "--for-namespace", w.namespace, "--range", w.ip(10) + "-" + w.ip(200)}
	refused(registry, pool...)
	ok(operator, pool...)
	before := w.ledgerVersions()
	refused(registry, "pool", "set", w.lab, "--exclude", w.ip(50))
	refused(registry, "pool", "set", w.lab, "--cidr", w.prefix+".0/24,2001:db8:77::/64")
	if after := w.ledgerVersions(); after != before {
		t.Errorf("refused commands wrote to the ledger:\n%s\nwas\n%s", after, before)
	}
	ok(operator, "pool", "set", w.lab, "--exclude", w.ip(50))
	for _, name := range []string{"db-1", "db-2"} {
		w.vm(name, halted)
	}
	if out := ok(tenant, "reserve", "db-1", "--ip", w.ip(20)); !strings.Contains(out, "reserved "+w.ip(20)) {
		t.Errorf("reserve by the tenant: %q", out)
	}
	ok(operator, "reserve", "db-2", "--ip", w.ip(21))
	for _, name := range []string{"db-1", "db-2"} {
		ok(tenant, "release", name)
	}
	ok(tenant, "reserve", "db-2")
	ok(operator, "release", "db-2")
	// Six addresses in the first of two blocks: automatic choice opens the second one on its way.
	ok(operator, "pool", "add", "wide", "--cidr", "10.16.240.0/23", "--gateway", "10.16.240.1", "--for-namespace", w.namespace, "--range", "10.16.240.250-10.16.241.9")
	for i := range 7 {
		name := fmt.Sprintf("web-%d", i)
		w.vm(name, halted)
		ok(tenant, "reserve", name, "--pool", "wide")
	}
	wide, err := w.core.CoreV1().ConfigMaps("vmip-system").Get(t.Context(), "vmip-pool-wide", metav1.GetOptions{})
	if err != nil || !strings.Contains(wide.Data["spec"], "\nopenBlocks: 2\n") {
		t.Errorf("the pool is %v, %v", wide, err)
	}
	refused(poolKept, "pool", "remove", "wide")
	r := run(operator, "pool", "remove", "wide")
	if r.code != 1 || !strings.Contains(r.stderr, "7 addresses in use") {
		t.Errorf("pool remove while it has addresses: %s", r)
	}
	ok(operator, "pool", "add", "none", "--cidr", "10.16.250.0/24", "--gateway", "10.16.250.1")
	ok(operator, "pool", "remove", "none")
}
