package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Pool is one address pool and how full it is.
type Pool struct {
	Name       string   `json:"name"`
	Network    string   `json:"network"`
	CIDRs      []string `json:"cidrs"`
	Ranges     []string `json:"ranges,omitempty"`
	Exclude    []string `json:"exclude,omitempty"`
	Gateways   []string `json:"gateways,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
	Profile    string   `json:"profile"`
	Attachment string   `json:"attachment,omitempty"`
	HoldFor    string   `json:"holdFor"`
	// Total and Free count the addresses of automatic choice, of all families; decimal strings,
	// since an IPv6 pool has more than a JSON number holds.
	Total string `json:"total"`
	Free  string `json:"free"`
	// Rows counts the ledger's rows inside the pool's CIDRs by state.
	Rows map[string]int `json:"rows"`
}

// PoolList is the output of `pool list` and `pool show`.
type PoolList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []Pool `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *PoolList) DeepCopyObject() runtime.Object { return clone(l) }
