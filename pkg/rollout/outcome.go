package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/api/v1alpha1"
)

const resource = "virtualmachine.kubevirt.io/"

// Outcome is what became of one operation.
type Outcome struct {
	v1alpha1.Operation
	// Notes are sentences for people that change nothing about the outcome.
	Notes []string
	// Err is the server's answer where that refused the operation.
	Err error
}

// Operation is the plan as an operation that has not ended.
func (p Plan) Operation() v1alpha1.Operation {
	return v1alpha1.Operation{
		Object: resource + p.Ref.Name, Namespace: p.Ref.Namespace,
		Verb: p.Verb.Past(), Before: texts(p.Before), NodeFrom: p.Node,
	}
}

// begin returns the outcome of a plan that is about to be carried out.
func (p Plan) begin(now time.Time) Outcome {
	op, started := p.Operation(), metav1.NewTime(now)
	op.Started = &started
	return Outcome{Operation: op}
}

// end closes the outcome.
func (o *Outcome) end(now time.Time, outcome v1alpha1.Outcome, code, message string) {
	finished := metav1.NewTime(now)
	o.Outcome, o.Code, o.Message, o.Finished = outcome, code, message, &finished
}

// stop closes the outcome of an operation that ended before its state machine did. last is where
// it stood; goesOn says what is left running in the cluster, "" where nothing was begun.
func (o *Outcome) stop(now time.Time, err error, last decision, goesOn string) {
	if last.phase != "" {
		o.Phase = last.phase
	}
	where := ""
	if last.phase != "" {
		where = fmt.Sprintf("; last seen %s: %s", last.phase, last.detail)
	}
	var lost *LostError
	begun := goesOn != ""
	if !begun {
		goesOn = "nothing was changed"
	}
	switch {
	case errors.As(err, &lost) && !begun:
		o.Err = fmt.Errorf("virtualmachine %s/%s: %w; %s", o.Namespace, strings.TrimPrefix(o.Object, resource), err, goesOn)
		o.end(now, v1alpha1.Failed, CodeLost, o.Err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		o.end(now, v1alpha1.TimedOut, CodeTimedOut, "timed out"+where+"; "+goesOn)
	case errors.As(err, &lost):
		o.end(now, v1alpha1.Unknown, CodeLost, "outcome unknown: "+lost.Error()+where+"; "+goesOn)
	default:
		o.end(now, v1alpha1.Interrupted, CodeInterrupted, "interrupted"+where+"; "+goesOn)
	}
}

// refuse closes the outcome of an operation that changed nothing.
func (o *Outcome) refuse(now time.Time, code, message string) {
	o.end(now, v1alpha1.Refused, code, message)
}

// refused closes the outcome of an operation that the server would not begin.
func (o *Outcome) refused(now time.Time, p Plan, err error) {
	o.Err = fmt.Errorf("virtualmachine %s can't be %s: %w", p.Ref, p.Verb.Past(), err)
	code := CodeRefusedByServer
	if apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "admission webhook") {
		code = CodeNotPermitted
	}
	o.end(now, v1alpha1.Refused, code, o.Err.Error())
}

// ambiguous says whether a write whose answer is this error may have been done all the same.
func ambiguous(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err)
}
