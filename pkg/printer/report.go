package printer

import (
	"bytes"
	"io"
	"slices"
	"strings"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Report is a table for people that is no list of objects: a plan, a summary, utilisation. This
// file has all there is of tablewriter, whose output moves between its versions.
type Report struct {
	Columns []string
	Rows    [][]string
	// Footer has as many cells as there are columns, or none.
	Footer []string
	// Right lists the columns that hold numbers.
	Right []int
	// Wrap is the width in characters at which a cell goes on in the next line; 0 never wraps.
	Wrap int
}

// Print writes the report as an aligned table, or with -o markdown as a Markdown table.
func (r Report) Print(w io.Writer, f Flags) error {
	var out bytes.Buffer
	markdown := f.Output == Markdown
	t := tablewriter.NewTable(&out, r.options(markdown)...)
	if markdown || !f.NoHeaders {
		t.Header(r.cells(r.Columns, markdown))
	}
	for _, row := range r.Rows {
		if err := t.Append(r.cells(row, markdown)); err != nil {
			return err
		}
	}
	if len(r.Footer) > 0 {
		t.Footer(r.cells(r.Footer, markdown))
	}
	if err := t.Render(); err != nil {
		return err
	}
	for line := range bytes.Lines(out.Bytes()) {
		if _, err := w.Write(append(bytes.TrimRight(line, " \n"), '\n')); err != nil {
			return err
		}
	}
	return nil
}

func (r Report) options(markdown bool) []tablewriter.Option {
	options := []tablewriter.Option{
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithFooterAutoFormat(tw.Off),
		tablewriter.WithHeaderAlignmentConfig(r.alignment()),
		tablewriter.WithRowAlignmentConfig(r.alignment()),
		tablewriter.WithFooterAlignmentConfig(r.alignment()),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithFooterAutoWrap(tw.WrapNone),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		// Set, since it is guessed from LC_ALL and TERM otherwise.
		tablewriter.WithEastAsian(tw.Off),
	}
	if markdown {
		return append(options, tablewriter.WithRenderer(renderer.NewMarkdown()))
	}
	padding := tw.CellPadding{Global: tw.Padding{Right: "   ", Overwrite: true}}
	return append(options,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Symbols:  tw.NewSymbols(tw.StyleNone),
			Settings: tw.Settings{Lines: tw.LinesNone, Separators: tw.SeparatorsNone},
		})),
		func(t *tablewriter.Table) {
			t.Configure(func(c *tablewriter.Config) {
				c.Header.Padding, c.Row.Padding, c.Footer.Padding = padding, padding, padding
			})
		},
	)
}

func (r Report) alignment() tw.CellAlignment {
	a := tw.CellAlignment{Global: tw.AlignLeft, PerColumn: make([]tw.Align, len(r.Columns))}
	for i := range a.PerColumn {
		a.PerColumn[i] = tw.AlignLeft
		if slices.Contains(r.Right, i) {
			a.PerColumn[i] = tw.AlignRight
		}
	}
	return a
}

// cells returns a new slice for each row: tablewriter keeps it.
func (r Report) cells(row []string, markdown bool) []string {
	out := make([]string, len(r.Columns))
	for i := range min(len(row), len(out)) {
		cell := Escape(row[i])
		switch {
		case markdown:
			cell = strings.NewReplacer("|", `\|`, "\n", "<br>").Replace(cell)
		case r.Wrap > 0:
			cell = wrap(cell, r.Wrap)
		}
		out[i] = cell
	}
	return out
}

// wrap breaks lines at blanks; a longer word stays whole, so that it can be copied.
func wrap(s string, width int) string {
	var lines []string
	for line := range strings.Lines(s) {
		var current string
		for _, word := range strings.Fields(line) {
			if current != "" && len([]rune(current))+1+len([]rune(word)) > width {
				lines, current = append(lines, current), ""
			}
			current = strings.TrimSpace(current + " " + word)
		}
		lines = append(lines, current)
	}
	return strings.Join(lines, "\n")
}
