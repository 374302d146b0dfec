package audit_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

// reapply takes from a machine what a manifest that was applied again doesn't have.
func reapply(vm *kubevirtv1.VirtualMachine) {
	vm.Annotations = nil
	vm.Spec.Template.ObjectMeta.Annotations = nil
}

func written(manager, subresource string, at metav1.Time) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: &at, Operation: metav1.ManagedFieldsOperationUpdate}
}

func TestTemplateMissing(t *testing.T) {
	run(t, []scenario{
		{"the template lost the annotation", func(w *world) {
			delete(w.reserved("tenant-a/web", "198.51.100.21").Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
		}, []string{"TemplateMissing tenant-a/web 198.51.100.21"}},
		{"the template has another value", func(w *world) {
			w.reserved("tenant-a/web", "198.51.100.21").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "203.0.113.9"
		}, []string{"TemplateMissing tenant-a/web 198.51.100.21"}},
		{"the machine was replaced, and its instance still has the annotation", func(w *world) {
			vm := w.reserved("tenant-a/web", "198.51.100.21")
			w.start(vm, "n1", "198.51.100.21")
			reapply(vm)
			vm.ManagedFields = []metav1.ManagedFieldsEntry{written("kubectl-create", "", long)}
		}, []string{"TemplateMissing tenant-a/web 198.51.100.21"}},
		{"the machine was replaced after the reservation", func(w *world) {
			vm := w.reserved("tenant-a/web", "198.51.100.21")
			vm.CreationTimestamp = ago(100 * time.Hour)
			reapply(vm)
			vm.ManagedFields = []metav1.ManagedFieldsEntry{written("kubectl-replace", "", ago(time.Minute))}
		}, []string{"TemplateMissing tenant-a/web 198.51.100.21"}},
		{"the machine was replaced, and the dump has no managed fields", func(w *world) {
			reapply(w.reserved("tenant-a/web", "198.51.100.21"))
		}, []string{"TemplateMissing tenant-a/web 198.51.100.21"}},
		{"one of two families", func(w *world) {
			vm := w.vm("tenant-a/web")
			w.row("198.51.100.21", "tenant-a/web", vm.UID)
			w.row("2001:db8::21", "tenant-a/web", vm.UID)
			names(vm, "198.51.100.21", "2001:db8::21")
			vm.Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.21"
		}, []string{"TemplateMissing tenant-a/web 2001:db8::21"}},
		{"no plugin is established", func(w *world) {
			w.Networks.Primary = nil
			reapply(w.reserved("tenant-a/web", "198.51.100.21"))
		}, []string{"TemplateMissing tenant-a/web 198.51.100.21"}},
		{"the interface was taken out of the template", func(w *world) {
			vm := w.reserved("tenant-a/web", "198.51.100.21")
			vm.Spec.Template.Spec.Networks[0].Name = "other"
			vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].Name = "other"
		}, []string{"TemplateMissing tenant-a/web 198.51.100.21"}},

		{"complete", func(w *world) { w.reserved("tenant-a/web", "198.51.100.21") }, nil},
		{"the same addresses in another order and spelling", func(w *world) {
			vm := w.vm("tenant-a/web")
			w.row("198.51.100.21", "tenant-a/web", vm.UID)
			w.row("2001:db8::21", "tenant-a/web", vm.UID)
			names(vm, "198.51.100.21", "2001:db8::21")
			vm.Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "2001:db8:0::21,198.51.100.21"
		}, nil},
		{"the machine does not exist yet", func(w *world) { w.row("198.51.100.21", "tenant-a/later", "") }, nil},
		{"the machine is being deleted", func(w *world) {
			vm := w.reserved("tenant-a/web", "198.51.100.21")
			delete(vm.Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
			vm.DeletionTimestamp = &long
		}, nil},
		{"a reserve is being written", func(w *world) {
			vm := w.vm("tenant-a/web")
			vm.ManagedFields = []metav1.ManagedFieldsEntry{written("kubectl-create", "", long)}
			w.row("198.51.100.21", "tenant-a/web", vm.UID, since(ago(time.Second)))
		}, nil},
		{"the address is on its way out", func(w *world) {
			vm := w.vm("tenant-a/web")
			w.row("198.51.100.21", "tenant-a/web", vm.UID, state(ledger.Releasing), since(ago(30*time.Second)))
			w.row("198.51.100.22", "tenant-a/web", vm.UID, state(ledger.Leaving), since(ago(30*time.Second)))
		}, nil},
	})
}

func TestTemplateMissingEvidence(t *testing.T) {
	w := newWorld()
	delete(w.reserved("tenant-a/web", "198.51.100.21").Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
	f := w.the(t, audit.TemplateMissing)
	if want := "reserved since 2026-11-28, template lacks ovn.kubernetes.io/ip_address"; f.Evidence != want {
		t.Errorf("evidence %q, want %q", f.Evidence, want)
	}
	if want := "kubectl vmip reserve web -n tenant-a"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}
}

func TestInterruptedReserve(t *testing.T) {
	untouched := []metav1.ManagedFieldsEntry{
		written("kubectl-create", "", long), written("virt-controller", "", ago(time.Minute)), written("somebody", "status", ago(time.Minute)),
	}
	run(t, []scenario{
		{"a row without an annotation, on a machine that nobody touched", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			vm.ManagedFields = untouched
			w.row("198.51.100.20", "tenant-a/db-1", vm.UID)
		}, []string{"InterruptedReserve tenant-a/db-1 198.51.100.20"}},
		{"the loser of a race", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			w.row("198.51.100.30", "tenant-a/db-1", vm.UID)
		}, []string{"DuplicateReservation tenant-a/db-1 198.51.100.30"}},
		{"reserved before the machine existed", func(w *world) {
			w.vm("tenant-a/db-1")
			w.row("198.51.100.20", "tenant-a/db-1", "")
		}, []string{"InterruptedReserve tenant-a/db-1 198.51.100.20"}},
		{"the annotation of the machine is gone and the template's is there", func(w *world) {
			delete(w.reserved("tenant-a/db-1", "198.51.100.20").Annotations, ledger.AnnotationReservations)
		}, []string{"InterruptedReserve tenant-a/db-1 198.51.100.20"}},

		{"within the grace time", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			vm.ManagedFields = untouched
			w.row("198.51.100.20", "tenant-a/db-1", vm.UID, since(ago(30*time.Second)))
		}, nil},
	})
}

