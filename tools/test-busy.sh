#!/bin/sh
# Run suites with every core busy and a TMPDIR of 150 characters.
#   tools/test-busy.sh RUNS [FOLDER...]
# Prints seconds and exit status of each run; exit status 1 when one failed.
set -eu
cd "$(dirname "$0")/.."
[ "$#" -ge 1 ] || { sed -n '2,4s/^# *//p' "$0" >&2; exit 2; }
runs=$1
shift
[ "$#" -gt 0 ] || set -- tests/tollgate/journal tests/tollgate/store \
  tests/tollgate/supervisor tests/tollgate/cli tests/loadtests
base=$(mktemp -d /tmp/tollgate-busy-XXXXXX)
TMPDIR=$base/$(printf '%*s' $((149 - ${#base})) '' | tr ' ' x)
export TMPDIR
mkdir "$TMPDIR"
loops=
trap 'kill $loops; rm -rf "$base"' EXIT
trap 'exit 130' INT TERM
for _ in $(seq "$(nproc)"); do
  sh -c 'while :; do :; done' &
  loops="$loops $!"
done
failed=0
for run in $(seq "$runs"); do
  for folder in "$@"; do
    begin=$(date +%s)
    status=0
    log=$base/$(echo "$folder" | tr / -)-$run.log
    .venv/bin/python -m pytest -q -p no:cacheprovider "$folder" > "$log" 2>&1 || status=$?
    echo "$folder, run $run of $runs: status $status, $(($(date +%s) - begin)) s"
    [ "$status" = 0 ] || { failed=1; grep -E '^(FAILED|ERROR) ' "$log" || tail -5 "$log"; }
  done
done
exit "$failed"
