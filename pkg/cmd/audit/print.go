package audit

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/version"
)

type finding = v1alpha1.Finding

var columns = []printer.Column[finding]{
	{Name: "Severity", Value: func(f finding) string { return string(f.Severity) }},
	{Name: "Code", Value: func(f finding) string { return f.Code }},
	{Name: "Object", Value: func(f finding) string { return f.Object.String() }},
	{Name: "Interface", Wide: true, Value: func(f finding) string { return printer.None(f.Interface) }},
	{Name: "Address", Value: func(f finding) string { return printer.None(f.Address) }},
	{Name: "Evidence", Value: func(f finding) string { return oneLine(f.Evidence) }},
	{Name: "Remedy", Wide: true, Value: func(f finding) string { return f.Remedy }},
}

// oneLine keeps a value that somebody wrote over several lines from being cut at the first.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// describe adds to a report what it is about.
func (o *options) describe(r *audit.Report, s *audit.Snapshot, namespace string) *v1alpha1.AuditReport {
	api := r.API()
	api.ToolVersion = version.String()
	api.ClusterUID = string(s.Cluster)
	api.LedgerNamespace = s.LedgerNamespace
	api.Namespace = namespace
	api.Taken = metav1.NewTime(s.Now)
	return api
}

// print writes findings to standard output, and what they amount to to standard error. In the
// structured formats the report has it all.
func (o *options) print(r *audit.Report, api *v1alpha1.AuditReport) error {
	if o.out.Structured() {
		return o.out.Object(o.env.Out, api)
	}
	if err := o.table(api.Findings); err != nil {
		return err
	}
	for _, s := range api.Skipped {
		fmt.Fprintf(o.env.ErrOut, "Skipped %s: %s\n", strings.Join(s.Codes, ", "), printer.Escape(oneLine(s.Reason)))
	}
	_, err := fmt.Fprintln(o.env.ErrOut, o.summary(r, api))
	return err
}

func (o *options) table(findings []finding) error {
	if o.out.Output != printer.Markdown {
		return printer.List[finding]{Columns: columns}.Print(o.env.Out, o.out, nil, findings)
	}
	if len(findings) == 0 {
		return nil
	}
	report := printer.Report{}
	for _, c := range columns {
		report.Columns = append(report.Columns, c.Name)
	}
	for _, f := range findings {
		var row []string
		for _, c := range columns {
			row = append(row, c.Value(f))
		}
		report.Rows = append(report.Rows, row)
	}
	return report.Print(o.env.Out, o.out)
}

// summary is the last line: "2 findings (1 error, 1 warning) in 214 VMs, 0 checks skipped."
func (o *options) summary(r *audit.Report, api *v1alpha1.AuditReport) string {
	var parts []string
	for _, s := range audit.Severities {
		if n := r.Count(s); n > 0 {
			parts = append(parts, count(n, string(s)))
		}
	}
	text := count(len(r.Findings), "finding")
	if len(parts) > 0 {
		text += " (" + strings.Join(parts, ", ") + ")"
	}
	text += " in " + count(r.VMs, "VM")
	if api.Namespace != "" {
		text += " of namespace " + api.Namespace
	}
	text += ", " + count(api.Summary.Skipped, "check") + " skipped"
	if len(r.Findings) > 0 && o.out.Output == "" {
		text += ". Remedies: -o wide"
	}
	return text
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
