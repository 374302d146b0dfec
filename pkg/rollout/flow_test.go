package rollout

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/preflight"
)

// theatre is where an operation is acted out: two clientsets, and what was said and done.
type theatre struct {
	t    *testing.T
	core *corefake.Clientset
	virt *kubevirtfake.Clientset
	deps Deps

	mu      sync.Mutex
	phases  []string
	settled []machine.Ref
}

func newTheatre(t *testing.T) *theatre {
	th := &theatre{
		t:    t,
		core: corefake.NewClientset(pod("src", "i-1", "n1", "198.51.100.20")),
		virt: kubevirtfake.NewSimpleClientset(vm(), vmi("i-1", "n1")),
	}
	th.deps = Deps{
		Core: th.core, KubeVirt: th.virt, Patience: 300 * time.Millisecond, NewOp: func() string { return "01OP" },
		Settle: func(_ context.Context, ref machine.Ref) error {
			th.mu.Lock()
			defer th.mu.Unlock()
			th.settled = append(th.settled, ref)
			return nil
		},
	}
	return th
}

func (th *theatre) Heading(string) {}
func (th *theatre) Phase(phase, text string) {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.phases = append(th.phases, phase+" "+text)
}

func (th *theatre) must(err error) {
	if err != nil {
		th.t.Error(err)
	}
}

func (th *theatre) plan(verb Verb) Plan {
	return Plan{Verb: verb, Ref: db1, VM: "u-db1", Instance: "i-1", Node: "n1", Pod: "src", Expect: expected("198.51.100.20"), Made: time.Now()}
}

// onRestart replaces what the restart subresource answers; after runs once it was called.
func (th *theatre) onRestart(answer error, after func(context.Context)) {
	th.virt.PrependReactor("put", "virtualmachines", func(clienttesting.Action) (bool, runtime.Object, error) {
		if after != nil {
			go after(context.Background())
		}
		return true, nil, answer
	})
}

// reborn plays KubeVirt: the old instance goes, another one comes with a pod of that address.
func (th *theatre) reborn(address string) func(context.Context) {
	return func(ctx context.Context) {
		pods, vmis := th.core.CoreV1().Pods("tenant-a"), th.virt.KubevirtV1().VirtualMachineInstances("tenant-a")
		th.must(pods.Delete(ctx, "src", metav1.DeleteOptions{}))
		th.must(vmis.Delete(ctx, "db-1", metav1.DeleteOptions{}))
		time.Sleep(50 * time.Millisecond)
		_, err := pods.Create(ctx, pod("new", "i-2", "n2", address), metav1.CreateOptions{})
		th.must(err)
		_, err = vmis.Create(ctx, vmi("i-2", "n2"), metav1.CreateOptions{})
		th.must(err)
	}
}

func (th *theatre) check(got Outcome, outcome v1alpha1.Outcome, code, says string) {
	th.t.Helper()
	said := got.Message
	if got.Err != nil {
		said = got.Err.Error()
	}
	if got.Outcome != outcome || got.Code != code || !strings.Contains(said, says) {
		th.t.Errorf("%s %s %q, want %s %s %q", got.Outcome, got.Code, said, outcome, code, says)
	}
	if settled := len(th.settled) > 0; settled != (outcome == v1alpha1.Done) {
		th.t.Errorf("settled: %v", th.settled)
	}
}

var (
	vms          = schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"}
	jobsResource = kubevirtv1.SchemeGroupVersion.WithResource("virtualmachineinstancemigrations")
)

