package printer

import (
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
)

// Column is one column of a table of T.
type Column[T any] struct {
	// Name is printed in upper case and has no spaces, so that awk and cut can count columns.
	Name string
	// Wide columns show with -o wide only.
	Wide  bool
	Value func(T) string
}

// List says how objects are listed.
type List[T any] struct {
	Columns []Column[T]
	// Namespace is the first column where AllNamespaces is set.
	Namespace     func(T) string
	AllNamespaces bool
	// Resource is the TYPE/NAME of -o name.
	Resource func(T) string
}

// Print writes the items as a table or by name; object, which holds the same items, in all other
// formats. A table of nothing prints nothing.
func (l List[T]) Print(w io.Writer, f Flags, object runtime.Object, items []T) error {
	switch {
	case f.Structured():
		return f.Object(w, object)
	case f.Output == Name:
		for _, item := range items {
			if _, err := fmt.Fprintln(w, l.Resource(item)); err != nil {
				return err
			}
		}
		return nil
	case len(items) == 0:
		return nil
	}
	options := printers.PrintOptions{NoHeaders: f.NoHeaders, Wide: f.Output == Wide}
	return printers.NewTablePrinter(options).PrintObj(l.table(items), w)
}

func (l List[T]) table(items []T) *metav1.Table {
	columns := l.Columns
	if l.AllNamespaces && l.Namespace != nil {
		columns = append([]Column[T]{{Name: "Namespace", Value: l.Namespace}}, columns...)
	}
	t := &metav1.Table{}
	for _, c := range columns {
		d := metav1.TableColumnDefinition{Name: c.Name, Type: "string"}
		if c.Wide {
			d.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, d)
	}
	for _, item := range items {
		cells := make([]any, 0, len(columns))
		for _, c := range columns {
			cells = append(cells, Escape(c.Value(item)))
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: cells})
	}
	return t
}

// None shows an absent value.
func None(s string) string { return or(s, "<none>") }

// Unknown shows a value that could not be learnt.
func Unknown(s string) string { return or(s, "<unknown>") }

func or(s, absent string) string {
	if s == "" {
		return absent
	}
	return s
}

// Age shows how long ago something was, as kubectl does.
func Age(now, then time.Time) string {
	if then.IsZero() {
		return Unknown("")
	}
	return duration.HumanDuration(max(0, now.Sub(then)))
}

// Escape makes text from the cluster safe to show: annotations and messages may hold control
// sequences that rewrite the terminal (kubernetes issue 101695). Newlines stay.
func Escape(s string) string {
	s = printers.EscapeTerminal(s)
	if strings.IndexFunc(s, control) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\t':
			b.WriteByte(' ')
		case control(r):
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// control finds C0 and C1 controls; U+009B starts a sequence as ESC does.
func control(r rune) bool { return r != '\n' && (r < 0x20 || r >= 0x7f && r < 0xa0) }
