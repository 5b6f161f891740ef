"""The class of all commands, and the example below a command's help."""

from __future__ import annotations

import math

import typer
from typer.core import TyperCommand

from tollgate.errors import ArgumentError, InputError


class Command(TyperCommand):
    """
    Runs a command, and names its options in errors of the library.

    Refuses NaN in a numeric option, because every limit lets NaN pass.
    """

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        for name, value in ctx.params.items():
            if isinstance(value, float) and math.isnan(value):
                flag = "--" + name.replace("_", "-")
                raise typer.BadParameter("nan is no number", ctx, param_hint=flag)
        try:
            return super().invoke(ctx)
        except ArgumentError as error:
            options = ", ".join(map(self._option, error.source.split(", ")))
            raise InputError(options, error.problem, where=error.where) from error

    def _option(self, argument: str) -> str:
        """Name the option that sets an argument of the library; else the argument."""
        flag = "--" + argument.replace("_", "-")
        for parameter in self.params:
            flags = [one for one in parameter.opts if one.startswith("--")]
            if flags and (argument == parameter.name or flag in flags):
                return flags[0]
        return argument


def example(path: str, arguments: str) -> str:
    """Return the example of a command or group, in the markup of its help."""
    # As rich.markup.escape does, which a command that runs need not import.
    return f"Example: tollgate {path} {arguments}".rstrip().replace("[", r"\[")
