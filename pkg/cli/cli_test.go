package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

func TestExitCode(t *testing.T) {
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer slow.Close()
	_, requestTimeout := (&http.Client{Timeout: time.Millisecond}).Get(slow.URL)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, slow.URL, nil)
	_, deadline := http.DefaultClient.Do(req)

	interrupted, cause := context.WithCancelCause(t.Context())
	cause(ErrInterrupted)
	req, _ = http.NewRequestWithContext(interrupted, http.MethodGet, slow.URL, nil)
	_, ctrlC := http.DefaultClient.Do(req)

	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"none":                     {nil, 0},
		"any":                      {errors.New("x"), ExitFailed},
		"usage":                    {UsageError(errors.New("x")), ExitUsage},
		"wrapped usage":            {fmt.Errorf("y: %w", UsageError(errors.New("x"))), ExitUsage},
		"unchanged, nothing said":  {&ExitError{Code: ExitUnchanged}, ExitUnchanged},
		"one of several":           {errors.Join(errors.New("x"), &ExitError{Code: ExitTimeout, Err: errors.New("y")}), ExitTimeout},
		"interrupted":              {ErrInterrupted, ExitInterrupted},
		"cancelled":                {fmt.Errorf("y: %w", context.Canceled), ExitInterrupted},
		"request interrupted":      {ctrlC, ExitInterrupted},
		"deadline":                 {fmt.Errorf("y: %w", context.DeadlineExceeded), ExitTimeout},
		"deadline in an aggregate": {utilerrors.NewAggregate([]error{errors.New("x"), context.DeadlineExceeded}), ExitTimeout},
		"deadline of a request":    {deadline, ExitTimeout},
		"timeout of one request":   {requestTimeout, ExitFailed},
	} {
		if got := ExitCode(tc.err); got != tc.want {
			t.Errorf("%s: exit status of %v is %d, want %d", name, tc.err, got, tc.want)
		}
	}
}
