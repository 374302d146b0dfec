// Package profile holds what this project knows about network plugins: one file a plugin. A
// profile says what the plugin can hold, which annotations make it do so, and what its own
// records say. docs/profiles.md is the readable form.
package profile

import (
	"context"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

// Answer is whether a network can do something. The zero value is Unverified: what was not
// established is never claimed.
type Answer int

// The three answers.
const (
	Unverified Answer = iota
	Yes
	No
)

func (a Answer) String() string { return [...]string{"unverified", "yes", "no"}[a] }

// Capability is an answer with the reason, one sentence with the values that were compared.
type Capability struct {
	Answer Answer
	Reason string
}

// Capabilities are what a profile promises for one interface.
type Capabilities struct {
	// Choose: a given address can be chosen at all.
	Choose Capability
	// Restart: the address is there again after a stop and start.
	Restart Capability
	// Migration: the target pod of a live migration gets the address while the source has it.
	Migration Capability
	// DualStack: one address of each family can be chosen at once.
	DualStack Capability
	// MAC: while the address stays, so does the guest's MAC, though the template pins none.
	MAC Capability
}

// Rendering is what makes the plugin give an interface its addresses.
type Rendering struct {
	// Annotations go to spec.template.metadata.annotations of the VM.
	Annotations map[string]string
	// Objects have to exist before the VM starts (one-address pools, for example).
	Objects []*unstructured.Unstructured
}

// Record is what the plugin itself has written down about a machine's interface.
type Record struct {
	// Object is the record's "resource/name" for people.
	Object    string
	Addresses []netip.Addr
	// Wins is set where the record is used even when the annotation names another address.
	Wins bool
	// Release is the command line with which an administrator gives the record up.
	Release string
}

// Profile is one plugin in one configuration, as detected in a cluster.
type Profile interface {
	// Name is the word for --profile: calico, kube-ovn, spiderpool.
	Name() string
	// Version is what was detected, "" where unknown.
	Version() string
	// Evidence lists the observations that led to the profile, one sentence each.
	Evidence() []string
	// Capabilities says what the plugin can hold for that interface.
	Capabilities(machine.Interface) Capabilities
	// Render returns what has to be written so that the interface gets these addresses. An
	// error says why the plugin can't, and names the way out.
	Render(vm machine.Ref, i machine.Interface, addrs []netip.Addr) (Rendering, error)
	// Keys are the template annotation keys that the plugin reads for the interface.
	Keys(machine.Interface) []string
	// Claims returns the addresses that annotations ask for on the interface; an error names
	// a malformed value.
	Claims(annotations map[string]string, i machine.Interface) ([]netip.Addr, error)
	// Records reads the plugin's own records of the machine's interface. A failed read is an
	// error and counts as "in use".
	Records(ctx context.Context, vm machine.Ref, i machine.Interface) ([]Record, error)
	// InUse reads whether the plugin's own records give the address to somebody else, and to
	// whom; "" where they don't, or where it keeps no record that can be asked by address.
	InUse(ctx context.Context, vm machine.Ref, a netip.Addr) (string, error)
}