func TestGraceIsAnOption(t *testing.T) {
	w := newWorld()
	vm := w.reserved("tenant-a/db-1", "198.51.100.20")
	w.row("198.51.100.30", "tenant-a/db-1", vm.UID, since(ago(30*time.Second)))
	w.expect(t)
	w.Options.Grace = time.Second
	w.expect(t, "DuplicateReservation tenant-a/db-1 198.51.100.30")
}

func TestC53ClonesAndRestores(t *testing.T) {
	run(t, []scenario{
		{"a clone has the template's annotation", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.vm("tenant-a/db-1-clone").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"TemplateForeign tenant-a/db-1-clone 198.51.100.20"}},
		{"a raw copy has everything, the MAC too", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress = "02:00:00:00:00:20"
			clone := vm.DeepCopy()
			clone.Name, clone.UID, clone.CreationTimestamp = "db-1-clone", "u-2", ago(time.Hour)
			w.VMs = append(w.VMs, *clone)
		}, []string{"DuplicateMAC tenant-a/db-1-clone", "TemplateForeign tenant-a/db-1-clone 198.51.100.20"}},
		{"a raw copy where no plugin is established", func(w *world) {
			w.Networks = audit.Networks{}
			clone := w.reserved("tenant-a/db-1", "198.51.100.20").DeepCopy()
			clone.Name, clone.UID = "db-1-clone", "u-2"
			w.VMs = append(w.VMs, *clone)
		}, []string{"TemplateForeign tenant-a/db-1-clone 198.51.100.20"}},
		{"a restore under a new name, while the source is gone", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "u-1")
			w.vm("tenant-a/db-1-new").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"TemplateForeign tenant-a/db-1-new 198.51.100.20"}},
		{"of an address that cools down for another", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", "u-1", state(ledger.Held), func(e *ledger.Entry) { e.Row.Until = now.Add(time.Minute) })
			w.vm("tenant-a/web").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"TemplateForeign tenant-a/web 198.51.100.20"}},
		{"of an address that something foreign claims", func(w *world) {
			w.row("198.51.100.20", "kube-system/x", "", state(ledger.Foreign))
			w.vm("tenant-a/web").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"TemplateForeign tenant-a/web 198.51.100.20"}},

		{"a restore in place keeps the UID", func(w *world) {
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			vm.Annotations["restore.kubevirt.io/lastRestoreUID"] = "r-1"
		}, nil},
		{"a row for a machine that did not exist when it was written", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			names(vm, "198.51.100.20")
			w.row("198.51.100.20", "tenant-a/db-1", "")
		}, nil},
		{"the same number in another network", func(w *world) {
			w.pool("p2", func(p *ledger.Pool) { p.Network, p.Namespaces = "vpc-2", []string{"tenant-b"} })
			w.Ledger.Pools[0].Namespaces = []string{"tenant-a"}
			w.reserved("tenant-a/db-1", "198.51.100.20")
			w.vm("tenant-b/web").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, nil},
		{"a foreign claim of its own template", func(w *world) {
			w.row("198.51.100.20", "tenant-a/web", "", state(ledger.Foreign))
			w.vm("tenant-a/web").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, nil},
	})
}

