// Package rollout restarts and live-migrates virtual machines in an order that neither loses nor
// doubles an address. An operation gathers facts, passes preflight, makes a plan, acts once,
// watches what KubeVirt does with it, verifies the end against the ledger and says precisely
// where things stand. docs/design/rollout.md has the order and the reasons.
//
// What decides is pure: restartState and migrationState look at what was observed and return a
// decision. What acts (Restart, Migrate) feeds them from watches that are bounded to the one
// machine, so that an operation costs the same in a small cluster and in a large one.
package rollout
