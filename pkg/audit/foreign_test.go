package audit_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
)

func foreign(by, reason string) func(*ledger.Entry) {
	return func(e *ledger.Entry) {
		e.Row = ledger.Row{VM: by, State: ledger.Foreign, Reason: reason, Since: long.Time}
	}
}

func TestClaimsOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		build  func(*world)
		claims []string // "address by: reason"
		gone   []string
	}{
		"a stopped machine's template asks for it": {
			build: func(w *world) {
				w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20,2001:db8::20"
			},
			claims: []string{"198.51.100.20 tenant-a/db-1: its template asks for it", "2001:db8::20 tenant-a/db-1: its template asks for it"},
		},
		"who has it comes before who asks for it": {
			build: func(w *world) {
				w.vm("tenant-a/a").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
				w.start(w.vm("tenant-a/b"), "n1", "198.51.100.20")
			},
			claims: []string{"198.51.100.20 tenant-a/b: a pod of it has it"},
		},
		"a reservation is none": {build: func(w *world) {
			w.start(w.reserved("tenant-a/db-1", "198.51.100.20"), "n1", "198.51.100.20")
		}},
		"a pod on a reserved address is for audit": {build: func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.pod("tenant-a/web", "n1", "198.51.100.20")
		}},
		"pods where automatic choice would take their address, of both families": {
			build: func(w *world) {
				w.pod("tenant-a/web", "n1", "198.51.100.20", "2001:db8::5")
				w.pod("tenant-a/late", "n1", "198.51.100.220")
				w.pod("tenant-a/done", "n1", "198.51.100.21").Status.Phase = corev1.PodSucceeded
				w.pod("kube-system/host", "n1", "198.51.100.22").Spec.HostNetwork = true
			},
			claims: []string{"198.51.100.20 pod tenant-a/web: the pod has it", "2001:db8::5 pod tenant-a/web: the pod has it"},
		},
		"what a pool never hands out needs no row": {build: func(w *world) {
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.50"
			w.vm("tenant-a/db-2").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "203.0.113.5"
			w.node("n4", "198.51.100.1")
		}},
		"nodes and services": {
			build: func(w *world) {
				w.node("n4", "198.51.100.11")
				w.Services = append(w.Services, corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "lb"},
					Spec:       corev1.ServiceSpec{ClusterIPs: []string{"198.51.100.30", "None"}, ExternalIPs: []string{"198.51.100.31"}},
					Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: "x"}, {IP: "2001:db8::31"}}}},
				})
			},
			claims: []string{
				"198.51.100.11 node n4: an address of the node", "198.51.100.30 service tenant-a/lb: an address of the service",
				"198.51.100.31 service tenant-a/lb: an address of the service", "2001:db8::31 service tenant-a/lb: an address of the service",
			},
		},
		"a record of the network plugin": {
			build: func(w *world) {
				w.vm("tenant-a/db-1")
				w.Held = []audit.Held{
					{VM: machine.Ref{Namespace: "tenant-a", Name: "db-1"}, Interface: "default", Addr: netip.MustParseAddr("198.51.100.40"), Object: "ips/db-1"},
					{VM: machine.Ref{Namespace: "tenant-a", Name: "gone"}, Interface: "default", Addr: netip.MustParseAddr("198.51.100.41"), Object: "ips/gone"},
				}
			},
			claims: []string{"198.51.100.40 tenant-a/db-1: the network plugin keeps it in ips/db-1"},
		},
		"recorded already, of another claimant, and gone": {
			build: func(w *world) {
				w.pod("tenant-a/web", "n1", "198.51.100.20")
				w.pod("tenant-a/new", "n1", "198.51.100.21")
				w.row("198.51.100.20", "", "", foreign("pod tenant-a/web", "the pod has it"))
				w.row("198.51.100.21", "", "", foreign("pod tenant-a/old", "the pod has it"))
				w.row("198.51.100.22", "", "", foreign("pod tenant-a/old", "the pod has it"))
			},
			claims: []string{"198.51.100.21 pod tenant-a/new: the pod has it"},
			gone:   []string{"198.51.100.22"},
		},
		"a pool of another network with the same numbers": {
			build: func(w *world) {
				w.Ledger.Pools = nil
				w.pool("lan", func(p *ledger.Pool) { p.Network, p.Attachment = "lan", "tenant-a/lan" })
				w.pod("tenant-a/web", "n1", "198.51.100.20")
				w.node("n4", "198.51.100.11")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.build(w)
			o := audit.ClaimsOfOthers(&w.Snapshot)
			var claims, gone []string
			for _, x := range o.Claims {
				claims = append(claims, x.Addr.String()+" "+x.By+": "+x.Reason)
			}
			for _, e := range o.Gone {
				gone = append(gone, e.Addr.String())
			}
			if !slices.Equal(claims, c.claims) || !slices.Equal(gone, c.gone) || len(o.Unseen) > 0 {
				t.Errorf("claims %q, gone %q, unseen %q; want %q, %q", claims, gone, o.Unseen, c.claims, c.gone)
			}
		})
	}
}

// What was not seen proves nothing: whatever can't be read, no row is freed.
func TestUnseenFreesNothing(t *testing.T) {
	for _, r := range []audit.Resource{audit.VMs, audit.VMIs, audit.Pods, audit.Nodes, audit.Services, audit.Plugins, audit.Records} {
		w := newWorld()
		w.row("198.51.100.22", "", "", foreign("pod tenant-a/old", "the pod has it"))
		w.pod("tenant-a/web", "n1", "198.51.100.20")
		w.Gaps = map[audit.Resource]audit.Gap{r: {Reason: string(r) + ": forbidden"}}
		o := audit.ClaimsOfOthers(&w.Snapshot)
		if len(o.Gone) > 0 || !slices.Equal(o.Unseen, []string{string(r) + ": forbidden"}) || len(o.Claims) != 1 {
			t.Errorf("without %s: gone %v, unseen %q, claims %v", r, o.Gone, o.Unseen, o.Claims)
		}
	}
}