func TestTemplateForeignEvidence(t *testing.T) {
	w := newWorld()
	w.row("198.51.100.20", "tenant-a/db-1", "u-1")
	vm := w.vm("tenant-a/db-1-new")
	names(vm, "198.51.100.20")
	said, err := ledger.ReservationsOf(vm.Annotations)
	if err != nil {
		t.Fatal(err)
	}
	said.UID = "u-1"
	vm.Annotations[ledger.AnnotationReservations], _ = said.Encode()
	f := w.the(t, audit.TemplateForeign)
	if want := "its template asks for the address, which is reserved for virtualmachine tenant-a/db-1, which no longer exists; its annotation vmip.io/reservations was copied from the virtual machine with UID u-1"; f.Evidence != want {
		t.Errorf("evidence %q, want %q", f.Evidence, want)
	}
}

func TestRecreatedVM(t *testing.T) {
	const old = types.UID("u-old")
	run(t, []scenario{
		{"the present machine's template asks for it", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", old)
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"RecreatedVM tenant-a/db-1 198.51.100.20"}},
		{"the present machine's pod has it", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", old)
			w.start(w.vm("tenant-a/db-1"), "n1", "198.51.100.20")
		}, []string{"RecreatedVM tenant-a/db-1 198.51.100.20"}},
		{"the present machine names it", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", old)
			vm := w.vm("tenant-a/db-1")
			names(vm, "198.51.100.20")
			vm.UID = "u-new"
			delete(vm.Spec.Template.ObjectMeta.Annotations, kubeOVNKey)
		}, []string{"RecreatedVM tenant-a/db-1 198.51.100.20"}},

		{"the present machine does neither", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", old)
			w.vm("tenant-a/db-1")
		}, []string{"OrphanReservation tenant-a/db-1 198.51.100.20"}},
		{"the row cools down", func(w *world) {
			w.row("198.51.100.20", "tenant-a/db-1", old, state(ledger.Held), func(e *ledger.Entry) { e.Row.Until = now.Add(time.Minute) })
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"TemplateReleased tenant-a/db-1 198.51.100.20"}},
	})
}

// A key on the machine, or on the pod, reaches no network plugin.
func TestC16MisplacedAnnotation(t *testing.T) {
	run(t, []scenario{
		{"on the machine", func(w *world) {
			w.vm("tenant-a/db-1").Annotations[kubeOVNKey] = "198.51.100.20"
		}, []string{"MisplacedAnnotation tenant-a/db-1 198.51.100.20"}},
		{"on the machine, of a plugin that is not the cluster's", func(w *world) {
			w.vm("tenant-a/db-1").Annotations["cni.projectcalico.org/ipAddrs"] = `["198.51.100.20"]`
		}, []string{"MisplacedAnnotation tenant-a/db-1 198.51.100.20"}},
		{"on the pod", func(w *world) {
			w.Networks.Primary = w.Networks.Named[profile.Calico]
			_, p := w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.5")
			p.Annotations["cni.projectcalico.org/ipAddrs"] = `["198.51.100.20"]`
		}, []string{"MisplacedAnnotation tenant-a/db-1 198.51.100.20"}},

		{"the template has it too", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20").Annotations[kubeOVNKey] = "198.51.100.20"
		}, nil},
		{"Kube-OVN wrote it on the pod", func(w *world) {
			_, p := w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.5")
			p.Annotations[kubeOVNKey] = "203.0.113.5"
		}, nil},
		{"the pod has it from the instance", func(w *world) {
			w.Networks.Primary = w.Networks.Named[profile.Calico]
			vmi, p := w.start(w.vm("tenant-a/db-1"), "n1", "203.0.113.5")
			vmi.Annotations = map[string]string{"cni.projectcalico.org/ipAddrs": `["203.0.113.5"]`}
			p.Annotations = vmi.Annotations
		}, nil},
		{"an annotation that asks for no address", func(w *world) {
			w.vm("tenant-a/db-1").Annotations["ovn.kubernetes.io/logical_switch"] = "s1"
		}, nil},
	})
}

