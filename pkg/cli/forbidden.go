package cli

import (
	"fmt"
	"regexp"
	"strings"
)

// denial is the sentence of Kubernetes' authorizer; other refusals (admission, quota) don't match.
var denial = regexp.MustCompile(`cannot (\S+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?`)

// forbidden tells how to check a missing permission, and which ClusterRole has it.
func (s site) forbidden(message string) string {
	m := denial.FindStringSubmatch(message)
	if m == nil {
		return ""
	}
	verb, group, namespace := m[1], m[3], m[4]
	resource, sub, _ := strings.Cut(m[2], "/")
	words := []string{Kubectl(), "auth can-i", verb, resource}
	if group != "" {
		words[len(words)-1] += "." + group
	}
	if sub != "" {
		words = append(words, "--subresource="+sub)
	}
	if namespace != "" {
		words = append(words, "-n", namespace)
	} else {
		words = append(words, "-A")
	}
	words = append(words, s.flags...)
	return fmt.Sprintf("%s tells whether you may; ClusterRole %s grants it", strings.Join(words, " "), roleFor(verb, group, resource, sub))
}

// roleFor is the role to ask the administrator for: KubeVirt's own for its objects, those of
// manifests/rbac.yaml for the ledger and for what the commands read besides. Since KubeVirt 1.5
// migrations have a role of their own, which admin and edit don't include.
func roleFor(verb, group, resource, sub string) string {
	reads := verb == "get" || verb == "list" || verb == "watch"
	switch {
	case group == "kubevirt.io" && resource == "kubevirts":
		return "vmip.io:view"
	case group == "kubevirt.io" && reads:
		return "kubevirt.io:view"
	case group == "kubevirt.io" && resource == "virtualmachineinstancemigrations",
		group == "subresources.kubevirt.io" && sub == "migrate":
		return "kubevirt.io:migrate"
	case group == "kubevirt.io", group == "subresources.kubevirt.io":
		return "kubevirt.io:edit"
	case group == "" && resource == "configmaps" && verb == "delete":
		return "vmip.io:admin"
	case group == "" && resource == "configmaps" && !reads:
		return "vmip.io:edit"
	}
	return "vmip.io:view"
}
