package audit

import "slices"

// HasRule says whether a rule finds the code.
func HasRule(c Code) bool {
	return slices.ContainsFunc(rules, func(r rule) bool { return slices.Contains(r.codes, c) })
}
