package cni

import "testing"

func TestNone(t *testing.T) {
	w := newWorld(t, "none")
	pin := map[string]string{calicoIPAddrs: `["198.51.100.20"]`}
	g := w.start(w.vm("db-1"), "n1", pin)
	w.equal("first address", g.ips(), "198.51.100.2")
	target, err := g.migrate("n2")
	must(t, err)
	w.equal("the target's address", target.ips(), "198.51.100.3")
	g.handOver(target)
	g.shutDown()
	g = w.start(g.vm, "n1", pin)
	w.equal("after a restart", g.ips(), "198.51.100.4")
	w.restart()
	w.parallel(w.d, w.twin())
	if s := w.mustAdd(w.plain("late", "n1", nil)); s.ips() != "198.51.100.25" {
		t.Errorf("records were lost: %s", s.ips())
	}
}
