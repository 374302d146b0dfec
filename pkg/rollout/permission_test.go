package rollout

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
)

func TestMayMigrate(t *testing.T) {
	const role = "kubectl create rolebinding kubectl-vmip-migrate --clusterrole=kubevirt.io:migrate "
	tests := []struct {
		name, user string
		allowed    []string
		severity   preflight.Severity
		remedy     string
	}{
		{"all", "alice", []string{"create", "delete"}, "", ""},
		{"nothing", "alice", nil, preflight.Refuse, role + "--user=alice -n tenant-a"},
		{"no abort", "alice", []string{"create"}, preflight.Warn, role + "--user=alice -n tenant-a"},
		{"a service account", "system:serviceaccount:ci:robot", nil, preflight.Refuse, role + "--serviceaccount=ci:robot -n tenant-a"},
		{"a name for a shell to stumble on", "o'neil (ops)", nil, preflight.Refuse, role + `--user='o'\''neil (ops)' -n tenant-a`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			core, asked := corefake.NewClientset(), 0
			core.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
				asked++
				r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
				at := r.Spec.ResourceAttributes
				r.Status.Allowed = strings.Contains(strings.Join(tt.allowed, " "), at.Verb) && at.Namespace == "tenant-a" && at.Resource == "virtualmachineinstancemigrations"
				return true, r, nil
			})
			core.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: tt.user}}}, nil
			})
			pl := &Planner{Deps: Deps{Core: core}}
			var got []preflight.Verdict
			for range 3 {
				got = pl.mayMigrate(t.Context(), db1)
			}
			if asked > 2 {
				t.Errorf("asked %d times", asked)
			}
			if tt.severity == "" {
				if len(got) > 0 {
					t.Errorf("%+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Severity != tt.severity || got[0].Remedy != tt.remedy || got[0].Code != CodeNotPermitted {
				t.Errorf("%+v", got)
			}
		})
	}
}
