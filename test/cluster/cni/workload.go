package cni

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workload is a DaemonSet or a Deployment as a client finds it: by name, labels, image and arguments.
type workload struct {
	namespace, name string
	labels          map[string]string
	container       string
	image           string
	command, args   []string
	env             map[string]string
}

func (w workload) template() (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	c := corev1.Container{Name: w.container, Image: w.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: w.command, Args: w.args}
	for _, k := range sortedKeys(w.env) {
		c.Env = append(c.Env, corev1.EnvVar{Name: k, Value: w.env[k]})
	}
	return &metav1.LabelSelector{MatchLabels: w.labels}, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: w.labels},
		Spec: corev1.PodSpec{
			HostNetwork:  true,
			NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:   []corev1.Container{c},
		},
	}
}

func (w workload) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace, Name: w.name, Labels: w.labels}
}

func (k *kube) ensureDaemonSet(ctx context.Context, w workload) error {
	selector, pod := w.template()
	_, err := k.core.AppsV1().DaemonSets(w.namespace).Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: w.meta(), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: pod},
	}, metav1.CreateOptions{})
	return ignoreExists(err)
}

func (k *kube) ensureDeployment(ctx context.Context, w workload) error {
	selector, pod := w.template()
	_, err := k.core.AppsV1().Deployments(w.namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: w.meta(), Spec: appsv1.DeploymentSpec{Selector: selector, Template: pod},
	}, metav1.CreateOptions{})
	return ignoreExists(err)
}
