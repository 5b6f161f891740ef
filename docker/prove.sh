#!/bin/sh
# prove.sh IMAGE OUT: serve the model repository from an image as a cluster would: as
# user 1000, root file system read-only, no capability, no network but its own; and
# leave in OUT what it answered (answers.csv) and what it served (repository.sha256).
#
# ENGINE is docker or podman, REDIS an image with redis-server.
set -eu
engine=${ENGINE:-docker}
redis_image=${REDIS:-redis:7.4-bookworm}
image=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
models=$(dirname "$here")/model_repository
name=tollgate-prove-$$

cleanup() {
  "$engine" logs "$name" >"$out/server.log" 2>&1 || true
  for one in "$name" "$name-redis"; do
    "$engine" rm --force --volumes "$one" >/dev/null 2>&1 || true
  done
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

inside() { "$engine" exec --interactive "$name" "$@"; }

wait_ready() {
  left=120
  until inside python3 -c \
    'import urllib.request as u; u.urlopen("http://127.0.0.1:8003/readyz")' 2>/dev/null
  do
    left=$((left - 1))
    if [ "$left" -le 0 ]; then
      echo "prove.sh: $image is not ready after 120 s; its log is $out/server.log" >&2
      exit 1
    fi
    sleep 1
  done
}

"$engine" run --detach --name "$name-redis" --network none "$redis_image" \
  redis-server --save "" --appendonly no >/dev/null
"$engine" run --detach --name "$name" --network "container:$name-redis" \
  --user 1000:1000 --read-only --cap-drop ALL --security-opt no-new-privileges \
  --tmpfs /tmp --volume /state --shm-size 256m \
  --volume "$models:/models:ro" "$image" \
  serve --store-url redis://127.0.0.1:6379 >/dev/null
wait_ready
# Dry runs write nothing, so they can be repeated: on a busy machine the store may miss
# its 5 ms, which is no answer to compare. Bits 0 and 10 of `degraded` say so.
left=20
until inside tollgate score --dry-run --format csv - <"$here/purchases.csv" \
  >"$out/answers.csv" 2>/dev/null &&
  awk -F , '/,(approve|review|decline),/ && ($(NF-2) % 2 || $(NF-2) >= 1024) { bad = 1 }
    END { exit bad }' "$out/answers.csv"
do
  left=$((left - 1))
  if [ "$left" -le 0 ]; then
    echo "prove.sh: the store of $image was too slow 20 times in a row" >&2
    exit 1
  fi
  sleep 1
done
rows=$(inside tollgate score --format csv - <"$here/purchases.csv" 2>/dev/null |
  grep -c -E ',(approve|review|decline),')
if [ "$rows" != 31 ]; then
  echo "prove.sh: $image decided $rows purchases of 31 that can be" >&2
  exit 1
fi
echo "$image: $rows purchases decided"

# What died is mended, and leaves no zombie for process 1.
inside python3 - <<'EOF'
import os, pathlib, signal
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    if "(tritonserver)" in stat.read_text():
        os.kill(int(stat.parent.name), signal.SIGKILL)
EOF
sleep 2
wait_ready
inside python3 - <<'EOF'
import pathlib, sys
states = [stat.read_text().rpartition(")")[2].split()[0]
          for stat in pathlib.Path("/proc").glob("[0-9]*/stat")]
sys.exit(f"{states.count('Z')} zombies" if "Z" in states else 0)
EOF
echo "$image: tritonserver was killed and came back"

inside sh -c 'cd /models && find . -type f | LC_ALL=C sort | xargs -d "\n" sha256sum' \
  >"$out/repository.sha256"
(cd "$models" && sha256sum --quiet --check "$out/repository.sha256")
inside cat /opt/tollgate/sbom.cdx.json >"$out/sbom.cdx.json"
"$engine" stop --time 30 "$name" >/dev/null
status=$("$engine" inspect --format '{{.State.ExitCode}}' "$name")
if [ "$status" != 0 ]; then
  echo "prove.sh: $image ended with status $status on SIGTERM" >&2
  exit 1
fi
echo "$image: served what lies in model_repository, and ended when it was asked to"
