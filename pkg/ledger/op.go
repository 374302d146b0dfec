package ledger

import "github.com/oklog/ulid/v2"

// NewOp returns a fresh operation id: a ULID, unique whoever makes it. Ids are compared for
// equality, never for order.
func NewOp() string { return ulid.Make().String() }
