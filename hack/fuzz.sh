#!/usr/bin/env bash
# Runs every fuzz target of the repository, one after the other, and names those that fail.
# FUZZTIME is the time for each; without it 2 minutes, less where that would take more than 28 in
# all. FUZZPARALLEL is how many inputs are tried at once (default: as many as there are CPUs).
set -uo pipefail
cd "$(dirname "$0")/.."

# Targets are found by their declaration, so that nobody has to list them: in all modules, whatever
# their tests need.
targets=$(git ls-files -co --exclude-standard '*_test.go' | sort | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]*' | sed 's/func //')
[ -n "$targets" ] || { echo "no fuzz target found"; exit 1; }
count=$(wc -l <<<"$targets")
time=${FUZZTIME:-$((count > 14 ? 28 * 60 / count : 120))s}

failed=
for t in $targets; do
	file=${t%:*} name=${t##*:}
	dir=${file%/*}
	echo "== $dir $name, $time"
	(cd "$dir" && "${GO:-go}" test -run '^$' -fuzz "^$name\$" -fuzztime "$time" ${FUZZPARALLEL:+-parallel "$FUZZPARALLEL"} .) ||
		failed+="  $dir $name"$'\n'
done
[ -z "$failed" ] || { printf '\nfuzz targets that failed:\n%s' "$failed"; exit 1; }
