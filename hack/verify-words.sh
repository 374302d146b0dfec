#!/usr/bin/env bash
# Looks for what must not be in the repository. Patterns that are nobody else's business can be
# kept in a file outside it: WORDS=FILE, one extended regular expression a line.
set -uo pipefail
cd "$(dirname "$0")/.."
files() { git ls-files -co --exclude-standard "$@"; }
bad=0
found() { # MESSAGE, text on standard input
	local text; text=$(cat)
	[ -z "$text" ] && return
	printf '%s:\n%s\n' "$1" "$text"
	bad=1
}

files | grep -E '(^|/)(utils?|helpers?|common|manager)/' | found "packages named after nothing"
files | grep -v '^hack/verify-words.sh$' | xargs -d '\n' grep -nIE '/(root|home/[a-z]+)/|BEGIN [A-Z ]*PRIVATE KEY' 2>/dev/null | found "paths of somebody's machine, or keys"
files '*.go' | xargs -d '\n' grep -nE '(TODO|FIXME|XXX)\b' 2>/dev/null | found "unfinished work: open an issue instead"
[ -z "${WORDS:-}" ] || files | xargs -d '\n' grep -nIEif "$WORDS" 2>/dev/null | found "words of $WORDS"
exit $bad