func TestRestartFlow(t *testing.T) {
	t.Run("it goes well", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(nil, th.reborn("198.51.100.20"))
		out := Restart(t.Context(), th.deps, th.plan(VerbRestart), th)
		th.check(out, v1alpha1.Done, "", "")
		if out.NodeFrom != "n1" || out.NodeTo != "n2" || out.Phase != PhaseVerified || out.Verb != "restarted" || out.Finished == nil {
			t.Errorf("%+v", out)
		}
		if last := th.phases[len(th.phases)-1]; last != "verified pod 198.51.100.20 = reservation, guest unknown" {
			t.Errorf("last: %s", last)
		}
	})
	t.Run("wrong address", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(nil, th.reborn("198.51.100.77"))
		th.check(Restart(t.Context(), th.deps, th.plan(VerbRestart), th), v1alpha1.Failed, CodeWrongAddress, "has 198.51.100.77")
	})
	t.Run("second owner", func(t *testing.T) {
		th := newTheatre(t)
		_, err := th.core.CoreV1().Pods("tenant-b").Create(t.Context(), pod("thief", "i-9", "n3", "198.51.100.20", func(p *corev1.Pod) { p.Namespace = "tenant-b" }), metav1.CreateOptions{})
		th.must(err)
		th.onRestart(nil, th.reborn("198.51.100.20"))
		th.check(Restart(t.Context(), th.deps, th.plan(VerbRestart), th), v1alpha1.Failed, CodeSecondOwner, "pod tenant-b/thief on n3 has 198.51.100.20 too")
	})
	t.Run("refused in preflight", func(t *testing.T) {
		th := newTheatre(t)
		p := th.plan(VerbRestart)
		p.Verdicts = []preflight.Verdict{{Code: "NodeUnreachable", Severity: preflight.Refuse, Message: "node n1 is unreachable"}}
		th.check(Restart(t.Context(), th.deps, p, th), v1alpha1.Refused, "NodeUnreachable", "node n1 is unreachable")
	})
	t.Run("refused by the server", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(apierrors.NewConflict(vms, "db-1", errors.New("stop/start already underway")), nil)
		th.check(Restart(t.Context(), th.deps, th.plan(VerbRestart), th), v1alpha1.Refused, CodeRefusedByServer, "virtualmachine tenant-a/db-1 can't be restarted: ")
	})
	t.Run("no rights", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(apierrors.NewForbidden(vms, "db-1", errors.New("no")), nil)
		out := Restart(t.Context(), th.deps, th.plan(VerbRestart), th)
		th.check(out, v1alpha1.Refused, CodeNotPermitted, "forbidden")
		if !apierrors.IsForbidden(out.Err) {
			t.Errorf("the server's answer is lost: %v", out.Err)
		}
	})
	t.Run("the answer is lost and it was done", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(errors.New("unexpected EOF"), th.reborn("198.51.100.20"))
		th.check(Restart(t.Context(), th.deps, th.plan(VerbRestart), th), v1alpha1.Done, "", "")
	})
	t.Run("the answer is lost and nothing happens", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(errors.New("unexpected EOF"), nil)
		th.check(Restart(t.Context(), th.deps, th.plan(VerbRestart), th), v1alpha1.Unknown, CodeLost, "check with: kubectl get vm,vmi -n tenant-a")
	})
	t.Run("restarted by somebody else since the plan", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(nil, func(context.Context) { t.Error("requested") })
		p := th.plan(VerbRestart)
		p.Instance = "i-0"
		th.check(Restart(t.Context(), th.deps, p, th), v1alpha1.Refused, CodeChangedMeanwhile, "was stopped or restarted meanwhile")
	})
	t.Run("timeout", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(nil, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		th.check(Restart(ctx, th.deps, th.plan(VerbRestart), th), v1alpha1.TimedOut, CodeTimedOut, "timed out; last seen stopping: old pod src on n1 (the guest has up to 180s to shut down); the restart goes on in the cluster")
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		th := newTheatre(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		th.onRestart(nil, func(context.Context) { cancel(errors.New("interrupted")) })
		th.check(Restart(ctx, th.deps, th.plan(VerbRestart), th), v1alpha1.Interrupted, CodeInterrupted, "the restart goes on in the cluster; watch it with: kubectl get vm,vmi,pods -n tenant-a -w")
	})
	t.Run("Ctrl-C before anything", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(nil, func(context.Context) { t.Error("requested") })
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("interrupted"))
		th.check(Restart(ctx, th.deps, th.plan(VerbRestart), th), v1alpha1.Interrupted, CodeInterrupted, "nothing was changed")
	})
	t.Run("join", func(t *testing.T) {
		th := newTheatre(t)
		th.onRestart(nil, func(context.Context) { t.Error("requested") })
		p := th.plan(VerbRestart)
		p.Joins = true
		go th.reborn("198.51.100.20")(t.Context())
		th.check(Restart(t.Context(), th.deps, p, th), v1alpha1.Done, "", "")
	})
}

