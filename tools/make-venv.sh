#!/bin/sh
# make-venv.sh FOLDER PYTHON...: make a virtual environment with the first Python that
# fits. Each is tried by running it: a name on PATH may be a shim that leads nowhere.
set -u
folder=$1
shift
older=
for python in "$@"; do
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' \
    >/dev/null 2>&1 || continue
  if "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    echo "setup: making $folder with $("$python" -V 2>&1) ($(command -v "$python"))"
    "$python" -m venv --clear "$folder" && exit 0
    echo "make setup: $python could not make $folder: see above" >&2
    exit 2
  fi
  [ -n "$older" ] || older=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
done
if [ -n "$older" ]; then
  echo "make setup: Python $older has no venv module; install it (Debian, Ubuntu:" \
    "apt-get install python$older-venv) and try again" >&2
else
  echo "make setup: none of $* is Python 3.10, 3.11 or 3.12; install one, or name it:" \
    "make setup PYTHON=/path/to/python3.12" >&2
fi
exit 2
