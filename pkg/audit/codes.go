package audit

import (
	"fmt"
	"strings"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
)

// Code names a kind of finding. Codes are a contract: they are never renamed, and one is never
// given another meaning.
type Code string

// The codes. Checks has what each of them means.
const (
	DuplicateAddress      Code = "DuplicateAddress"
	AddressInUseByOther   Code = "AddressInUseByOther"
	TemplateMissing       Code = "TemplateMissing"
	TemplateForeign       Code = "TemplateForeign"
	AddressDrift          Code = "AddressDrift"
	DuplicateMAC          Code = "DuplicateMAC"
	MisplacedAnnotation   Code = "MisplacedAnnotation"
	MalformedAnnotation   Code = "MalformedAnnotation"
	IneffectiveAnnotation Code = "IneffectiveAnnotation"
	PoolOverlapsNode      Code = "PoolOverlapsNode"
	SecondLedger          Code = "SecondLedger"
	LedgerCorrupt         Code = "LedgerCorrupt"
	RestartPending        Code = "RestartPending"
	GuestMismatch         Code = "GuestMismatch"
	OrphanReservation     Code = "OrphanReservation"
	InterruptedReserve    Code = "InterruptedReserve"
	RecreatedVM           Code = "RecreatedVM"
	InUseUnrecorded       Code = "InUseUnrecorded"
	OutsidePool           Code = "OutsidePool"
	NodeUnreachable       Code = "NodeUnreachable"
	SourcePodLingers      Code = "SourcePodLingers"
	StrayMigrationTarget  Code = "StrayMigrationTarget"
	MigrationBlocked      Code = "MigrationBlocked"
	HeldExpired           Code = "HeldExpired"
	RowNotIndexed         Code = "RowNotIndexed"
	StrayOwnerLabel       Code = "StrayOwnerLabel"
	NewerFormat           Code = "NewerFormat"
	PoolUnregistered      Code = "PoolUnregistered"
	InterruptedPoolChange Code = "InterruptedPoolChange"
	InterruptedRelease    Code = "InterruptedRelease"
	DuplicateReservation  Code = "DuplicateReservation"
	TemplateReleased      Code = "TemplateReleased"
)

// Check is one row of the table of codes: what `audit` looks for.
type Check struct {
	Code     Code
	Severity v1alpha1.Severity
	// Meaning is one sentence; Silent says what looks alike and is not reported.
	Meaning string
	Silent  string
	// Remedy is a command line with placeholders: {vm}, {namespace}, {address}, {interface},
	// {pool}, {node}, {pod}, {key}, {configmap}, {ledger}, {label}.
	Remedy string
}

