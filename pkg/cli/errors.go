package cli

import (
	"context"
	"iter"
	"net/url"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// ExitCode returns the status that an error stands for. Of several errors the first that carries
// a status decides.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	for e := range tree(err) {
		if exit, ok := e.(*ExitError); ok {
			return exit.Code
		}
		switch e {
		case ErrInterrupted, context.Canceled:
			return ExitInterrupted
		case context.DeadlineExceeded:
			// Compared and not asked with errors.Is: the HTTP client's timeout of one request
			// claims to be this error too.
			return ExitTimeout
		}
	}
	return ExitFailed
}

// tree yields an error and all that it wraps. Kubernetes' aggregates have a method of their own
// for that, which package errors does not know.
func tree(err error) iter.Seq[error] {
	return func(yield func(error) bool) { visit(err, yield) }
}

func visit(err error, yield func(error) bool) bool {
	if err == nil {
		return true
	}
	if !yield(err) {
		return false
	}
	var parts []error
	switch e := err.(type) {
	case utilerrors.Aggregate:
		parts = e.Errors()
	case interface{ Unwrap() []error }:
		parts = e.Unwrap()
	case interface{ Unwrap() error }:
		parts = []error{e.Unwrap()}
	}
	for _, p := range parts {
		if !visit(p, yield) {
			return false
		}
	}
	return true
}

// ended is the word for the end of a context that stopped an operation, "" where none did.
func ended(err error) string {
	for e := range tree(err) {
		switch e {
		case ErrInterrupted, context.Canceled:
			return ErrInterrupted.Error()
		case context.DeadlineExceeded:
			return "timed out"
		}
	}
	return ""
}

// reword takes out of the text of an error what a context stopped by chance: a request, or the
// wait for the next one.
func reword(err error, word string) string {
	text := err.Error()
	for e := range tree(err) {
		if request, ok := e.(*url.Error); ok {
			text = strings.ReplaceAll(text, request.Error(), word)
		}
	}
	return strings.NewReplacer(
		"client rate limiter Wait returned an error: ", "",
		context.Canceled.Error(), word,
		context.DeadlineExceeded.Error(), word,
	).Replace(text)
}
