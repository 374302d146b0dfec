// Package rollout restarts and live-migrates virtual machines in an order that neither loses nor
// doubles an address. An operation gathers facts, passes preflight, makes a plan, acts once,
// watches what KubeVirt does with it, verifies the end against the ledger and says precisely
// where things stand. docs/design/rollout.md has the order and the reasons.
//
// What decides is pure: restartState and migrationState look at what was observed and return a
// decision. What acts (Restart, Migrate) feeds them from watches that are bounded to the one
// machine, so that an operation costs the same in a small cluster and in a large one.
//
// A network plugin that needs something done between stop and start (a record that has to be gone,
// an attachment that is swapped) would make a restart a stop, a gap and a start, marked on the
// machine so that a second run goes on; the place for it is Deps.askRestart. No profile needs it.
package rollout