func TestMisplacedAnnotationRemedy(t *testing.T) {
	w := newWorld()
	w.vm("tenant-a/db-1").Annotations[kubeOVNKey] = "198.51.100.20,2001:db8::20"
	if f, want := w.the(t, audit.MisplacedAnnotation), "kubectl vmip reserve db-1 -n tenant-a --ip 198.51.100.20,2001:db8::20"; f.Remedy != want {
		t.Errorf("remedy %q, want %q", f.Remedy, want)
	}
}

func TestMalformedAnnotation(t *testing.T) {
	value := func(plugin, key, value string) func(*world) {
		return func(w *world) {
			w.Networks.Primary = w.Networks.Named[plugin]
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[key] = value
		}
	}
	const calico = "cni.projectcalico.org/ipAddrs"
	run(t, []scenario{
		{"a bare address for Calico", value(profile.Calico, calico, "198.51.100.20"), []string{"MalformedAnnotation tenant-a/db-1"}},
		{"two of a family", value(profile.Calico, calico, `["198.51.100.20","198.51.100.21"]`), []string{"MalformedAnnotation tenant-a/db-1"}},
		{"a blank for Kube-OVN", value(profile.KubeOVN, kubeOVNKey, "198.51.100.20, 2001:db8::20"), []string{"MalformedAnnotation tenant-a/db-1"}},
		{"no plugin is established", func(w *world) {
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[calico] = "198.51.100.20"
			w.Networks.Primary = nil
		}, []string{"MalformedAnnotation tenant-a/db-1"}},
		{"of a reserved address", func(w *world) {
			w.reserved("tenant-a/db-1", "198.51.100.20").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = `["198.51.100.20"]`
		}, []string{"MalformedAnnotation tenant-a/db-1 198.51.100.20"}},

		{"one of each family", value(profile.Calico, calico, `["198.51.100.20","2001:db8::20"]`), nil},
		{"another spelling", value(profile.Calico, calico, `["2001:DB8:0:0::20"]`), nil},
	})
}

func TestIneffectiveAnnotation(t *testing.T) {
	const networks = "k8s.v1.cni.cncf.io/networks"
	reads := func(key string) profile.Capability {
		if plugin, ok := profile.PluginOf(key); ok && plugin != profile.KubeOVN {
			return profile.Capability{Answer: profile.No, Reason: key + " is read by " + plugin + ", which this cluster does not have"}
		}
		return profile.Capability{Answer: profile.Yes}
	}
	run(t, []scenario{
		{"C01: addresses in the Multus annotation of a machine with a Multus network", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			secondary(vm, "lan", "tenant-a/lan")
			vm.Spec.Template.ObjectMeta.Annotations[networks] = `[{"name":"lan","namespace":"tenant-a","ips":["198.51.100.20/24"]}]`
		}, []string{"IneffectiveAnnotation tenant-a/db-1"}},
		{"the annotation of a plugin that the cluster does not have", func(w *world) {
			w.Networks.Reads = reads
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations["cni.projectcalico.org/ipAddrs"] = `["198.51.100.20"]`
		}, []string{"IneffectiveAnnotation tenant-a/db-1"}},

		{"C01: the pod network only", func(w *world) {
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[networks] = `[{"name":"lan","ips":["198.51.100.20/24"]}]`
		}, nil},
		{"no addresses in the Multus annotation", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			secondary(vm, "lan", "tenant-a/lan")
			vm.Spec.Template.ObjectMeta.Annotations[networks] = "lan"
		}, nil},
		{"what plugins the cluster has is unknown", func(w *world) {
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations["cni.projectcalico.org/ipAddrs"] = `["198.51.100.20"]`
		}, nil},
		{"the cluster's own", func(w *world) {
			w.Networks.Reads = reads
			w.reserved("tenant-a/db-1", "198.51.100.20")
		}, nil},
		{"of the plugin that the pool names", func(w *world) {
			w.Networks.Reads = func(key string) profile.Capability { return profile.Capability{Answer: profile.No, Reason: key} }
			w.Networks.Primary = nil
			w.Ledger.Pools[0].Profile = profile.KubeOVN
			vm := w.reserved("tenant-a/db-1", "198.51.100.20")
			vm.Spec.Template.ObjectMeta.Annotations = map[string]string{kubeOVNKey: "198.51.100.20"}
		}, nil},
		{"annotations that ask for no address", func(w *world) {
			w.Networks.Reads = reads
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations["example.com/x"] = "y"
		}, nil},
	})
}

