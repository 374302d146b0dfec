package ledger

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReservationsOf(t *testing.T) {
	of := func(raw string) (*Reservations, error) {
		return ReservationsOf(map[string]string{AnnotationReservations: raw})
	}
	said, err := of(`{"ledger":"vmip-system","uid":"u-1","interfaces":{"default":{"addresses":["198.51.100.20"]}},"later":1}`)
	if err != nil || !said.Names("default", netip.MustParseAddr("198.51.100.20")) {
		t.Errorf("%+v, %v", said, err)
	}
	if said, err := of(""); said != nil || err != nil {
		t.Errorf("nothing said: %+v, %v", said, err)
	}
	for raw, want := range map[string]string{
		`{`:                                  "unexpected end of JSON",
		`{"uid":"u-1"}`:                      `ledger "" is not the name of a namespace`,
		`{"ledger":"","uid":"u-1"}`:          `ledger "" is not the name of a namespace`,
		`{"ledger":"a; reboot","uid":"u-1"}`: `ledger "a; reboot" is not the name of a namespace`,
		`{"ledger":"a","interfaces":{"default":{"addresses":["x"]}}}`: "interface default",
	} {
		said, err := of(raw)
		if err == nil || said != nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), AnnotationReservations) {
			t.Errorf("%s: %+v, %v; want %q", raw, said, err, want)
		}
	}
}

// What a newer version has written into a VM's annotation is there after a rewrite.
func TestReservationsKeepUnknownFields(t *testing.T) {
	const raw = `{"ledger":"a","uid":"u-1","interfaces":{"default":{"pool":"lab","network":"n","addresses":["198.51.100.20"],"op":"1","later":{"x":[1]}}},"also":"y"}`
	said, err := ReservationsOf(map[string]string{AnnotationReservations: raw})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := said.Encode(); err != nil || text != raw {
		t.Errorf("rewritten as %s, %v", text, err)
	}
	said.Interfaces["default"] = said.Interfaces["default"].Renewed(Reservation{Pool: "other", Network: "n", Addresses: []string{"198.51.100.21"}, Op: "2"})
	want := `{"ledger":"a","uid":"u-1","interfaces":{"default":{"pool":"other","network":"n","addresses":["198.51.100.21"],"op":"2","later":{"x":[1]}}},"also":"y"}`
	if text, err := said.Encode(); err != nil || text != want {
		t.Errorf("renewed as %s, %v", text, err)
	}
	if _, err := ReservationsOf(map[string]string{AnnotationReservations: `{"ledger":"a","UID":"u"}`}); err == nil || !strings.Contains(err.Error(), `"uid"`) {
		t.Errorf("a field in another case: %v", err)
	}
}

