package preflight

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
)

// Codes of this file.
const (
	CodeTemplateMissing     = "TemplateMissing"
	CodeRestartPending      = "RestartPending"
	CodeMalformedAnnotation = "MalformedAnnotation"
)

// TemplateMissing refuses where the ledger has an address that the template does not ask for: the
// next start would get another. A manifest that is applied again may take away the annotations and
// the record of them, and another annotation may beat ours, so what the network plugin makes of
// the template counts too.
func TemplateMissing(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		reserved := i.Reserved()
		if len(reserved) == 0 {
			return nil
		}
		var missing []string
		for _, k := range sortedKeys(i.Annotations) {
			if f.template().ObjectMeta.Annotations[k] != i.Annotations[k] {
				missing = append(missing, k)
			}
		}
		remedy := f.command("reserve")
		switch {
		case len(missing) > 0:
			return []Verdict{f.about(i, Refuse, CodeTemplateMissing, remedy, "%s is reserved, and the template lacks %s or has another value", address.Join(reserved), strings.Join(missing, ", "))}
		case len(i.Keys) == 0:
			return nil // the network has no annotations
		case i.NextErr != nil:
			return []Verdict{f.about(i, Refuse, CodeMalformedAnnotation, remedy, "the template: %v", i.NextErr)}
		case !sameSet(i.Next, reserved):
			return []Verdict{f.about(i, Refuse, CodeTemplateMissing, remedy, "%s is reserved, and the template asks for %s", address.Join(reserved), orNothing(i.Next))}
		}
		return nil
	})
}

func orNothing(addrs []netip.Addr) string {
	if len(addrs) == 0 {
		return "no address"
	}
	return address.Join(addrs)
}

// RestartPending tells that the running instance is not what the reservation says, which KubeVirt
// raises no condition for: it compares the template's spec, and never its metadata
// (syncRestartRequired in pkg/virt-controller/watch/vm).
func RestartPending(f *Facts) []Verdict {
	if !f.View.Started() {
		return nil
	}
	return f.each(func(i Interface) []Verdict {
		template, vmi := f.template().ObjectMeta.Annotations, f.View.VMI.Annotations
		for _, k := range sortedKeys(i.Annotations) {
			want := i.Annotations[k]
			if have, ok := vmi[k]; template[k] == want && have != want {
				return []Verdict{f.about(i, Warn, CodeRestartPending, f.command("restart"), "the template has %s %q, the running instance has %s", k, want, orNone(have, ok))}
			}
		}
		return nil
	})
}

// PendingChange is RestartPending as a migration needs it: the target pod is made from the running
// instance's annotations, so these must ask for addresses that are the machine's. A change that
// waits for a restart does not hinder while the old address is still held for the machine.
func PendingChange(f *Facts) []Verdict {
	if f.View.VMI == nil {
		return nil
	}
	return f.each(func(i Interface) []Verdict {
		reserved := i.Reserved()
		if len(reserved) == 0 || len(i.Keys) == 0 {
			return nil
		}
		restart := f.command("restart")
		switch held := append(i.Leaving(), reserved...); {
		case i.AskedErr != nil:
			return []Verdict{f.about(i, Refuse, CodeMalformedAnnotation, restart, "the running instance: %v", i.AskedErr)}
		case len(i.Asked) == 0:
			return []Verdict{f.about(i, Refuse, CodeRestartPending, restart,
				"the running instance has no %s, so the target pod would not get %s", i.Keys[0], address.Join(reserved))}
		case sameSet(i.Asked, reserved):
			return nil
		case subset(i.Asked, held) && len(i.Asked) == len(reserved):
			return []Verdict{f.about(i, Warn, CodeRestartPending, restart, "migrating keeps %s: the change to %s needs a restart", address.Join(i.Asked), address.Join(reserved))}
		}
		return []Verdict{f.about(i, Refuse, CodeRestartPending, restart,
			"the running instance asks for %s, and the machine's address is %s", address.Join(i.Asked), address.Join(reserved))}
	})
}

func subset(a, b []netip.Addr) bool {
	return !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

func sameSet(a, b []netip.Addr) bool { return subset(a, b) && subset(b, a) }

func orNone(s string, ok bool) string {
	if !ok {
		return "none"
	}
	return `"` + s + `"`
}
