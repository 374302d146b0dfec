// Package plan reads address plans, `reserve -f`: hundreds of reservations at once, as YAML, JSON
// or CSV. What contradicts itself is found before anything is written.
package plan

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Kind is the kind of a plan's object.
const Kind = "ReservationPlan"

// maxBytes is far above a plan of 100,000 machines, and keeps a wrong file from filling the memory.
const maxBytes = 64 << 20

// Item is one line of a plan, checked.
type Item struct {
	VM machine.Ref
	// Interface, Pool and MAC may be empty; MAC is normalised.
	Interface, Pool, MAC string
	// Addresses are at most one a family.
	Addresses []netip.Addr
	// Where says where in the file the item stands, for messages.
	Where string
}

// Plan is a plan without contradictions.
type Plan struct {
	Pools []v1alpha1.PlannedPool
	Items []Item
}

// entry is an item as it was written.
type entry struct {
	v1alpha1.PlannedReservation
	where string
}

// Read reads a plan. name is the file's, for messages; what has no namespace gets the given one.
// The error lists everything that is wrong, one line each.
func Read(r io.Reader, name, namespace string) (*Plan, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(raw) > maxBytes:
		return nil, fmt.Errorf("%s is larger than %d MiB: is it a plan?", name, maxBytes>>20)
	}
	raw = bytes.TrimPrefix(raw, []byte("\ufeff")) // spreadsheets write a byte order mark
	var entries []entry
	var pools []v1alpha1.PlannedPool
	if isCSV(raw) {
		entries, err = readCSV(raw)
	} else {
		entries, pools, err = readYAML(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%s has no items: write at least one, with name and addresses", name)
	}
	p := &Plan{Pools: pools}
	var errs []error
	for _, e := range entries {
		item, err := e.check(namespace)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", name, e.where, err))
			continue
		}
		p.Items = append(p.Items, item)
	}
	for _, err := range conflicts(p) {
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// isCSV tells a header line from YAML and JSON: it has the column "name", and neither a colon nor
// a brace.
func isCSV(raw []byte) bool {
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, maxBytes+1)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		return !strings.ContainsAny(line, ":{") && slices.ContainsFunc(strings.Split(line, ","), func(s string) bool { return column(s) == "name" })
	}
	return false
}

func column(s string) string {
	s = strings.ToLower(strings.Trim(strings.TrimSpace(s), `"`))
	switch s {
	case "vm", "virtualmachine":
		return "name"
	case "address", "ip", "ips":
		return "addresses"
	}
	return s
}

func readCSV(raw []byte) (out []entry, err error) {
	r := csv.NewReader(bytes.NewReader(raw))
	r.Comment, r.TrimLeadingSpace = '#', true
	header, err := r.Read()
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	for i, h := range header {
		h = column(h)
		if !slices.Contains([]string{"namespace", "name", "interface", "pool", "addresses", "mac"}, h) {
			return nil, fmt.Errorf("unknown column %q: the columns are namespace, name, interface, pool, addresses, mac", header[i])
		}
		if _, twice := at[h]; twice {
			return nil, fmt.Errorf("two columns %q", h)
		}
		at[h] = i
	}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		get := func(name string) string {
			if i, ok := at[name]; ok {
				return strings.TrimSpace(record[i])
			}
			return ""
		}
		line, _ := r.FieldPos(0)
		out = append(out, entry{v1alpha1.PlannedReservation{
			Namespace: get("namespace"), Name: get("name"), Interface: get("interface"), Pool: get("pool"), MAC: get("mac"),
			Addresses: strings.FieldsFunc(get("addresses"), func(r rune) bool { return r == ' ' || r == ';' || r == ',' }),
		}, fmt.Sprintf("line %d", line)})
	}
}

// readYAML reads all documents of a file: a parser that stopped at the first would lose the rest
// without a word.
func readYAML(raw []byte) (out []entry, pools []v1alpha1.PlannedPool, err error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	for {
		doc, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return out, pools, nil
		}
		if err != nil {
			return nil, nil, err
		}
		var p v1alpha1.ReservationPlan
		if err := yaml.UnmarshalStrict(doc, &p); err != nil {
			return nil, nil, fmt.Errorf("not a plan: %w", err)
		}
		if p.Kind == "" && len(p.Items) == 0 && len(p.Pools) == 0 {
			continue // an empty document, or comments alone
		}
		if want := v1alpha1.Type(Kind); p.TypeMeta != want {
			return nil, nil, fmt.Errorf("it is a %q of %q: a plan has apiVersion: %s and kind: %s", p.Kind, p.APIVersion, want.APIVersion, want.Kind)
		}
		pools = append(pools, p.Pools...)
		for _, item := range p.Items {
			out = append(out, entry{item, fmt.Sprintf("item %d", len(out)+1)})
		}
	}
}

