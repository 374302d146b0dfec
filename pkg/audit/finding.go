package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Finding is one thing that the rules found.
type Finding struct {
	Code    Code
	Subject v1alpha1.Subject
	// Interface, Network and Address are empty where the finding is not about one.
	Interface string
	Network   string
	Addr      netip.Addr
	Evidence  string
	Remedy    string

	// machines, pods and nodes are what has to be read again before the finding is believed.
	machines []machine.Ref
	pods     []machine.Ref
	nodes    []string
	// namespaces are those whose users it concerns; none means all.
	namespaces []string
}

// Severity is the severity of the finding's code.
func (f Finding) Severity() v1alpha1.Severity { return CheckOf(f.Code).Severity }

// identity is what a finding keeps when it is found again; the evidence may read differently.
type identity struct {
	code    Code
	subject v1alpha1.Subject
	iface   string
	network string
	addr    netip.Addr
}

func (f Finding) identity() identity {
	return identity{f.Code, f.Subject, f.Interface, f.Network, f.Addr}
}

// concerns says whether the finding is shown to who looks at one namespace; "" looks at all.
func (f Finding) concerns(namespace string) bool {
	return namespace == "" || len(f.namespaces) == 0 || slices.Contains(f.namespaces, namespace)
}

// Skip is a check that could not be made, or only in part.
type Skip struct {
	Codes  []Code
	Reason string
}

// Report is the outcome of an audit.
type Report struct {
	Findings []Finding
	Skipped  []Skip
	// VMs, Pods and Rows say how much was looked at.
	VMs, Pods, Rows int
}

// Count returns how many findings have the severity.
func (r *Report) Count(s v1alpha1.Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity() == s {
			n++
		}
	}
	return n
}

// AtLeast returns how many findings are as bad as the severity, or worse.
func (r *Report) AtLeast(s v1alpha1.Severity) (n int) {
	for _, f := range r.Findings {
		if rank(f.Severity()) <= rank(s) {
			n++
		}
	}
	return n
}

// SkippedCodes counts the codes that could not be checked, or only in part.
func (r *Report) SkippedCodes() int {
	codes := map[Code]bool{}
	for _, s := range r.Skipped {
		for _, c := range s.Codes {
			codes[c] = true
		}
	}
	return len(codes)
}

// Severities are all severities, the worst first.
var Severities = []v1alpha1.Severity{v1alpha1.SeverityError, v1alpha1.SeverityWarning, v1alpha1.SeverityInfo}

func rank(s v1alpha1.Severity) int { return slices.Index(Severities, s) }

func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(rank(a.Severity()), rank(b.Severity())),
			strings.Compare(a.Subject.Namespace, b.Subject.Namespace),
			strings.Compare(a.Subject.Name, b.Subject.Name),
			strings.Compare(string(a.Code), string(b.Code)),
			strings.Compare(a.Interface, b.Interface),
			a.Addr.Compare(b.Addr),
			strings.Compare(a.Evidence, b.Evidence),
		)
	})
	slices.SortStableFunc(r.Skipped, func(a, b Skip) int { return strings.Compare(a.Reason, b.Reason) })
}

// API returns the report's findings, skipped checks and counts as `audit` prints them.
func (r *Report) API() *v1alpha1.AuditReport {
	out := &v1alpha1.AuditReport{
		TypeMeta: v1alpha1.Type("AuditReport"),
		Summary: v1alpha1.AuditSummary{
			Errors:          r.Count(v1alpha1.SeverityError),
			Warnings:        r.Count(v1alpha1.SeverityWarning),
			Infos:           r.Count(v1alpha1.SeverityInfo),
			Skipped:         r.SkippedCodes(),
			VirtualMachines: r.VMs, Pods: r.Pods, Rows: r.Rows,
		},
		Findings: []v1alpha1.Finding{},
		Skipped:  []v1alpha1.SkippedCheck{},
	}
	for _, f := range r.Findings {
		api := v1alpha1.Finding{
			Code: string(f.Code), Severity: f.Severity(), Object: f.Subject,
			Interface: f.Interface, Network: f.Network, Evidence: f.Evidence, Remedy: f.Remedy,
		}
		if f.Addr.IsValid() {
			api.Address = f.Addr.String()
		}
		out.Findings = append(out.Findings, api)
	}
	for _, s := range r.Skipped {
		skip := v1alpha1.SkippedCheck{Codes: []string{}, Reason: s.Reason}
		for _, c := range s.Codes {
			skip.Codes = append(skip.Codes, string(c))
		}
		out.Skipped = append(out.Skipped, skip)
	}
	return out
}