// A snapshot compares each block's owner labels with its rows.
func TestSnapshotComparesLabelsAndRows(t *testing.T) {
	a, c := netip.MustParseAddr("198.51.100.20"), netip.MustParseAddr("198.51.100.21")
	db, web := row("tenant-a/db-1", Reserved), row("tenant-a/web", Releasing)
	lost := db.Owner().Label()
	gone := Owner{Namespace: "tenant-a", Name: "gone", Interface: "default"}.Label()
	for name, test := range map[string]struct {
		edit      func(*corev1.ConfigMap)
		unindexed int
		stray     []string
	}{
		"in step":                            {func(*corev1.ConfigMap) {}, 0, nil},
		"a row without a label":              {func(cm *corev1.ConfigMap) { delete(cm.Labels, lost) }, 1, nil},
		"a label without a row":              {func(cm *corev1.ConfigMap) { cm.Labels[gone] = "" }, 0, []string{gone}},
		"a label of what may be the bad row": {func(cm *corev1.ConfigMap) { cm.Labels[gone], cm.Data["198.51.100.30"] = "", "{" }, 0, nil},
		"a newer format": {func(cm *corev1.ConfigMap) {
			delete(cm.Labels, lost)
			cm.Labels[gone], cm.Annotations[AnnotationFormat] = "", "v2"
		}, 0, nil},
		"a foreign claim has none": {func(cm *corev1.ConfigMap) {
			cm.Data["198.51.100.30"] = `{"vm":"node/n1","state":"foreign","since":"2026-12-01T10:00:00Z"}`
		}, 0, nil},
		"another label": {func(cm *corev1.ConfigMap) { cm.Labels["example.com/x"] = "" }, 0, nil},
	} {
		b := newBlock("default", netip.MustParsePrefix("198.51.100.0/24"))
		for at, r := range map[netip.Addr]*Row{a: &db, c: &web} {
			if err := b.put(at, r); err != nil {
				t.Fatal(err)
			}
		}
		b.cm.ResourceVersion = "7"
		test.edit(b.cm)
		s := ParseSnapshot([]corev1.ConfigMap{*b.cm})
		unindexed := 0
		for _, e := range s.Entries {
			if e.Unindexed {
				unindexed++
				if e.Addr != a || e.ConfigMap() != "vmip-block-default-198.51.100.0-24" {
					t.Errorf("%s: %s is not indexed", name, e.Key)
				}
			}
		}
		var stray []string
		for _, x := range s.Strays {
			stray = append(stray, x.Labels...)
			if x.ConfigMap != b.cm.Name || x.ResourceVersion != "7" {
				t.Errorf("%s: %+v", name, x)
			}
		}
		if unindexed != test.unindexed || !slices.Equal(stray, test.stray) {
			t.Errorf("%s: %d rows without a label, labels %q without a row", name, unindexed, stray)
		}
	}
}

// What is newer is named and read as far as possible; what is of no known kind is damage.
func TestSnapshotNamesWhatItCantJudge(t *testing.T) {
	object := func(name, kind string, data map[string]string) corev1.ConfigMap {
		return corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{LabelKind: kind, LabelNetwork: "default"}, Annotations: map[string]string{AnnotationFormat: Format}},
			Data:       data,
		}
	}
	const spec = "cidrs: [198.51.100.0/24]\nnetwork: default\n"
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	changing := object("vmip-pool-lab", KindPool, map[string]string{"spec": spec, "pending": "network: default\n"})
	changing.ManagedFields = []metav1.ManagedFieldsEntry{{}, {Time: &metav1.Time{Time: at}}, {Time: &metav1.Time{Time: at.Add(-time.Hour)}}}
	newer := object("vmip-pool-next", KindPool, map[string]string{"spec": spec + "leases: true\n"})
	newer.Annotations[AnnotationFormat] = "v2"
	registry := object("vmip-network-default", KindNetwork, map[string]string{"pools": "lab: [198.51.100.0/24]\n"})
	registry.ManagedFields = changing.ManagedFields
	s := ParseSnapshot([]corev1.ConfigMap{changing, newer, registry, object("vmip-block-x", "blok", nil)})
	if c := s.Changes["lab"]; len(s.Changes) != 1 || len(c.To.CIDRs) != 0 || c.To.Name != "lab" || !c.Announced.Equal(at) {
		t.Errorf("changes %+v", s.Changes)
	}
	if len(s.Networks) != 1 || !s.Networks[0].Written.Equal(at) {
		t.Errorf("networks %+v", s.Networks)
	}
	if len(s.Newer) != 1 || s.Newer[0].ConfigMap != "vmip-pool-next" || !strings.Contains(s.Newer[0].String(), `format "v2"`) {
		t.Errorf("newer %+v", s.Newer)
	}
	var damaged []string
	for _, d := range s.Damaged {
		damaged = append(damaged, d.ConfigMap+" "+d.Kind+" "+d.Network)
	}
	if want := []string{"vmip-pool-next pool default", "vmip-block-x blok default"}; !slices.Equal(damaged, want) {
		t.Errorf("damaged %q, want %q", damaged, want)
	}
}