// check reads the values of one item.
func (e entry) check(namespace string) (Item, error) {
	item := Item{VM: machine.Ref{Namespace: e.Namespace, Name: e.Name}, Interface: e.Interface, Pool: e.Pool, Where: e.where}
	if item.VM.Namespace == "" {
		item.VM.Namespace = namespace
	}
	if e.Name == "" {
		return item, errors.New("it names no virtual machine")
	}
	if errs := validation.IsDNS1123Subdomain(e.Name); len(errs) > 0 {
		return item, fmt.Errorf("%q can't be the name of a virtual machine: %s", e.Name, errs[0])
	}
	if errs := validation.IsDNS1123Label(item.VM.Namespace); len(errs) > 0 {
		return item, fmt.Errorf("virtualmachine %s: %q can't be a namespace: %s", e.Name, item.VM.Namespace, errs[0])
	}
	if e.Pool != "" {
		if errs := validation.IsDNS1123Label(e.Pool); len(errs) > 0 {
			return item, fmt.Errorf("virtualmachine %s: %q can't be the name of a pool: %s", item.VM, e.Pool, errs[0])
		}
	}
	if e.Interface != "" {
		// KubeVirt's rule for the names of networks (ValidateVirtualMachineInstanceSpec).
		if errs := validation.IsDNS1123Label(e.Interface); len(errs) > 0 {
			return item, fmt.Errorf("virtualmachine %s: %q can't be the name of an interface: %s", item.VM, e.Interface, errs[0])
		}
	}
	for _, s := range e.Addresses {
		a, err := address.Parse(s)
		if err != nil {
			return item, fmt.Errorf("virtualmachine %s: %w", item.VM, err)
		}
		if slices.ContainsFunc(item.Addresses, func(b netip.Addr) bool { return address.FamilyOf(a) == address.FamilyOf(b) }) {
			return item, fmt.Errorf("virtualmachine %s has two %s addresses: an interface has one a family", item.VM, address.FamilyOf(a))
		}
		item.Addresses = append(item.Addresses, a)
	}
	if e.MAC != "" {
		hw, err := net.ParseMAC(e.MAC)
		if err != nil || len(hw) != 6 {
			return item, fmt.Errorf("virtualmachine %s: %q is not a MAC address such as 02:00:00:00:00:20", item.VM, e.MAC)
		}
		item.MAC = hw.String()
	}
	return item, nil
}

// conflicts finds what the items of a plan contradict one another in. Two addresses are the same
// one where nothing says that they are of two networks: of two pools of the plan with a network
// each, or of two pools that the plan does not have.
func conflicts(p *Plan) (errs []error) {
	networks := map[string]string{}
	for _, pool := range p.Pools {
		if _, twice := networks[pool.Name]; twice {
			errs = append(errs, fmt.Errorf("pool %s is there twice", pool.Name))
		}
		networks[pool.Name] = pool.Network
	}
	domain := func(i Item) string {
		network, known := networks[i.Pool]
		switch {
		case i.Pool == "":
			return ""
		case !known:
			return "pool " + i.Pool
		case network == "":
			return "network default"
		}
		return "network " + network
	}
	type claim struct {
		item   Item
		domain string
	}
	addresses := map[netip.Addr][]claim{}
	owners, macs := map[string]Item{}, map[string]Item{}
	for _, i := range p.Items {
		owner := i.VM.String() + "/" + i.Interface
		if other, twice := owners[owner]; twice {
			errs = append(errs, fmt.Errorf("%s and %s are both for virtualmachine %s%s", other.Where, i.Where, i.VM, ofInterface(i.Interface)))
		}
		owners[owner] = i
		for _, a := range i.Addresses {
			d := domain(i)
			for _, other := range addresses[a] {
				if other.domain == d || other.domain == "" || d == "" {
					errs = append(errs, fmt.Errorf("%s gives %s to virtualmachine %s, %s to virtualmachine %s", other.item.Where, a, other.item.VM, i.Where, i.VM))
					break
				}
			}
			addresses[a] = append(addresses[a], claim{i, d})
		}
		if other, twice := macs[i.MAC]; twice && i.MAC != "" {
			errs = append(errs, fmt.Errorf("%s and %s have one MAC address, %s", other.Where, i.Where, i.MAC))
		}
		macs[i.MAC] = i
	}
	return errs
}

func ofInterface(name string) string {
	if name == "" {
		return ""
	}
	return ", interface " + name
}
