package printer_test

import (
	"strings"
	"testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/printer"
)

func TestReport(t *testing.T) {
	pools := printer.Report{
		Columns: []string{"POOL", "LAST_USED", "FREE", "NOTE"},
		Right:   []int{1, 2},
		Wrap:    20,
		Rows: [][]string{
			{"lab", "10", "181", "a sentence that is somewhat long\nand a second one"},
			{"prod-with-a-long-name", "1000", "1", "esc\x1b[31m|a\tb"},
			{"x", "", "<none>", "198.51.100.10-198.51.100.200"},
			{"短", "1", "2"},
		},
		Footer: []string{"total", "1010", "182", ""},
	}
	for _, tc := range []struct {
		name   string
		flags  printer.Flags
		report printer.Report
		want   string
	}{
		{"text", printer.Flags{}, pools, `
POOL                    LAST_USED     FREE   NOTE
lab                            10      181   a sentence that is
                                             somewhat long
                                             and a second one
prod-with-a-long-name        1000        1   esc^[[31m|a b
x                                   <none>   198.51.100.10-198.51.100.200
短                              1        2
total                        1010      182
`},
		{"no headers", printer.Flags{NoHeaders: true}, printer.Report{Columns: []string{"A LONG TITLE", "B"}, Rows: [][]string{{"1", "2"}}}, `
1   2
`},
		{"markdown", printer.Flags{Output: printer.Markdown, NoHeaders: true}, pools, `
| POOL                  | LAST_USED |   FREE | NOTE                                                 |
|:----------------------|----------:|-------:|:-----------------------------------------------------|
| lab                   |        10 |    181 | a sentence that is somewhat long<br>and a second one |
| prod-with-a-long-name |      1000 |      1 | esc^[[31m\|a b                                       |
| x                     |           | <none> | 198.51.100.10-198.51.100.200                         |
| 短                    |         1 |      2 |                                                      |
| total                 |      1010 |    182 |                                                      |
`},
	} {
		// East Asian widths are guessed from these where they are not set.
		for _, locale := range []string{"C", "ja_JP.UTF-8"} {
			t.Run(tc.name+" "+locale, func(t *testing.T) {
				t.Setenv("LC_ALL", locale)
				t.Setenv("LANG", locale)
				var b strings.Builder
				if err := tc.report.Print(&b, tc.flags); err != nil {
					t.Fatal(err)
				}
				if "\n"+b.String() != tc.want {
					t.Errorf("printed\n%s\nwant\n%s", b.String(), tc.want)
				}
			})
		}
	}
}