// Checks is the table of codes, the worst first. docs/audit.md and `audit --help` are made from it.
var Checks = []Check{
	{DuplicateAddress, v1alpha1.SeverityError,
		"Two owners have, or ask for, one address in one network: pods, guests, or templates without a reservation.",
		"Both pods of a live migration; KubeVirt's provisioning and hot-plug pods; Completed and Failed pods; networks that are isolated from each other; 10.0.2.2 behind masquerade.",
		"kubectl vmip reserve {vm} -n {namespace}"},
	{AddressInUseByOther, v1alpha1.SeverityError,
		"A reserved address is on a pod, a guest or a node that is not its owner.",
		"A pod on the host's network, which has the node's address: see PoolOverlapsNode.",
		"kubectl vmip reserve {vm} -n {namespace}"},
	{TemplateMissing, v1alpha1.SeverityError,
		"An address is reserved, but the virtual machine's template does not ask for it: the next start gets another one. A manifest was re-applied, as a rule.",
		"A virtual machine that does not exist yet; a reserve that is being written.",
		"kubectl vmip reserve {vm} -n {namespace}"},
	{TemplateForeign, v1alpha1.SeverityError,
		"A template asks for an address that is reserved for another virtual machine: a clone or a restore copied it.",
		"A restore in place, which keeps the UID.",
		"kubectl vmip reserve {vm} -n {namespace}"},
	{AddressDrift, v1alpha1.SeverityError,
		"The running instance asks for the reserved address, and its pod has another one.",
		"A pod that shows no address yet; Completed and Failed pods; an instance from before the reservation, which is RestartPending.",
		"kubectl vmip restart {vm} -n {namespace}"},
	{DuplicateMAC, v1alpha1.SeverityError,
		"Two virtual machines, running or not, have one MAC address pinned on one network.",
		"The two pods of a live migration; masquerade, which hides the guest's MAC; networks that are isolated from each other.",
		"kubectl edit virtualmachine {vm} -n {namespace}"},
	{MisplacedAnnotation, v1alpha1.SeverityError,
		"An annotation that pins an address is on the virtual machine or on the pod; KubeVirt copies it from spec.template.metadata only, when the instance starts.",
		"The template has the annotation too; a CNI that writes the annotation on the pod itself.",
		"kubectl vmip reserve {vm} -n {namespace} --ip {address}"},
	{MalformedAnnotation, v1alpha1.SeverityError,
		"The value of an annotation is not what the network plugin parses: the pod won't start, or the value is ignored. Or vmip.io/reservations on the virtual machine can't be read: commands refuse the machine.",
		"Spellings that the plugin accepts; vmip.io/reservations copied from another virtual machine.",
		"kubectl edit virtualmachine {vm} -n {namespace}"},
	{IneffectiveAnnotation, v1alpha1.SeverityError,
		"Nothing in this cluster reads the annotation, or KubeVirt overwrites it.",
		"k8s.v1.cni.cncf.io/networks on a virtual machine without Multus networks, where KubeVirt lets it pass; a cluster whose network plugin could not be established.",
		"kubectl edit virtualmachine {vm} -n {namespace}"},
	{PoolOverlapsNode, v1alpha1.SeverityError,
		"A node's address lies among those that a pool hands out.",
		"Addresses that the pool excludes or leaves out of its ranges.",
		"kubectl vmip pool set {pool} --exclude {address}"},
	{SecondLedger, v1alpha1.SeverityError,
		"There is another ledger, in another namespace: each of them may hand out the same address.",
		"",
		"kubectl vmip audit -A --ledger-namespace {ledger}"},
	{LedgerCorrupt, v1alpha1.SeverityError,
		"A row or an object of the ledger can't be read. It counts as taken and is never rewritten.",
		"Fields that a newer version has written; an object of a newer format, which is NewerFormat.",
		"kubectl edit configmap {configmap} -n {ledger}"},
	{RowNotIndexed, v1alpha1.SeverityError,
		"A block lacks the owner label of one of its rows: commands do not find the row, and reserve gives its owner a second address.",
		"A row that can't be read; a foreign claim; a block of a newer format.",
		"kubectl label configmap {configmap} -n {ledger} {label}="},
	{RestartPending, v1alpha1.SeverityWarning,
		"The running instance was started without what the template asks for now: it has another address, or would lose its own in a live migration.",
		"An instance that has all of it; a template that lost its annotations, which is TemplateMissing.",
		"kubectl vmip restart {vm} -n {namespace}"},
	{GuestMismatch, v1alpha1.SeverityWarning,
		"The guest agent reports addresses on the interface, and the reserved one is not among them.",
		"No report, or no global address in it; further addresses beside the reserved one; other interfaces; masquerade; IPv6 under bridge, which KubeVirt does not deliver.",
		"kubectl vmip restart {vm} -n {namespace}"},
	{OrphanReservation, v1alpha1.SeverityWarning,
		"The virtual machine that an address is reserved for is gone, by its UID.",
		"The look-up failed or was partial; the machine is being restored, or its instance still stops; a reservation for a machine that does not exist yet.",
		"kubectl vmip release {vm} -n {namespace}"},
	{InterruptedReserve, v1alpha1.SeverityWarning,
		"A row is reserved that its virtual machine does not name: a command died before it was done.",
		"A row younger than the grace time (--grace).",
		"kubectl vmip reserve {vm} -n {namespace}"},
	{DuplicateReservation, v1alpha1.SeverityWarning,
		"One interface has two reserved rows of a family: a command died, or lost a race and died.",
		"An address that the interface is moving away from (leaving); the rows of an earlier virtual machine of that name; a row younger than the grace time.",
		"kubectl vmip reserve {vm} -n {namespace} --interface {interface}"},
	{InterruptedRelease, v1alpha1.SeverityWarning,
		"A row is on its way out (releasing or leaving) and nothing uses its address any more: a command died, or the virtual machine has stopped since.",
		"A row younger than the grace time; while a pod has the address or shows none yet, or a template asks for it.",
		"kubectl vmip release {vm} -n {namespace} --interface {interface}"},
	{TemplateReleased, v1alpha1.SeverityWarning,
		"A template asks for an address that was released, by this virtual machine or an earlier one of that name: it is not the machine's.",
		"A row younger than the grace time; a release that has yet to clean the template, which is InterruptedRelease.",
		"kubectl vmip reserve {vm} -n {namespace}"},
	{InterruptedPoolChange, v1alpha1.SeverityWarning,
		"A pool was added, changed or removed by a command that died: the change is announced and not in force, or the registry of the network says otherwise than the pool.",
		"A change younger than the grace time.",
		"kubectl vmip pool set {pool}"},
	{PoolUnregistered, v1alpha1.SeverityWarning,
		"The registry of its network (configmap vmip-network-NETWORK) does not have a pool, or not all of its CIDRs: reserve refuses the pool, and another pool may take its addresses.",
		"A registry that can't be read, which is LedgerCorrupt.",
		"kubectl vmip pool add {pool}"},
	{NewerFormat, v1alpha1.SeverityWarning,
		"A newer version has written an object of the ledger: it is read as far as possible, and commands refuse to change it.",
		"Fields that a newer version has added to a row.",
		"kubectl krew upgrade vmip"},
	{RecreatedVM, v1alpha1.SeverityWarning,
		"An address is reserved for an earlier virtual machine of that name, and the present one asks for it or has it.",
		"A present machine that does neither: the row is an OrphanReservation.",
		"kubectl vmip reserve {vm} -n {namespace} --adopt"},
	{InUseUnrecorded, v1alpha1.SeverityWarning,
		"A virtual machine runs on an address that a pool hands out, and the ledger has no row for it.",
		"Addresses that the pool excludes or leaves out of its ranges; a machine whose own reservation waits for a restart.",
		"kubectl vmip reserve {vm} -n {namespace} --ip {address}"},
	{OutsidePool, v1alpha1.SeverityWarning,
		"A reserved address is in no pool of its network any more, or in one that does not allow it.",
		"",
		"kubectl vmip release {vm} -n {namespace}"},
	{NodeUnreachable, v1alpha1.SeverityWarning,
		"The node of a running virtual machine does not answer: whether the address is still in use there can't be verified.",
		"A node that is only cordoned.",
		"kubectl describe node {node}"},
	{SourcePodLingers, v1alpha1.SeverityWarning,
		"A live migration has succeeded and its source pod has not ended: it still holds the address.",
		"Within the grace time after the migration.",
		"kubectl delete pod {pod} -n {namespace}"},
	{StrayMigrationTarget, v1alpha1.SeverityWarning,
		"The target pod of a live migration that failed or is gone still runs, and holds the address.",
		"A migration under way; within the grace time.",
		"kubectl delete pod {pod} -n {namespace}"},
	{MigrationBlocked, v1alpha1.SeverityWarning,
		"The opt-in to live migration with bridge on the pod network is not what it seems: KubeVirt looks whether the annotation is there, on the instance, and never at its value.",
		"Virtual machines without bridge on the pod network.",
		"kubectl edit virtualmachine {vm} -n {namespace}"},
	{HeldExpired, v1alpha1.SeverityInfo,
		"The cool-down of a released address is over and nobody uses it: the next command that meets the row frees it.",
		"",
		"kubectl vmip pool show {pool}"},
	{StrayOwnerLabel, v1alpha1.SeverityInfo,
		"A block has an owner label without a row of such an owner: commands look into the block in vain.",
		"A block with a row that can't be read, which may be the owner's; a block of a newer format.",
		"kubectl label configmap {configmap} -n {ledger} {label}-"},
}

// CheckOf returns the table's row of a code.
func CheckOf(c Code) Check {
	for _, check := range Checks {
		if check.Code == c {
			return check
		}
	}
	panic("audit: no check has the code " + string(c))
}

// fill puts values into a command line. Names of Kubernetes objects need no quoting in a shell.
func fill(template string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(template)
}

// CodesMarkdown is the table of codes for docs/audit.md.
func CodesMarkdown() string {
	var b strings.Builder
	b.WriteString("| Code | Severity | Reported when | Not reported | Remedy |\n|---|---|---|---|---|\n")
	for _, c := range Checks {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | `%s` |\n", c.Code, c.Severity, c.Meaning, c.Silent, c.Remedy)
	}
	return b.String()
}
