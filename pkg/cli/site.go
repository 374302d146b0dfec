package cli

import (
	"cmp"
	"os"

	"k8s.io/client-go/rest"
)

// defaultServer is where kubectl goes if nothing names a server.
const defaultServer = "http://localhost:8080"

// unconfigured says whether neither a kubeconfig nor a flag nor the environment names a server.
func (e *Env) unconfigured(cfg *rest.Config) bool {
	if cfg.Host != defaultServer || *e.Flags.APIServer != "" || os.Getenv("KUBERNETES_MASTER") != "" {
		return false
	}
	raw, err := e.Flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return false
	}
	for _, c := range raw.Clusters {
		if c.Server == defaultServer {
			return false
		}
	}
	return true
}

// site reads from the flags and the kubeconfig where the command works. It sends no request, and
// takes what it can get: it is asked after something went wrong.
func (e *Env) site() site {
	s := site{ledgerNamespace: e.LedgerNamespace, contexts: e.contexts()}
	loader := e.Flags.ToRawKubeConfigLoader()
	s.kubeconfig = loader.ConfigAccess().GetDefaultFilename()
	if loader.ConfigAccess().IsExplicitFile() {
		s.kubeconfig = loader.ConfigAccess().GetExplicitFile()
	}
	if raw, err := loader.RawConfig(); err == nil {
		s.context = cmp.Or(*e.Flags.Context, raw.CurrentContext)
		// With several files in KUBECONFIG the one that has the context is the one to look at.
		if c := raw.Contexts[s.context]; c != nil && c.LocationOfOrigin != "" {
			s.kubeconfig = c.LocationOfOrigin
		}
	}
	if *e.Flags.Context != "" {
		s.flags = append(s.flags, "--context="+s.context)
	}
	if *e.Flags.Impersonate != "" {
		s.flags = append(s.flags, "--as="+*e.Flags.Impersonate)
	}
	for _, g := range *e.Flags.ImpersonateGroup {
		s.flags = append(s.flags, "--as-group="+g)
	}
	s.namespace, _, _ = loader.Namespace()
	if cfg, err := loader.ClientConfig(); err == nil {
		s.server = cfg.Host
	}
	return s
}
