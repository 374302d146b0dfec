package rollout

// The codes with which operations end: a contract, see docs/commands.md.
const (
	CodeWrongAddress      = "WrongAddress"
	CodeAddressUnknown    = "AddressUnknown"
	CodeWrongMAC          = "WrongMAC"
	CodeMACUnknown        = "MACUnknown"
	CodeGuestMismatch     = "GuestMismatch"
	CodeGuestNoAddress    = "GuestNoAddress"
	CodeSandboxFailed     = "SandboxFailed"
	CodePodRefused        = "PodRefused"
	CodeInstanceRefused   = "InstanceRefused"
	CodeInstanceFailed    = "InstanceFailed"
	CodeInstanceReplaced  = "InstanceReplaced"
	CodeMachineDeleted    = "MachineDeleted"
	CodeStoppedByOther    = "StoppedByOther"
	CodeStrayPod          = "StrayPod"
	CodeSecondOwner       = "SecondOwner"
	CodeSameNode          = "SameNode"
	CodeMigrationFailed   = "MigrationFailed"
	CodeMigrationCanceled = "MigrationCanceled"
	CodeAbortTooLate      = "AbortTooLate"
	CodeSourceNotFinished = "SourceNotFinished"
	CodeRefusedByServer   = "RefusedByServer"
	CodeNotPermitted      = "NotPermitted"
	CodeChangedMeanwhile  = "ChangedMeanwhile"
	CodeLost              = "Lost"
	CodeTimedOut          = "TimedOut"
	CodeInterrupted       = "Interrupted"
)

// The phases of operations, as they are shown.
const (
	PhaseStopping = "stopping"
	PhaseStarting = "starting"
	PhaseTarget   = "target"
	PhaseHandOver = "hand-over"
	PhaseAborting = "aborting"
	PhaseChecking = "checking"
	PhaseVerified = "verified"
)
