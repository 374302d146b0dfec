// Package printer is the one place that knows tables, JSON, YAML, templates and progress lines.
// Objects go through cli-runtime's printers, so that they look as kubectl prints them; reports for
// people (plans, summaries, utilisation) are in report.go.
package printer

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// The values of -o that stand for themselves.
const (
	JSON     = "json"
	YAML     = "yaml"
	Name     = "name"
	Wide     = "wide"
	Markdown = "markdown"
	Plan     = "plan"
)

var templates = []string{"jsonpath", "jsonpath-as-json", "jsonpath-file", "go-template", "go-template-file", "template", "templatefile"}

// Flags are -o and --no-headers of one command.
type Flags struct {
	Output    string
	NoHeaders bool

	formats []string
}

// AddListFlags adds the flags of a command that prints a table of objects; more are formats of
// its own.
func (f *Flags) AddListFlags(fs *pflag.FlagSet, more ...string) {
	f.add(fs, append([]string{JSON, YAML, Name, Wide}, more...)...)
	fs.BoolVar(&f.NoHeaders, "no-headers", false, "When using the default or wide output format, don't print headers")
}

// AddReportFlags adds the flags of a command that prints a report.
func (f *Flags) AddReportFlags(fs *pflag.FlagSet) {
	f.add(fs, JSON, YAML, Wide, Markdown)
	fs.BoolVar(&f.NoHeaders, "no-headers", false, "When using the default or wide output format, don't print headers")
}

// AddResultFlags adds the flags of a command that changes something.
func (f *Flags) AddResultFlags(fs *pflag.FlagSet) { f.add(fs, JSON, YAML, Name) }

func (f *Flags) add(fs *pflag.FlagSet, formats ...string) {
	f.formats = formats
	fs.VarP((*format)(f), "output", "o", fmt.Sprintf("Output format. One of: (%s, jsonpath=TEMPLATE, go-template=TEMPLATE)", strings.Join(formats, ", ")))
}

// format is Flags as the value of -o.
type format Flags

func (f *format) Set(s string) error {
	kind, _, _ := strings.Cut(s, "=")
	if slices.Contains(f.formats, s) || (strings.Contains(s, "=") && slices.Contains(templates, kind)) {
		f.Output = s
		if strings.Contains(s, "=") {
			// A template that can't be parsed is found before anything is done.
			_, err := f.printer()
			return err
		}
		return nil
	}
	if slices.Contains(templates, kind) {
		return fmt.Errorf("the template is missing: write %s=TEMPLATE", kind)
	}
	return fmt.Errorf("unknown format; allowed are %s, jsonpath=TEMPLATE, go-template=TEMPLATE", strings.Join(f.formats, ", "))
}

func (f *format) String() string { return f.Output }
func (f *format) Type() string   { return "string" }

// Choices lists the formats, for completion.
func (f *format) Choices() []string {
	return append(slices.Clone(f.formats), "jsonpath=", "go-template=")
}

// Structured says whether -o asks for the object itself: JSON, YAML or a template of it.
func (f Flags) Structured() bool {
	return f.Output != "" && !slices.Contains([]string{Name, Wide, Markdown}, f.Output)
}

// Lines says whether -o json was asked for, where events are printed one a line before the result.
func (f Flags) Lines() bool { return f.Output == JSON }

// Object prints the object as -o asks for: json, yaml, or a template. JSON escapes control
// characters by itself; templates print raw values, as kubectl's do.
func (f Flags) Object(w io.Writer, obj runtime.Object) error {
	p, err := (*format)(&f).printer()
	if err != nil {
		return err
	}
	return p.PrintObj(obj, w)
}

func (f *format) printer() (printers.ResourcePrinter, error) {
	print := genericclioptions.NewPrintFlags("")
	print.NamePrintFlags = nil
	print.OutputFormat = &f.Output
	return print.ToPrinter()
}

// AddVersionFlags adds the flags of `version`, which has neither a table nor names.
func (f *Flags) AddVersionFlags(fs *pflag.FlagSet) { f.add(fs, JSON, YAML) }
