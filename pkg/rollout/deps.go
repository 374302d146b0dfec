package rollout

import (
	"context"
	"time"

	"github.com/oklog/ulid/v2"
	"k8s.io/client-go/kubernetes"
	"kubevirt.io/client-go/kubevirt"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// Deps is what operations act through. Only the fields without "may be nil" are needed.
type Deps struct {
	Core     kubernetes.Interface
	KubeVirt kubevirt.Interface
	Ledger   *ledger.Store
	// Profiles detects the cluster's network plugins; it is asked for every machine and should
	// remember.
	Profiles func(context.Context) (*profile.Cluster, error)
	// Settle moves the rows of a machine on that runs with its reserved addresses: its leaving
	// rows turn held. May be nil.
	Settle func(context.Context, machine.Ref) error
	// FieldManager is written with every change.
	FieldManager string
	// DryRun sends writes for the server to check only.
	DryRun bool
	// NoWait ends a restart as soon as it was requested, unverified.
	NoWait bool
	// Now and NewOp are the clock and the source of operation IDs; nil: this machine's, and
	// fresh ULIDs.
	Now   func() time.Time
	NewOp func() string
	// Patience is how long the API server may be out of reach in the middle of an operation;
	// 0: two minutes.
	Patience time.Duration
}

func (d Deps) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

func (d Deps) newOp() string {
	if d.NewOp != nil {
		return d.NewOp()
	}
	return ulid.Make().String()
}

func (d Deps) patience() time.Duration {
	if d.Patience > 0 {
		return d.Patience
	}
	return 2 * time.Minute
}