func TestRestartDryRun(t *testing.T) {
	th := newTheatre(t)
	th.deps.DryRun = true
	out := Restart(t.Context(), th.deps, th.plan(VerbRestart), th)
	if out.Outcome != v1alpha1.Done || len(th.settled) > 0 {
		t.Errorf("%+v", out)
	}
	var sent []string
	for _, a := range th.virt.Actions() {
		sent = append(sent, a.GetVerb()+" "+a.GetSubresource())
	}
	if len(sent) != 1 || sent[0] != "put restart" {
		t.Errorf("sent %v", sent)
	}
}

func TestRestartUnsettled(t *testing.T) {
	th := newTheatre(t)
	th.deps.Settle = func(context.Context, machine.Ref) error { return errors.New("the ledger is away") }
	th.onRestart(nil, th.reborn("198.51.100.20"))
	out := Restart(t.Context(), th.deps, th.plan(VerbRestart), th)
	if out.Outcome != v1alpha1.Done || len(out.Notes) != 1 || !strings.Contains(out.Notes[0], "the ledger is away") {
		t.Errorf("%+v", out)
	}
}

// job changes our migration object.
func (th *theatre) job(edit func(*kubevirtv1.VirtualMachineInstanceMigration)) {
	jobs := th.virt.KubevirtV1().VirtualMachineInstanceMigrations("tenant-a")
	m, err := jobs.Get(context.Background(), "kubectl-vmip-01op", metav1.GetOptions{})
	th.must(err)
	edit(m)
	_, err = jobs.Update(context.Background(), m, metav1.UpdateOptions{})
	th.must(err)
}

func (th *theatre) setVMI(v *kubevirtv1.VirtualMachineInstance) {
	_, err := th.virt.KubevirtV1().VirtualMachineInstances("tenant-a").Update(context.Background(), v, metav1.UpdateOptions{})
	th.must(err)
}

// onCreate runs a play once the migration object is there; its UID is m-1.
func (th *theatre) onCreate(play func()) {
	th.virt.PrependReactor("create", "virtualmachineinstancemigrations", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.CreateAction).GetObject().(*kubevirtv1.VirtualMachineInstanceMigration).UID = "m-1"
		go func() {
			time.Sleep(100 * time.Millisecond)
			play()
		}()
		return false, nil, nil
	})
}

func (th *theatre) target(address string) {
	_, err := th.core.CoreV1().Pods("tenant-a").Create(context.Background(), pod("dst", "i-1", "n3", address, of("m-1")), metav1.CreateOptions{})
	th.must(err)
}

// arrive plays the rest of a migration that works.
func (th *theatre) arrive() {
	th.setVMI(vmi("i-1", "n3", handed("m-1", "n3", started, ready, completed)))
	_, err := th.core.CoreV1().Pods("tenant-a").Update(context.Background(), pod("src", "i-1", "n1", "198.51.100.20", ended(corev1.PodSucceeded)), metav1.UpdateOptions{})
	th.must(err)
	th.job(func(m *kubevirtv1.VirtualMachineInstanceMigration) { m.Status.Phase = kubevirtv1.MigrationSucceeded })
}

