package printer_test

import (
	"os"
	"os/exec"
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
			{"短…", "1", "2"},
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
短…                             1        2
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
| 短…                   |         1 |      2 |                                                      |
| total                 |      1010 |    182 |                                                      |
`},
	} {
		t.Run(tc.name, func(t *testing.T) {
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

// The width of some characters is guessed from the locale when the program starts: reports must not
// depend on it.
func TestReportInAnEastAsianLocale(t *testing.T) {
	c := exec.Command(os.Args[0], "-test.run=^TestReport$")
	c.Env = append(os.Environ(), "RUNEWIDTH_EASTASIAN=1", "LC_ALL=ja_JP.UTF-8")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
