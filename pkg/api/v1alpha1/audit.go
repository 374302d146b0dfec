package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Severity of a finding.
type Severity string

// The severities, the worst first. Errors are addresses that are lost or doubled now or at the
// next start; warnings are states that become errors if nobody acts; infos need no action.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityInfo    Severity = "info"
)

// Subject is the object that a finding is about.
type Subject struct {
	// Kind is a Kubernetes kind, or Pool, Row or Ledger for what the ledger's ConfigMaps hold.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// String is "namespace/name" of what virtual machines are, and names the kind of all else.
func (s Subject) String() string {
	name := s.Name
	if s.Namespace != "" {
		name = s.Namespace + "/" + name
	}
	switch s.Kind {
	case "VirtualMachine":
		return name
	case "VirtualMachineInstance":
		return "vmi/" + name
	case "Pod":
		return "pod/" + name
	case "Pool":
		return "pool/" + name
	case "Row":
		return "row/" + name
	}
	return name
}

// Finding is one thing that an audit found.
type Finding struct {
	// Code is a stable CamelCase word; docs/audit.md lists them.
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Object   Subject  `json:"object"`
	// Interface is the name of the network in the virtual machine's spec.
	Interface string `json:"interface,omitempty"`
	// Network is the ledger's domain of uniqueness that the address belongs to.
	Network string `json:"network,omitempty"`
	Address string `json:"address,omitempty"`
	// Evidence is one sentence with the values that were compared.
	Evidence string `json:"evidence"`
	// Remedy is a command line.
	Remedy string `json:"remedy"`
}

// SkippedCheck is a check that could not be made, or only in part: its codes not being reported
// proves nothing.
type SkippedCheck struct {
	Codes  []string `json:"codes"`
	Reason string   `json:"reason"`
}

// AuditSummary counts findings by severity, so that nobody has to parse text.
type AuditSummary struct {
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
	Infos    int `json:"infos"`
	// Skipped counts checks that could not be made.
	Skipped int `json:"skipped"`
	// VirtualMachines, Pods and Rows say how much was looked at.
	VirtualMachines int `json:"virtualMachines"`
	Pods            int `json:"pods"`
	Rows            int `json:"rows"`
}

// AuditReport is the output of `audit`.
type AuditReport struct {
	metav1.TypeMeta `json:",inline"`
	// ToolVersion is the version of kubectl-vmip that made the report.
	ToolVersion string `json:"toolVersion"`
	// ClusterUID is the UID of the kube-system namespace, empty where it could not be read.
	ClusterUID      string `json:"clusterUID,omitempty"`
	LedgerNamespace string `json:"ledgerNamespace,omitempty"`
	// Namespace is the namespace whose virtual machines were judged; empty means all.
	Namespace string `json:"namespace,omitempty"`
	// Files are the paths of an audited dump.
	Files []string `json:"files,omitempty"`
	// Taken is when the state was read that the findings are about.
	Taken    metav1.Time    `json:"taken"`
	Summary  AuditSummary   `json:"summary"`
	Findings []Finding      `json:"findings"`
	Skipped  []SkippedCheck `json:"skipped"`
}

// DeepCopyObject implements runtime.Object.
func (r *AuditReport) DeepCopyObject() runtime.Object { return clone(r) }
