package version

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// The KubeVirt releases that this program is tested with or written from: 1.8 runs in its tests,
// 1.9 is the API that it is built with, 1.5 is the first with migrations as a right of their own.
const (
	oldestKubeVirt = "1.5"
	newestKubeVirt = "1.9"
)

// oldestKubernetes serves all that the commands use: ValidatingAdmissionPolicy is stable since then.
const oldestKubernetes = "1.30"

// skew tells what may not work between this program and a cluster. Versions that can't be read
// ("devel", "") are nobody's fault.
func skew(kubevirt, kubernetes, ledger, ledgerHere string) []string {
	var warnings []string
	if v, err := version.ParseGeneric(kubevirt); err == nil {
		switch {
		case v.LessThan(version.MustParseGeneric(oldestKubeVirt)):
			warnings = append(warnings, fmt.Sprintf("KubeVirt %s is older than %s, the oldest that this kubectl vmip knows: migrations and restarts may be judged wrongly", kubevirt, oldestKubeVirt))
		case v.WithPatch(0).GreaterThan(version.MustParseGeneric(newestKubeVirt)):
			warnings = append(warnings, fmt.Sprintf("KubeVirt %s is newer than %s, the newest that this kubectl vmip knows: look for a newer kubectl vmip", kubevirt, newestKubeVirt))
		}
	}
	if v, err := version.ParseGeneric(kubernetes); err == nil && v.LessThan(version.MustParseGeneric(oldestKubernetes)) {
		warnings = append(warnings, fmt.Sprintf("Kubernetes %s is older than %s, the oldest that this kubectl vmip knows", kubernetes, oldestKubernetes))
	}
	if ledger != "" && ledger != ledgerHere {
		warnings = append(warnings, fmt.Sprintf("the ledger in the cluster has format %s, this kubectl vmip writes %s and only reads other formats: look for a newer kubectl vmip", ledger, ledgerHere))
	}
	return warnings
}
