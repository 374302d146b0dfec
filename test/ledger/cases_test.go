package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	poolv1 "kubevirt.io/api/pool/v1beta1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/reservation"
	"github.com/kubectl-vmip/kubectl-vmip/test/fault"
)

// C12: a replica of a VirtualMachinePool, whose template the pool reverts, is refused, and so is an
// instance without a machine. Neither leaves a row.
func TestC12Replica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	replicas, labels := int32(1), map[string]string{"pool": "web"}
	vm := w.machine("", nil)
	vm.Spec.Template.ObjectMeta.Labels = labels
	must[*poolv1.VirtualMachinePool](t)(w.boss.virt.PoolV1beta1().VirtualMachinePools(w.namespace).Create(t.Context(), &poolv1.VirtualMachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: poolv1.VirtualMachinePoolSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			VirtualMachineTemplate: &poolv1.VirtualMachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: vm.Spec},
		},
	}, metav1.CreateOptions{}))
	for try := 0; ; try++ {
		if _, err := w.boss.virt.KubevirtV1().VirtualMachines(w.namespace).Get(t.Context(), "web-0", metav1.GetOptions{}); err == nil {
			break
		}
		if try == 600 {
			t.Fatal("the pool makes no replica")
		}
		time.Sleep(100 * time.Millisecond)
	}
	_, err := w.reserve(w.writer(nil), "web-0")
	isRefused(t, err, "OwnedByPool")
	if err == nil || !strings.Contains(err.Error(), "VirtualMachinePool/web") {
		t.Errorf("the refusal does not name the pool: %v", err)
	}
	if rows := w.rows(); len(rows) > 0 {
		t.Errorf("a refused reserve left %v", rows)
	}
	if _, errOut, code := w.command("", "reserve", "vmi/web-0"); code != 2 || !strings.Contains(errOut, "virtual machine") {
		t.Errorf("an instance: %d %s", code, errOut)
	}
}

// C48: of two rows of one name the one of the machine that exists stays, and the other one is swept.
func TestC48RowOfAnEarlierMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("y")
	must[reservation.Result](t)(w.reserve(w.boss, "y", "198.51.100.152"))
	if err := w.recreate("y"); err != nil {
		t.Fatal(err)
	}
	_, err := w.reserve(w.writer(nil), "y", "198.51.100.151")
	isRefused(t, err, "RecreatedVM")
	// Without its annotation it goes on with nothing of the earlier machine's.
	old := w.rows()[0]
	if err := w.edit("y", map[string]any{annotation: nil}); err != nil {
		t.Fatal(err)
	}
	swept, err := w.boss.Sweep(t.Context(), reservation.SweepOptions{})
	if err != nil || len(swept) != 1 || swept[0].Did != reservation.Orphan || swept[0].Addr != old.Addr || swept[0].Err != nil {
		t.Errorf("swept %+v, %v; want the earlier machine's row released", swept, err)
	}
	must[reservation.Result](t)(w.reserve(w.writer(nil), "y", "198.51.100.151"))
	w.is("y", "198.51.100.151", "198.51.100.151 reserved", "198.51.100.152 held")
	if swept, err := w.boss.Sweep(t.Context(), reservation.SweepOptions{}); err != nil || len(swept) != 0 {
		t.Errorf("swept %+v, %v; want nothing", swept, err)
	}
	w.whole()
}

// C70: a program that has just started knows a stopped machine's address from the ledger alone.
func TestC70StoppedMachineKeepsItsAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1", "x")
	must[reservation.Result](t)(w.reserve(w.boss, "db-1", "198.51.100.20"))
	w.clock.ahead.Store(int64(1000 * time.Hour))
	_, err := w.reserve(w.writer(nil), "x", "198.51.100.20")
	isRefused(t, err, "AddressTaken")
	if err == nil || !strings.Contains(err.Error(), w.namespace+"/db-1") {
		t.Errorf("the refusal does not name the owner: %v", err)
	}
	if swept, err := w.writer(nil).Sweep(t.Context(), reservation.SweepOptions{}); err != nil || len(swept) != 0 {
		t.Errorf("a sweep did %+v, %v", swept, err)
	}
	w.is("db-1", "198.51.100.20", "198.51.100.20 reserved")
	if got := fmt.Sprint(w.states("x")); got != "[]" {
		t.Errorf("x has %s", got)
	}
}

// What stands for nothing, an unset variable of a script, is refused: it would mean every machine, or
// any address.
func TestEmptyFlags(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	for _, args := range [][]string{{"reserve", "-f", ""}, {"reserve", "db-1", "--ip", ""}, {"reserve", "-l", ""}, {"reserve", "db-1", "-o", "jsonpath={.x"}} {
		if out, errOut, code := w.command("", args...); code != 2 || out != "" {
			t.Errorf("%q: exit %d, %s%s", args, code, out, errOut)
		}
	}
	if rows := w.rows(); len(rows) > 0 {
		t.Errorf("refused commands left %v", rows)
	}
}

// Whoever may write the ledger and not the machine gets no address, and leaves nothing behind.
func TestMayNotPatchTheMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool(ledger.Pool{})
	w.vm("db-1")
	x := w.writer(func(c fault.Call) fault.Action {
		if c.Method == "PATCH" && strings.Contains(c.Path, "virtualmachines") {
			return fault.Action{Status: 403}
		}
		return fault.Action{}
	})
	if got, err := w.reserve(x, "db-1"); err == nil {
		t.Errorf("reserved %v", got)
	}
	w.is("db-1", "")
}
