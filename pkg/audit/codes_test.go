package audit_test

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/audit"
)

var update = flag.Bool("update", false, "write the table of codes into docs/audit.md")

const document = "../../docs/audit.md"

// docs/audit.md has the table of codes as it is in the program.
func TestDocumentIsInStep(t *testing.T) {
	const begin, end = "<!-- begin codes -->\n", "<!-- end codes -->\n"
	raw, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	table, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %q or %q", document, begin, end)
	}
	want := audit.CodesMarkdown()
	switch {
	case table == want:
	case *update:
		if err := os.WriteFile(document, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not in step with the table of codes: go test ./pkg/audit -run TestDocumentIsInStep -update", document)
	}
}

func TestChecks(t *testing.T) {
	seen := map[audit.Code]bool{}
	camel := regexp.MustCompile(`^([A-Z]+[a-z]+)+[A-Z]*$`)
	for _, c := range audit.Checks {
		if seen[c.Code] {
			t.Errorf("%s is there twice", c.Code)
		}
		seen[c.Code] = true
		if !camel.MatchString(string(c.Code)) {
			t.Errorf("code %q is not CamelCase", c.Code)
		}
		if !strings.HasSuffix(c.Meaning, ".") || !strings.HasPrefix(c.Remedy, "kubectl ") {
			t.Errorf("%s: meaning %q, remedy %q", c.Code, c.Meaning, c.Remedy)
		}
	}
}

// Every code of the table is one that some rule can find.
func TestEveryCodeHasARule(t *testing.T) {
	for _, c := range audit.Checks {
		if !audit.HasRule(c.Code) {
			t.Errorf("no rule finds %s", c.Code)
		}
	}
}

// Placeholders that nothing filled would be shown to users.
func TestRemediesAreFilled(t *testing.T) {
	for name, w := range map[string]*world{"broken": broken(), "large": large(100)} {
		for _, f := range audit.Run(&w.Snapshot, w.Options).Findings {
			if strings.ContainsAny(f.Remedy, "{}") || f.Evidence == "" {
				t.Errorf("%s: %s: remedy %q, evidence %q", name, f.Code, f.Remedy, f.Evidence)
			}
		}
	}
}
