package rollout

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
)

// decision is what a state machine makes of an observation.
type decision struct {
	// phase and detail say where the operation stands.
	phase, detail string
	// past is the phase before as it ended, for progress: watches may skip what lasts a moment.
	past *stage
	// wake asks for another look after that time even if nothing changes; 0: no need.
	wake time.Duration
	// abort asks to take the operation back as far as that is still possible. It is asked for
	// until an observation shows that it was done.
	abort bool
	// end is set when the operation is over.
	end *ending
}

// stage is a phase and what there is to say about it.
type stage struct{ phase, detail string }

// ending is how an operation ended.
type ending struct {
	outcome v1alpha1.Outcome
	// code is empty where all is well.
	code    string
	message string
}

func failed(code, message string) decision {
	return decision{end: &ending{outcome: v1alpha1.Failed, code: code, message: message}}
}

// marks remembers since when conditions have held, so that the order in which independent
// watches tell their parts of one change does not make a passing state a failure.
type marks map[string]time.Time

// held returns for how long the condition has held, 0 when it does not.
func (m marks) held(name string, holds bool, now time.Time) time.Duration {
	if !holds {
		delete(m, name)
		return 0
	}
	since, ok := m[name]
	if !ok {
		m[name], since = now, now
	}
	return now.Sub(since)
}

// settle applies the patience of findings: it returns the first that has lasted too long, and the
// time after which the next would, 0 where nothing is waited for.
func (m marks) settle(findings []finding, now time.Time) (over *finding, wake time.Duration) {
	const prefix = "finding "
	current := map[string]bool{}
	for i := range findings {
		f := &findings[i]
		if f.code == "" && f.patience == 0 {
			continue
		}
		// By kind: a text whose values change is still the same thing to wait for.
		name := prefix + cmp.Or(f.code, f.waiting)
		current[name] = true
		switch left := f.patience - m.held(name, true, now); {
		case left > 0 && (wake == 0 || left < wake):
			wake = left
		case left <= 0 && f.code != "" && over == nil:
			over = f
		}
	}
	maps.DeleteFunc(m, func(name string, _ time.Time) bool { return strings.HasPrefix(name, prefix) && !current[name] })
	return over, wake
}
