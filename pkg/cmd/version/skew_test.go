package version

import (
	"strings"
	"testing"
)

func TestSkew(t *testing.T) {
	for _, tc := range []struct{ kubevirt, kubernetes, ledger, want string }{
		{"v1.8.0", "v1.34.4", "v1alpha1", ""},
		{"v1.9.3", "v1.30.0", "", ""},
		{"v1.5.0", "v1.34.4+k3s1", "", ""},
		{"", "", "", ""},
		{"devel", "unknown", "", ""},
		{"v1.4.9", "", "", "KubeVirt v1.4.9 is older than 1.5"},
		{"v1.10.0-rc.1", "", "", "KubeVirt v1.10.0-rc.1 is newer than 1.9"},
		{"v2.0.0", "", "", "KubeVirt v2.0.0 is newer than 1.9"},
		{"", "v1.29.9", "", "Kubernetes v1.29.9 is older than 1.30"},
		{"", "", "v1", "the ledger in the cluster has format v1, "},
	} {
		got := strings.Join(skew(tc.kubevirt, tc.kubernetes, tc.ledger, "v1alpha1"), "\n")
		if (tc.want == "") != (got == "") || !strings.HasPrefix(got, tc.want) || strings.Contains(got, "\n") {
			t.Errorf("KubeVirt %q, Kubernetes %q, ledger %q: %q, want %q", tc.kubevirt, tc.kubernetes, tc.ledger, got, tc.want)
		}
	}
}
