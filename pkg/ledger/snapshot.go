package ledger

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Damage is an object of the ledger that something is wrong with.
type Damage struct {
	// ConfigMap is the object's name; Kind and Network are what its labels say.
	ConfigMap, Kind, Network string
	Err                      error
}

func (d Damage) String() string { return d.Err.Error() }

// Change is a change of a pool that is announced and not in force: it is under way, or died.
type Change struct {
	// To is the announced specification; a removal has no CIDRs.
	To Pool
	// Announced is when the pool's object was last written, by the API server's clock; zero where
	// that is not known.
	Announced time.Time
}

// Stray are owner labels of a block that none of its rows accounts for.
type Stray struct {
	// ConfigMap is the block's name, ResourceVersion the version that has the labels.
	ConfigMap, ResourceVersion string
	// Labels are their keys.
	Labels []string
}

// PoolConfigMap is the name of the ConfigMap that holds a pool.
func PoolConfigMap(pool string) string { return poolName(pool) }

// NetworkConfigMap is the name of the ConfigMap that holds the registry of a network.
func NetworkConfigMap(network string) string { return networkName(network) }

// ConfigMap is the name of the object that a row stands in.
func (e Entry) ConfigMap() string {
	name, _, _ := strings.Cut(e.Key, "/")
	return name
}

// add reads one object into the snapshot.
func (s *Snapshot) add(cm *corev1.ConfigMap) error {
	switch kind := cm.Labels[LabelKind]; kind {
	case KindBlock:
		b, err := parseBlock(cm)
		if err != nil {
			return err
		}
		s.addBlock(b)
	case KindPool:
		p, err := parsePool(cm)
		if err != nil {
			return err
		}
		s.Pools = append(s.Pools, p.spec)
		if p.pending != nil {
			if s.Changes == nil {
				s.Changes = map[string]Change{}
			}
			s.Changes[p.spec.Name] = Change{*p.pending, written(cm)}
		}
	case KindNetwork:
		n, err := parseNetwork(cm)
		if err != nil {
			return err
		}
		n.Written = written(cm)
		s.Networks = append(s.Networks, *n)
	default:
		return fmt.Errorf("configmap %s: its label %s=%q is no kind of the ledger's objects", cm.Name, LabelKind, kind)
	}
	return nil
}

// addBlock adds a block's rows, and compares them with its owner labels. A newer version may keep
// its index another way, and a label whose row can't be read stays: neither is compared.
func (s *Snapshot) addBlock(b *block) {
	entries := b.entries()
	owners, readable := map[string]bool{}, true
	for i := range entries {
		e := &entries[i]
		switch {
		case e.Err != nil:
			readable = false
		case e.Row.State != Foreign:
			label := e.Row.Owner().Label()
			owners[label] = true
			_, there := b.cm.Labels[label]
			e.Unindexed = !there && writable(b.cm) == nil
		}
	}
	s.Entries = append(s.Entries, entries...)
	if !readable || writable(b.cm) != nil {
		return
	}
	stray := Stray{ConfigMap: b.cm.Name, ResourceVersion: b.cm.ResourceVersion}
	for label := range b.cm.Labels {
		if strings.HasPrefix(label, LabelOwner) && !owners[label] {
			stray.Labels = append(stray.Labels, label)
		}
	}
	if len(stray.Labels) > 0 {
		slices.Sort(stray.Labels)
		s.Strays = append(s.Strays, stray)
	}
}

// written is when an object was last written, as far as it tells.
func written(cm *corev1.ConfigMap) (last time.Time) {
	for _, m := range cm.ManagedFields {
		if m.Time != nil && m.Time.After(last) {
			last = m.Time.Time
		}
	}
	return last
}