func TestMigrateFlow(t *testing.T) {
	t.Run("it goes well", func(t *testing.T) {
		th := newTheatre(t)
		th.onCreate(func() {
			th.target("198.51.100.20")
			th.setVMI(vmi("i-1", "n1", handed("m-1", "n3", started)))
			th.arrive()
		})
		p := th.plan(VerbMigrate)
		p.ToNode = "n3"
		out := Migrate(t.Context(), th.deps, p, th)
		th.check(out, v1alpha1.Done, "", "")
		if out.NodeTo != "n3" || out.Verb != "migrated" {
			t.Errorf("%+v", out)
		}
		th.job(func(m *kubevirtv1.VirtualMachineInstanceMigration) {
			if m.Spec.VMIName != "db-1" || m.Spec.AddedNodeSelector["kubernetes.io/hostname"] != "n3" || m.Labels[LabelOperation] != "01op" || m.Labels[LabelManagedBy] != ManagedBy {
				t.Errorf("created %+v %+v", m.ObjectMeta, m.Spec)
			}
		})
	})
	t.Run("wrong target", func(t *testing.T) {
		th := newTheatre(t)
		// It may be asked for more than once until it shows.
		var once sync.Once
		th.virt.PrependReactor("delete", "virtualmachineinstancemigrations", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if uid := a.(clienttesting.DeleteAction).GetDeleteOptions().Preconditions.UID; uid == nil || *uid != "m-1" {
				t.Errorf("deleted without precondition: %v", uid)
			}
			once.Do(func() {
				th.must(th.core.CoreV1().Pods("tenant-a").Delete(context.Background(), "dst", metav1.DeleteOptions{}))
				failed := job(kubevirtv1.MigrationFailed)
				failed.Name = "kubectl-vmip-01op"
				th.must(th.virt.Tracker().Update(jobsResource, failed, "tenant-a"))
			})
			return false, nil, nil
		})
		th.onCreate(func() { th.target("198.51.100.77") })
		th.check(Migrate(t.Context(), th.deps, th.plan(VerbMigrate), th), v1alpha1.Failed, CodeWrongAddress, "the machine runs on at the source n1")
	})
	t.Run("the answer to the creation is lost", func(t *testing.T) {
		th := newTheatre(t)
		first := true
		th.onCreate(func() { th.target("198.51.100.20"); th.arrive() })
		th.virt.PrependReactor("create", "virtualmachineinstancemigrations", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if !first {
				return false, nil, nil
			}
			first = false
			made := a.(clienttesting.CreateAction).GetObject().DeepCopyObject().(*kubevirtv1.VirtualMachineInstanceMigration)
			made.UID = "m-1"
			th.must(th.virt.Tracker().Add(made))
			return true, nil, errors.New("unexpected EOF")
		})
		th.check(Migrate(t.Context(), th.deps, th.plan(VerbMigrate), th), v1alpha1.Done, "", "")
	})
	t.Run("refused by the webhook", func(t *testing.T) {
		th := newTheatre(t)
		th.virt.PrependReactor("create", "virtualmachineinstancemigrations", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(vms, "", errors.New("admission webhook denied the request: in-flight migration detected"))
		})
		th.check(Migrate(t.Context(), th.deps, th.plan(VerbMigrate), th), v1alpha1.Refused, CodeRefusedByServer, "in-flight migration detected")
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		th := newTheatre(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		th.onCreate(func() { cancel(errors.New("interrupted")) })
		th.check(Migrate(ctx, th.deps, th.plan(VerbMigrate), th), v1alpha1.Interrupted, CodeInterrupted, "cancel it with: kubectl delete vmim kubectl-vmip-01op -n tenant-a")
	})
	t.Run("an earlier run goes on", func(t *testing.T) {
		th := newTheatre(t)
		earlier := job(kubevirtv1.MigrationScheduling)
		earlier.Name = "kubectl-vmip-01op"
		th.must(th.virt.Tracker().Add(earlier))
		p := th.plan(VerbMigrate)
		p.Resume = earlier.Name
		th.target("198.51.100.20")
		time.AfterFunc(100*time.Millisecond, th.arrive)
		th.check(Migrate(t.Context(), th.deps, p, th), v1alpha1.Done, "", "")
	})
}
