// Package audit compares what the ledger says with what a cluster, or a dump of one, shows. Rules
// are pure: a snapshot in, findings out. What could not be read is never silently fine: the checks
// that needed it are reported as skipped, with the reason.
package audit

import (
	"slices"
)

// rule finds the findings of some codes.
type rule struct {
	codes []Code
	// needs are the resources without which the rule says nothing.
	needs []Resource
	// wide are those that have to cover all namespaces; a rule that sees one namespace only finds
	// what is in it, and says so.
	wide []Resource
	find func(*estate) ([]Finding, []Skip)
}

var rules = []rule{
	{[]Code{DuplicateAddress, AddressInUseByOther}, []Resource{Pods, VMs, VMIs}, []Resource{Pods, VMs, VMIs}, usedTwice},
	{[]Code{DuplicateAddress}, []Resource{VMs}, []Resource{VMs}, askedTwice},
	{[]Code{TemplateMissing, InterruptedReserve}, []Resource{Ledger, VMs}, nil, unasked},
	{[]Code{TemplateForeign}, []Resource{Ledger, VMs}, nil, askedOfOthers},
	{[]Code{RecreatedVM}, []Resource{Ledger, VMs, Pods}, nil, recreated},
	{[]Code{AddressDrift, RestartPending}, []Resource{VMs, VMIs, Pods}, nil, running},
	{[]Code{GuestMismatch}, []Resource{Ledger, VMs, VMIs, Pods}, nil, guestReports},
	{[]Code{OrphanReservation}, []Resource{Ledger, VMs, VMIs, Pods, Restores}, nil, orphans},
	{[]Code{HeldExpired}, []Resource{Ledger, VMs, VMIs, Pods}, []Resource{Pods}, expired},
	{[]Code{OutsidePool}, []Resource{Ledger}, nil, outside},
	{[]Code{LedgerCorrupt}, []Resource{Ledger}, nil, corrupt},
	{[]Code{NewerFormat}, []Resource{Ledger}, nil, newerFormats},
	{[]Code{RowNotIndexed, StrayOwnerLabel}, []Resource{Ledger}, nil, ownerLabels},
	{[]Code{PoolUnregistered}, []Resource{Ledger}, nil, unregistered},
	{[]Code{InterruptedPoolChange}, []Resource{Ledger}, nil, poolChanges},
	{[]Code{DuplicateReservation}, []Resource{Ledger, VMs}, nil, twins},
	{[]Code{InterruptedRelease}, []Resource{Ledger, VMs, VMIs, Pods}, []Resource{Pods}, interruptedReleases},
	{[]Code{TemplateReleased}, []Resource{Ledger, VMs}, nil, releasedAsked},
	{[]Code{SecondLedger}, []Resource{VMs}, []Resource{Ledgers}, secondLedgers},
	{[]Code{InUseUnrecorded}, []Resource{Ledger, VMs, VMIs, Pods}, nil, unrecorded},
	{[]Code{PoolOverlapsNode, AddressInUseByOther}, []Resource{Ledger, Nodes}, nil, nodeAddresses},
	{[]Code{NodeUnreachable}, []Resource{Ledger, VMs, VMIs, Pods, Nodes}, nil, unreachable},
	{[]Code{MisplacedAnnotation}, []Resource{VMs}, nil, misplaced},
	{[]Code{MalformedAnnotation}, []Resource{VMs}, nil, malformed},
	{[]Code{IneffectiveAnnotation}, []Resource{VMs}, []Resource{Plugins}, ineffective},
	{[]Code{DuplicateMAC}, []Resource{VMs}, []Resource{VMs}, duplicateMACs},
	{[]Code{SourcePodLingers, StrayMigrationTarget}, []Resource{VMIs, Pods, Migrations}, nil, leftovers},
	{[]Code{MigrationBlocked}, []Resource{VMs}, nil, optIn},
}

// Run judges a snapshot.
func Run(s *Snapshot, opts Options) *Report {
	e := newEstate(s, opts)
	r := &Report{Pods: len(s.Pods)}
	for _, vm := range s.VMs {
		if opts.Namespace == "" || opts.Namespace == vm.Namespace {
			r.VMs++
		}
	}
	if s.Ledger != nil {
		r.Rows = len(s.Ledger.Entries)
	}
	for _, rule := range rules {
		missing := false
		for _, needed := range rule.needs {
			if gap, ok := s.Gaps[needed]; ok && !gap.Partial {
				missing = true
				r.skip(rule.codes, gap.Reason)
			}
		}
		if missing {
			continue
		}
		for _, needed := range rule.wide {
			if gap, ok := s.Gaps[needed]; ok && gap.Partial {
				r.skip(rule.codes, gap.Reason)
			}
		}
		found, skipped := rule.find(e)
		for _, f := range found {
			if f.concerns(opts.Namespace) {
				r.Findings = append(r.Findings, f)
			}
		}
		for _, s := range skipped {
			r.skip(s.Codes, s.Reason)
		}
	}
	r.sort()
	return r
}

// skip notes codes that were not checked; reasons are listed once.
func (r *Report) skip(codes []Code, reason string) {
	at := slices.IndexFunc(r.Skipped, func(s Skip) bool { return s.Reason == reason })
	if at < 0 {
		r.Skipped = append(r.Skipped, Skip{Reason: reason})
		at = len(r.Skipped) - 1
	}
	for _, c := range codes {
		if !slices.Contains(r.Skipped[at].Codes, c) {
			r.Skipped[at].Codes = append(r.Skipped[at].Codes, c)
		}
	}
}
