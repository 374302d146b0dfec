package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubectl-vmip/kubectl-vmip/test/cluster/cni"
)

// sandbox is what CNI ADD has given to a pod.
type sandbox struct {
	ID  string   `json:"id"`
	IPs []string `json:"ips"`
	MAC string   `json:"mac"`

	annotations map[string]string
}

// ensureSandbox gives a pod its sandbox, and writes down what is needed to go on after a restart.
func (k *kubelet) ensureSandbox(ctx context.Context, pod *corev1.Pod, state *podState, host netip.Addr, faults faults) (time.Duration, error) {
	if state.sandbox == nil {
		if wait := time.Until(state.next); wait > 0 {
			return wait, nil
		}
		if pod.Status.StartTime == nil && state.attempt == 0 {
			if _, err := patchPodStatus(ctx, k.core, pod, waitingStatus(pod, host)); err != nil {
				return 0, err
			}
		}
		sb, err := k.addSandbox(ctx, pod, state, host, faults)
		if err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			return k.backoff(state), nil
		}
		state.sandbox, state.attempt, state.next = sb, 0, time.Time{}
	}
	if !state.recorded && !pod.Spec.HostNetwork {
		if err := k.record(ctx, pod, state.sandbox); err != nil {
			return 0, err
		}
		state.recorded = true
	}
	return 0, nil
}

// backoff sets the time of the next attempt: 1 s, 2 s, 4 s, then every 5 s.
func (k *kubelet) backoff(state *podState) time.Duration {
	wait := min(time.Second<<min(state.attempt, 3), 5*time.Second)
	state.attempt++
	state.next = time.Now().Add(wait)
	return wait
}

func (k *kubelet) addSandbox(ctx context.Context, pod *corev1.Pod, state *podState, host netip.Addr, faults faults) (*sandbox, error) {
	if pod.Spec.HostNetwork {
		return &sandbox{IPs: []string{host.String()}}, nil
	}
	target := isLauncher(pod) && !hosted(pod)
	req := cni.Request{Pod: pod.DeepCopy(), Node: pod.Spec.NodeName, ContainerID: hash(string(pod.UID), fmt.Sprint(state.attempt))}
	result, err := k.add(ctx, req, target, faults)
	if err == nil {
		sb := &sandbox{ID: req.ContainerID, MAC: result.MAC, annotations: result.Annotations}
		if sb.MAC == "" {
			sb.MAC = macOf(req.ContainerID)
		}
		for _, ip := range result.IPs {
			sb.IPs = append(sb.IPs, ip.String())
		}
		if value, ok := faults.get(FaultWrongAddress); ok {
			sb.readdress(value)
		} else if value, ok := faults.get(FaultWrongTargetAddress); ok && target {
			sb.readdress(value)
		}
		return sb, nil
	}
	// What a failed ADD has left behind goes with the DEL that the container runtime sends after it.
	if err := k.cni.Del(ctx, req); err != nil {
		k.log.Debug("DEL after a failed ADD", "pod", key(pod), "error", err)
	}
	if ctx.Err() != nil {
		return nil, err
	}
	if failed := (*cni.Error)(nil); errors.As(err, &failed) {
		for _, e := range failed.Events {
			k.recorder(e.Component, "").Event(pod, e.Type, e.Reason, e.Message)
		}
	}
	k.recorder("kubelet", pod.Spec.NodeName).Eventf(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox",
		"Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox %q: %v", req.ContainerID, err)
	k.log.Info("sandbox failed", slog.String("pod", key(pod)), slog.String("node", pod.Spec.NodeName), slog.Any("error", err))
	return nil, err
}

func (k *kubelet) add(ctx context.Context, req cni.Request, target bool, faults faults) (cni.Result, error) {
	message, fails := faults.get(FaultSandboxFailure)
	if !fails && target {
		message, fails = faults.get(FaultTargetSandboxFailure)
	}
	if fails {
		if !strings.HasPrefix(message, "plugin type=") {
			message = fmt.Sprintf("plugin type=%q failed (add): %s", pluginType(k.cni), message)
		}
		return cni.Result{}, &cni.Error{Message: message}
	}
	return k.cni.Add(ctx, req)
}

var driverVersion = regexp.MustCompile(`-[0-9][0-9.]*$`)

// pluginType is the name of a driver without the version that it plays.
func pluginType(d cni.Driver) string { return driverVersion.ReplaceAllString(d.Name(), "") }

// record writes the plugin's annotations and the sandbox on the pod.
func (k *kubelet) record(ctx context.Context, pod *corev1.Pod, sb *sandbox) error {
	own, err := json.Marshal(sb)
	if err != nil {
		return err
	}
	annotations := map[string]string{sandboxAnnotation: string(own)}
	maps.Copy(annotations, sb.annotations)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = k.core.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// teardown is StopPodSandbox.
func (k *kubelet) teardown(ctx context.Context, pod *corev1.Pod, state *podState) error {
	if !pod.Spec.HostNetwork {
		err := k.cni.Del(ctx, cni.Request{Pod: pod.DeepCopy(), Node: pod.Spec.NodeName, ContainerID: state.sandbox.ID})
		if err != nil {
			k.recorder("kubelet", pod.Spec.NodeName).Eventf(pod, corev1.EventTypeWarning, "FailedKillPod",
				"error killing pod: failed to \"KillPodSandbox\" for %q with KillPodSandboxError: \"rpc error: code = Unknown desc = failed to destroy network for sandbox %q: %v\"",
				pod.UID, state.sandbox.ID, err)
			return err
		}
	}
	state.torn = true
	return nil
}

// recordedSandbox reads back what record has written.
func recordedSandbox(pod *corev1.Pod) *sandbox {
	value, ok := pod.Annotations[sandboxAnnotation]
	if !ok {
		return nil
	}
	sb := &sandbox{}
	if err := json.Unmarshal([]byte(value), sb); err != nil {
		return nil
	}
	return sb
}

// readdress gives a sandbox other addresses than the plugin did: those named, or others nearby.
// What the plugin wrote on the pod follows; its own records don't.
func (sb *sandbox) readdress(value string) {
	var wanted []netip.Addr
	for field := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		if addr, err := netip.ParseAddr(field); err == nil {
			wanted = append(wanted, addr)
		}
	}
	for i, old := range sb.IPs {
		addr, err := netip.ParseAddr(old)
		if err != nil {
			continue
		}
		other := nearby(addr)
		if j := slices.IndexFunc(wanted, func(w netip.Addr) bool { return w.Is4() == addr.Is4() }); j >= 0 {
			other = wanted[j]
		}
		sb.IPs[i] = other.String()
		whole := regexp.MustCompile(`(^|[^0-9A-Fa-f.:])` + regexp.QuoteMeta(old) + `($|[^0-9A-Fa-f.:])`)
		for name, annotation := range sb.annotations {
			sb.annotations[name] = whole.ReplaceAllString(annotation, "${1}"+other.String()+"${2}")
		}
	}
}

// nearby is another address of the same /26 or /122.
func nearby(addr netip.Addr) netip.Addr {
	b := addr.AsSlice()
	b[len(b)-1] ^= 0x2a
	other, _ := netip.AddrFromSlice(b)
	return other
}

// macOf is a locally administered MAC address made from an identifier.
func macOf(id string) string {
	h := hash(id)
	return strings.Join([]string{"0a", "58", h[0:2], h[2:4], h[4:6], h[6:8]}, ":")
}
