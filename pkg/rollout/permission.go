package rollout

import (
	"context"
	"fmt"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
)

// migrateRole is the ClusterRole that alone may create migrations since KubeVirt 1.5. admin and
// edit don't include it: somebody has to bind it.
const migrateRole = "kubevirt.io:migrate"

// permits remembers what the user may do, by verb and namespace.
type permits struct {
	mu    sync.Mutex
	known map[[2]string]bool
}

// mayMigrate asks whether the user may create migrations, before anything starts. A question that
// fails is left to the server, which answers it when the migration is created.
func (pl *Planner) mayMigrate(ctx context.Context, ref machine.Ref) []preflight.Verdict {
	create, err := pl.may(ctx, "create", ref.Namespace)
	if err != nil {
		return nil
	}
	v := preflight.Verdict{Code: CodeNotPermitted, Object: "virtualmachine " + ref.String()}
	if !create {
		v.Remedy = pl.grant(ctx, ref.Namespace)
		v.Severity = preflight.Refuse
		v.Message = fmt.Sprintf("you may not create virtualmachineinstancemigrations in namespace %s; since KubeVirt 1.5 that takes the ClusterRole %s", ref.Namespace, migrateRole)
		return []preflight.Verdict{v}
	}
	if remove, err := pl.may(ctx, "delete", ref.Namespace); err == nil && !remove {
		v.Severity, v.Remedy = preflight.Warn, pl.grant(ctx, ref.Namespace)
		v.Message = fmt.Sprintf("you may not delete virtualmachineinstancemigrations in namespace %s: a migration whose target has a wrong address could not be taken back", ref.Namespace)
		return []preflight.Verdict{v}
	}
	return nil
}

func (pl *Planner) may(ctx context.Context, verb, namespace string) (bool, error) {
	key := [2]string{verb, namespace}
	pl.permits.mu.Lock()
	defer pl.permits.mu.Unlock()
	if allowed, known := pl.permits.known[key]; known {
		return allowed, nil
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: "kubevirt.io", Resource: "virtualmachineinstancemigrations"},
	}}
	answer, err := pl.Deps.Core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	if pl.permits.known == nil {
		pl.permits.known = map[[2]string]bool{}
	}
	pl.permits.known[key] = answer.Status.Allowed
	return answer.Status.Allowed, nil
}

// grant is the command with which an administrator lets the user migrate in a namespace.
func (pl *Planner) grant(ctx context.Context, namespace string) string {
	user := "USER"
	me, err := pl.Deps.Core.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err == nil && me.Status.UserInfo.Username != "" {
		user = me.Status.UserInfo.Username
	}
	subject := "--user=" + quote(user)
	if account, found := strings.CutPrefix(user, "system:serviceaccount:"); found {
		subject = "--serviceaccount=" + account
	}
	return fmt.Sprintf("kubectl create rolebinding kubectl-vmip-migrate --clusterrole=%s %s -n %s", migrateRole, subject, namespace)
}

// quote makes a word safe for a shell's command line.
func quote(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:@/", r)
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
