package ledger

import (
	"strings"
	"testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
)

// A template that asks for an address already gets that one: another one would move the machine at
// its next start. What is another machine's, or of no pool, is said.
func TestTemplateAsksAlready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	if err := w.create("pinned", map[string]string{annotation: "198.51.100.40"}); err != nil {
		t.Fatal(err)
	}
	w.vm("db-1")
	must[reservation.Result](t)(w.reserve(w.boss, "pinned"))
	w.is("pinned", "198.51.100.40", "198.51.100.40 reserved")
	// Explicit words win over the template, and a later reserve leaves it so.
	must[reservation.Result](t)(w.replace(w.boss, "pinned", "198.51.100.41"))
	must[reservation.Result](t)(w.reserve(w.boss, "pinned"))
	w.is("pinned", "198.51.100.41", "198.51.100.40 held", "198.51.100.41 reserved")

	// A template that somebody has copied asks for another machine's address: it gets one of its own.
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.60"))
	if err := w.create("copy", map[string]string{annotation: "198.51.100.60"}); err != nil {
		t.Fatal(err)
	}
	x := w.writer(nil)
	got := must[reservation.Result](t)(w.reserve(x, "copy"))
	if a := got.Addresses[0].String(); a == "198.51.100.60" || w.asks("copy") != a {
		t.Errorf("copy has %s and asks for %s", a, w.asks("copy"))
	}
	if said := strings.Join(x.warns, "\n"); !strings.Contains(said, "asks for 198.51.100.60, which is reserved by "+w.namespace+"/db-1") {
		t.Errorf("warnings %q", said)
	}

	if err := w.create("elsewhere", map[string]string{annotation: "203.0.113.9"}); err != nil {
		t.Fatal(err)
	}
	_, err := w.reserve(w.boss, "elsewhere")
	isRefused(t, err, "TemplateAsks")
	if w.asks("elsewhere") != "203.0.113.9" || len(w.states("elsewhere")) > 0 {
		t.Errorf("a refused reserve left %s %v", w.asks("elsewhere"), w.states("elsewhere"))
	}
	must[reservation.Result](t)(w.reserve(w.boss, "elsewhere", "198.51.100.70"))
	if w.asks("elsewhere") != "198.51.100.70" {
		t.Errorf("asks for %s", w.asks("elsewhere"))
	}
}
