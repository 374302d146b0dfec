package preflight

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/address"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Codes of this file.
const (
	CodeCannotChoose           = "CNICannotChoose"
	CodeSecondaryUnsupported   = "SecondaryNetworkUnsupported"
	CodeTooManyAddresses       = "TooManyAddresses"
	CodeDualStackUnsupported   = "DualStackUnsupported"
	CodePodWideAnnotation      = "PodWideAnnotation"
	CodeNotStickyOverRestart   = "NotStickyOverRestart"
	CodeNotStickyOverMigration = "NotStickyOverMigration"
	CodeCNINotSticky           = "CNINotSticky"
	CodeCNIRecordConflict      = "CNIRecordConflict"
	CodeCNIRecordUnread        = "CNIRecordUnread"
	CodeAddressInUseByOther    = "AddressInUseByOther"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// capability turns a profile's answer into a verdict; nothing for a yes.
func (f *Facts) capability(i Interface, code string, c profile.Capability) []Verdict {
	switch c.Answer {
	case profile.Yes:
		return nil
	case profile.No:
		return []Verdict{f.about(i, Refuse, code, f.command("profile"), "%s", c.Reason)}
	}
	reason := c.Reason
	if reason == "" {
		reason = "the network of the interface has not been looked at"
	}
	return []Verdict{f.about(i, Unverified, code, f.command("profile"), "%s", reason)}
}

// each applies a rule to every interface.
func (f *Facts) each(rule func(Interface) []Verdict) []Verdict {
	var list []Verdict
	for _, i := range f.Interfaces {
		list = append(list, rule(i)...)
	}
	return list
}

// CannotChoose refuses networks on which nobody can choose an address, so that no annotation is
// written that nobody reads.
func CannotChoose(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		code := CodeCannotChoose
		if !i.Primary() {
			code = CodeSecondaryUnsupported
		}
		return f.capability(i, code, i.Capabilities.Choose)
	})
}

// TooManyAddresses refuses a second address of a family: no plugin takes it.
func TooManyAddresses(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		seen := map[address.Family]netip.Addr{}
		for _, a := range i.Want {
			if b, dup := seen[address.FamilyOf(a)]; dup {
				return []Verdict{f.about(i, Refuse, CodeTooManyAddresses, "ask for one address a family", "%s and %s are both %s", b, a, address.FamilyOf(a))}
			}
			seen[address.FamilyOf(a)] = a
		}
		return nil
	})
}

// families are those of the addresses that are asked for, as far as they are known.
func (i Interface) families() []address.Family {
	if i.Families > 1 {
		return address.Families
	}
	var list []address.Family
	for _, a := range i.Want {
		list = append(list, address.FamilyOf(a))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// DualStack refuses two families where the network can't have both.
func DualStack(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		if len(i.families()) < 2 {
			return nil
		}
		return f.capability(i, CodeDualStackUnsupported, i.Capabilities.DualStack)
	})
}

// SharedKeys refuses an annotation that another interface of the machine would obey too: the plugin
// would give it the same address, or fail (calico issue 10554).
func SharedKeys(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		others := slices.Concat(f.Interfaces, f.Neighbours)
		for _, o := range others {
			if o.Name == i.Name {
				continue
			}
			for _, k := range i.Keys {
				if slices.Contains(o.Keys, k) {
					return []Verdict{f.about(i, Refuse, CodePodWideAnnotation, "keep one of the two interfaces on this plugin",
						"%s is pod-wide: interface %s is served by %s too and would obey it", k, o.Name, o.Profile)}
				}
			}
		}
		return nil
	})
}

// StickyOverRestart refuses networks that give a machine's next pod another address.
func StickyOverRestart(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		return f.capability(i, CodeNotStickyOverRestart, i.Capabilities.Restart)
	})
}

// StickyOverMigration refuses networks that give a migration's target another address, or none.
// KubeVirt's own condition does not know of it (KubeVirt issue 9440).
func StickyOverMigration(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		return f.capability(i, CodeNotStickyOverMigration, i.Capabilities.Migration)
	})
}

// MigrationLater warns at a reservation that the address will not survive a live migration.
func MigrationLater(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		switch c := i.Capabilities.Migration; c.Answer {
		case profile.No:
			return []Verdict{f.about(i, Warn, CodeCNINotSticky, f.command("profile"), "the machine can't be live-migrated with its address: %s", c.Reason)}
		case profile.Unverified:
			return []Verdict{f.about(i, Info, CodeCNINotSticky, f.command("profile"), "whether the machine can be live-migrated with its address is unverified: %s", c.Reason)}
		}
		return nil
	})
}

// RecordWins refuses where the plugin holds another address for the machine and will give that,
// whatever the annotation says.
func RecordWins(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		if i.RecordsErr != nil {
			return []Verdict{f.about(i, Unverified, CodeCNIRecordUnread, f.command("profile"), "the network plugin's own record could not be read: %v", i.RecordsErr)}
		}
		want := i.Want
		if len(want) == 0 {
			want = i.Reserved()
		}
		for _, r := range i.Records {
			for _, a := range r.Addresses {
				if !r.Wins || slices.Contains(want, a) || len(want) > 0 && !hasFamily(want, a) {
					continue
				}
				remedy := "reserve the address that it has with --ip " + a.String() + ", or stop the machine and give the record up: " + r.Release
				return []Verdict{f.about(i, Refuse, CodeCNIRecordConflict, remedy, "%s holds %s for the machine and wins over the annotation%s", r.Object, a, insteadOf(want))}
			}
		}
		return nil
	})
}

// CodeAddressNotServed is of an address that the network does not have, or no longer has.
const CodeAddressNotServed = "AddressNotServed"

// AddressNotServed refuses to stop a machine that would not start again: the network plugin can't
// give it the address that is reserved for it, because no subnet or IP pool of the plugin has it.
func AddressNotServed(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		if i.RenderErr == nil {
			return nil
		}
		return []Verdict{f.about(i, Refuse, CodeAddressNotServed, f.command("reserve")+" --replace --ip ADDRESS", "the machine would not start again with its address: %v", i.RenderErr)}
	})
}

// hasFamily says whether an address of a's family is among those that are wanted.
func hasFamily(want []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(want, func(w netip.Addr) bool { return address.FamilyOf(w) == address.FamilyOf(a) })
}

func insteadOf(want []netip.Addr) string {
	if len(want) == 0 {
		return ""
	}
	return fmt.Sprintf(", which would ask for %s", address.Join(want))
}

// InUse refuses addresses that somebody else has.
func InUse(f *Facts) []Verdict {
	return f.each(func(i Interface) []Verdict {
		var list []Verdict
		for _, u := range i.Uses {
			list = append(list, f.about(i, Refuse, CodeAddressInUseByOther, "choose another address, or free this one where it is used", "%s is in use: %s", u.Addr, u.By))
		}
		return list
	})
}
