package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// duplicateMACs finds MACs that two machines pin on one network, running or not. Under masquerade
// the MAC never leaves the pod.
func duplicateMACs(e *estate) ([]Finding, []Skip) {
	type wire struct{ network, mac string }
	pinned := map[wire][]*nic{}
	for _, g := range e.machines {
		for _, n := range g.nics {
			if n.MAC == "" || n.Absent || n.Binding == machine.Masquerade || n.Binding == machine.Slirp {
				continue
			}
			at := wire{n.Attachment, n.MAC}
			pinned[at] = append(pinned[at], n)
		}
	}
	wires := slices.Collect(maps.Keys(pinned))
	slices.SortFunc(wires, func(a, b wire) int { return strings.Compare(a.network+a.mac, b.network+b.mac) })
	var found []Finding
	for _, at := range wires {
		nics := pinned[at]
		slices.SortStableFunc(nics, func(a, b *nic) int { return a.guest.born().Compare(b.guest.born()) })
		for i, n := range nics[1:] {
			earlier := slices.IndexFunc(nics[:i+1], func(older *nic) bool { return older.guest.key() != n.guest.key() && !e.isolated(older, n) })
			if earlier < 0 {
				continue
			}
			older := nics[earlier]
			f := e.about(DuplicateMAC, n.guest)
			e.on(&f, n)
			f.Evidence = fmt.Sprintf("MAC %s is pinned on interface %s, and on interface %s of %s", n.MAC, n.Name, older.Name, older.guest)
			e.involve(&f, []holder{{guest: older.guest}}, nil)
			found = append(found, f)
		}
	}
	return found, nil
}

// isolated says that two interfaces on the pod network are known to be in different domains: each
// has a reservation, or a single pool that serves its namespace.
func (e *estate) isolated(a, b *nic) bool {
	x, y := e.network(a), e.network(b)
	return x != "" && y != "" && x != y
}

func (e *estate) network(n *nic) string {
	if len(n.rows) > 0 {
		return n.rows[0].Network
	}
	found := ""
	for i := range e.pools {
		p := &e.pools[i]
		if p.Attachment != n.Attachment || p.Serves(n.guest.ref.Namespace) != "" || p.Network == found {
			continue
		}
		if found != "" {
			return ""
		}
		found = p.Network
	}
	return found
}
