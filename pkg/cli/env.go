package cli

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
)

// Env is what main gives to every command.
type Env struct {
	genericiooptions.IOStreams
	Flags *genericclioptions.ConfigFlags
	// LedgerNamespace is --ledger-namespace.
	LedgerNamespace string
	// FieldManager is --field-manager.
	FieldManager string
	// Connect replaces the connection of the flags, in tests.
	Connect func() (*Clients, error)
	// Interactive says whether In is a terminal; nil looks.
	Interactive func() bool

	open   sync.Once
	opened *Clients
	failed error
	warned sync.Map
}

// NewEnv returns an environment with the defaults of all flags.
func NewEnv(streams genericiooptions.IOStreams) *Env {
	return &Env{
		IOStreams:       streams,
		Flags:           genericclioptions.NewConfigFlags(true),
		LedgerNamespace: ledger.DefaultNamespace,
		FieldManager:    ledger.FieldManager,
	}
}

// AddFlags adds the flags that all commands have.
func (e *Env) AddFlags(fs *pflag.FlagSet) {
	e.Flags.AddFlags(fs)
	// The home directory of whoever generates the documentation is nobody's default.
	fs.Lookup("cache-dir").DefValue = "$HOME/.kube/cache"
	fs.StringVar(&e.LedgerNamespace, "ledger-namespace", e.LedgerNamespace, "Namespace of the ConfigMaps that record who owns which address")
	fs.StringVar(&e.FieldManager, "field-manager", e.FieldManager, "Name of the manager used to track field ownership")
	addVerbosity(fs)
}

// Namespace is --namespace or the namespace of the context.
func (e *Env) Namespace() (string, error) {
	ns, _, err := e.Flags.ToRawKubeConfigLoader().Namespace()
	return ns, err
}

// Clients connects at the first call. It sends no request.
func (e *Env) Clients() (*Clients, error) {
	e.open.Do(func() {
		connect := e.Connect
		if connect == nil {
			connect = e.connect
		}
		e.opened, e.failed = connect()
	})
	return e.opened, e.failed
}

// Warn writes a warning to ErrOut, each text once.
func (e *Env) Warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if _, again := e.warned.LoadOrStore(text, true); again {
		return
	}
	label := "Warning:"
	if printers.AllowsColorOutput(e.ErrOut) {
		label = "\x1b[33;1m" + label + "\x1b[0m"
	}
	fmt.Fprintln(e.ErrOut, label, printers.EscapeTerminal(text))
}

// HandleWarningHeader passes the API server's warnings on; it makes Env a rest.WarningHandler.
func (e *Env) HandleWarningHeader(code int, _ string, text string) {
	if code == 299 && text != "" {
		e.Warn("%s", text)
	}
}

// NothingFound tells that a listing is empty, as kubectl does. what is a plural.
func (e *Env) NothingFound(what, namespace string, allNamespaces bool) {
	if allNamespaces {
		fmt.Fprintf(e.ErrOut, "No %s found\n", what)
		return
	}
	fmt.Fprintf(e.ErrOut, "No %s found in %s namespace.\n", what, namespace)
}

func (e *Env) interactive() bool {
	if e.Interactive != nil {
		return e.Interactive()
	}
	f, ok := e.In.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Kubectl is the kubectl that called the plugin, for hints: newer ones say so.
func Kubectl() string {
	if path := os.Getenv("KUBECTL_PATH"); path != "" && !strings.ContainsAny(path, " \t") {
		return path
	}
	return "kubectl"
}
