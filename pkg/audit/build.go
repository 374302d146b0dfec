package audit

import (
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// about begins a finding on a machine, or on an instance that has none, with the code's remedy.
func (e *estate) about(code Code, g *guest) Finding {
	f := e.aboutVM(code, g.ref)
	switch {
	case g.VM != nil:
		f.Subject.UID = string(g.VM.UID)
	case g.VMI != nil:
		f.Subject.Kind, f.Subject.UID = "VirtualMachineInstance", string(g.VMI.UID)
	}
	return f
}

// aboutVM begins a finding on a machine that may not exist.
func (e *estate) aboutVM(code Code, ref machine.Ref) Finding {
	f := Finding{
		Code:       code,
		Subject:    v1alpha1.Subject{Kind: "VirtualMachine", Namespace: ref.Namespace, Name: ref.Name},
		machines:   []machine.Ref{ref},
		namespaces: []string{ref.Namespace},
	}
	e.remedy(&f, CheckOf(code).Remedy)
	return f
}

// aboutRow begins a finding on the machine that a row names.
func (e *estate) aboutRow(code Code, row *ledger.Entry) Finding {
	o := row.Row.Owner()
	f := e.aboutVM(code, machine.Ref{Namespace: o.Namespace, Name: o.Name})
	f.Subject.UID = string(o.UID)
	f.Interface = o.Interface
	f.at(row.Network, row.Addr)
	e.remedy(&f, CheckOf(code).Remedy)
	return f
}

// on adds the interface, and with it the flag that the remedy needs for any but the primary one.
func (e *estate) on(f *Finding, n *nic) {
	f.Interface = n.Name
	e.remedy(f, CheckOf(f.Code).Remedy)
	if !n.Primary() && (strings.HasPrefix(f.Remedy, "kubectl vmip reserve ") || strings.HasPrefix(f.Remedy, "kubectl vmip release ")) {
		f.Remedy += " --interface " + n.Name
	}
}

// at adds the address and its domain.
func (f *Finding) at(domain string, a netip.Addr) {
	f.Network, f.Addr = networkOf(domain), a
	f.Remedy = fill(f.Remedy, "{address}", a.String())
}

// remedy sets the command line, with what is known of its placeholders.
func (e *estate) remedy(f *Finding, template string, pairs ...string) {
	if f.Addr.IsValid() {
		pairs = append(pairs, "{address}", f.Addr.String())
	}
	f.Remedy = e.command(template, machine.Ref{Namespace: f.Subject.Namespace, Name: f.Subject.Name}, pairs...)
}

// command fills a command line for an object. Commands of this program get the ledger's namespace
// where it is not the default one.
func (e *estate) command(template string, ref machine.Ref, pairs ...string) string {
	line := fill(template, append(pairs, "{vm}", ref.Name, "{namespace}", ref.Namespace)...)
	if e.LedgerNamespace != "" && e.LedgerNamespace != ledger.DefaultNamespace && strings.HasPrefix(line, "kubectl vmip ") && !strings.Contains(line, "--ledger-namespace") {
		line += " --ledger-namespace " + e.LedgerNamespace
	}
	return line
}

// old says whether something lasts longer than the grace time. What has no time is old.
func (e *estate) old(since time.Time) bool { return e.Now.Sub(since) > e.opts.grace() }

func podRef(p *corev1.Pod) machine.Ref { return machine.Ref{Namespace: p.Namespace, Name: p.Name} }

func day(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format("2006-01-02")
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }
