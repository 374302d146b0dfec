package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VersionInfo is the output of `version`. What could not be learnt from the cluster is left out.
type VersionInfo struct {
	metav1.TypeMeta `json:",inline"`
	Version         string `json:"version"`
	Commit          string `json:"commit,omitempty"`
	GoVersion       string `json:"goVersion"`
	Platform        string `json:"platform"`
	// LedgerFormat is what this program writes; ClusterLedgerFormat what it found.
	LedgerFormat        string `json:"ledgerFormat"`
	ClusterLedgerFormat string `json:"clusterLedgerFormat,omitempty"`
	KubeVirtVersion     string `json:"kubeVirtVersion,omitempty"`
	KubernetesVersion   string `json:"kubernetesVersion,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (v *VersionInfo) DeepCopyObject() runtime.Object { return clone(v) }