func TestIneffectiveAnnotationIsSkippedWhereUnknown(t *testing.T) {
	w := newWorld()
	w.Networks.Reads = func(key string) profile.Capability {
		if _, ok := profile.PluginOf(key); ok {
			return profile.Capability{Answer: profile.Unverified, Reason: "daemonsets can't be read"}
		}
		return profile.Capability{Answer: profile.Yes}
	}
	w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations["cni.projectcalico.org/ipAddrs"] = `["198.51.100.20"]`
	r := audit.Run(&w.Snapshot, w.Options)
	if len(r.Findings) > 0 || len(r.Skipped) != 1 || r.Skipped[0].Reason != "daemonsets can't be read" {
		t.Errorf("findings %v, skipped %v", r.Findings, r.Skipped)
	}
}

func TestMigrationBlocked(t *testing.T) {
	const key = kubevirtv1.AllowPodBridgeNetworkLiveMigrationAnnotation
	run(t, []scenario{
		{"C33: on the machine", func(w *world) { w.vm("tenant-a/db-1").Annotations[key] = "" }, []string{"MigrationBlocked tenant-a/db-1"}},
		{"C33: false", func(w *world) {
			w.vm("tenant-a/db-1").Spec.Template.ObjectMeta.Annotations[key] = "false"
		}, []string{"MigrationBlocked tenant-a/db-1"}},
		{"C33: the running instance is older", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			w.start(vm, "n1", "203.0.113.5")
			vm.Spec.Template.ObjectMeta.Annotations[key] = "true"
		}, []string{"MigrationBlocked tenant-a/db-1"}},

		{"in the template", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			vm.Spec.Template.ObjectMeta.Annotations[key] = ""
			w.start(vm, "n1", "203.0.113.5")
		}, nil},
		{"masquerade needs none", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			vm.Spec.Template.Spec.Domain.Devices.Interfaces[0] = *kubevirtv1.DefaultMasqueradeNetworkInterface()
			vm.Annotations[key] = "false"
		}, nil},
		{"secondary networks only", func(w *world) {
			vm := w.vm("tenant-a/db-1")
			vm.Spec.Template.Spec.Networks, vm.Spec.Template.Spec.Domain.Devices.Interfaces = nil, nil
			secondary(vm, "lan", "tenant-a/lan")
			vm.Spec.Template.ObjectMeta.Annotations[key] = "false"
		}, nil},
		{"no opt-in at all", func(w *world) { w.vm("tenant-a/db-1") }, nil},
	})
}

func TestEvidenceNamesBothValues(t *testing.T) {
	w := newWorld()
	w.reserved("tenant-a/web", "198.51.100.21").Spec.Template.ObjectMeta.Annotations[kubeOVNKey] = "203.0.113.9"
	f := w.the(t, audit.TemplateMissing)
	if !strings.Contains(f.Evidence, "has ovn.kubernetes.io/ip_address=203.0.113.9, not 198.51.100.21") {
		t.Errorf("evidence %q", f.Evidence)
	}
}
