"""
Rules TG5xx: find interfaces that a command line leaves open, and vulnerabilities.

The table of published vulnerabilities is small: it holds those whose fix a source could
be found for. A release that is not named here is not proven safe; NVIDIA's bulletins
are the authority.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tollgate.errors import InputError
from tollgate.repository.findings import Finding
from tollgate.repository.lint.model_rules import DEFAULT_MS, blind
from tollgate.repository.lint.start_line import ServerCommandLine

_RELEASE = re.compile(r"\d\d\.(?:0[1-9]|1[0-2])")
_VERSION = re.compile(r"2\.(\d+)(?:\.(\d+))?")

HTTP = "http"
SHARED_MEMORY = "shared memory"
NETWORK = "network"


class Advisory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One group of vulnerabilities with the same precondition and the same fix.

    Attributes:
        names: CVE numbers.
        fixed: First release that is known to have the fix, year and month.
        way: Interface that must be open for it: HTTP, SHARED_MEMORY or NETWORK (any
            protocol).
        source: Source for fix and harm.
    """

    names: tuple[str, ...]
    fixed: str
    way: str
    harm: str
    source: str


ADVISORIES = msgspec.yaml.decode(
    (Path(__file__).parent / "advisories.yaml").read_bytes(),
    type=tuple[Advisory, ...],
)

# Triton's own version numbers: 2.51 is 24.10, and each month has the next minor one;
# but 25.07 is 2.59.1, a patch of 25.06 (server pull requests 6971 and 8844, pytriton
# issue 108).
_FIRST_MINOR, _FIRST_MONTH = 51, 24 * 12 + 9
_PATCHED_MINOR = 59


def release_of(text: str) -> str:
    """
    Parse a release of Triton: "26.07", or its version "2.51.0".

    Raises:
        InputError: It is neither.
    """
    if _RELEASE.fullmatch(text):
        return text
    version = _VERSION.fullmatch(text)
    if version is None or int(version[1]) < _FIRST_MINOR:
        problem = f"{text!r} is no release such as 26.07, nor a version from 2.51 on"
        raise InputError("target", problem)
    minor, patch = int(version[1]), int(version[2] or 0)
    later = minor > _PATCHED_MINOR or (minor == _PATCHED_MINOR and patch > 0)
    year, month = divmod(_FIRST_MONTH + minor - _FIRST_MINOR + later, 12)
    return f"{year}.{month + 1:02}"


def known_for(release: str) -> Iterator[Advisory]:
    """Yield the vulnerabilities without a known fix in a release (year, month)."""
    for advisory in ADVISORIES:
        if release < advisory.fixed:
            yield advisory


_RESTRICTION = {"grpc": "grpc-restricted-protocol", "http": "http-restricted-api"}


def findings(
    line: ServerCommandLine, *, objective_ms: float | None
) -> Iterator[Finding]:
    """Find the interfaces that a command line leaves open."""
    mode = line.value_of("model-control-mode", "none")
    if mode == "poll":
        yield _at(line, "model-control-mode", "TG501", "poll must be explicit or none")
    for kind, code in (("grpc", "TG502"), ("http", "TG503")):
        if not line.is_on(f"allow-{kind}", default=True):
            continue
        # In the modes none and poll Triton refuses these calls anyway.
        option = _RESTRICTION[kind]
        if mode == "explicit" and not line.restricts(option, "model-repository"):
            problem = f"explicit without --{option}=model-repository,…"
            yield _at(line, "model-control-mode", code, problem)
        if not line.restricts(option, "shared-memory"):
            problem = "does not name shared-memory"
            yield _at(line, option, "TG504", problem)
    if line.open_to("http"):
        address = line.value_of("http-address", "0.0.0.0, the default")
        yield _at(line, "http-address", "TG505", f"HTTP listens on {address}")
    if not line.is_on("strict-readiness", default=True):
        yield _at(line, "strict-readiness", "TG507", "must be left at true")
    if objective_ms is not None and blind(DEFAULT_MS, objective_ms):
        yield from _histogram_findings(line, objective_ms)


def _at(line: ServerCommandLine, option: str, code: str, problem: str) -> Finding:
    return Finding(
        code=code,
        file=line.file,
        where=f"--{option}",
        problem=problem,
        line=line.line_of(option),
    )


def _histogram_findings(
    line: ServerCommandLine, objective_ms: float
) -> Iterator[Finding]:
    for option in line.options.get("metrics-config", ()):
        if option.value.replace(" ", "") == "histogram_latencies=true":
            yield Finding(
                code="TG506",
                file=line.file,
                where="--metrics-config",
                problem=f"no boundary at {objective_ms:g} ms, but in models with "
                "model_metrics",
                line=option.line,
            )


def release_findings(
    release: str, *, line: ServerCommandLine | None, file: str, at_line: int
) -> Iterator[Finding]:
    """
    Yield the known vulnerabilities of a release.

    Args:
        release: Year and month.
        line: The command line of the server; None if it is not known, which closes
            nothing.
        file: File that names the release.
        at_line: Line in that file; 0 for none.
    """
    for advisory in known_for(release):
        closed = line is not None and _is_closed(advisory, line)
        names = ", ".join(advisory.names)
        yield Finding(
            code="TG509" if closed else "TG508",
            file=file,
            where=f"Triton {release}",
            problem=f"{names}: {advisory.harm}; fixed in {advisory.fixed} "
            f"({advisory.source})",
            line=at_line,
        )


def _is_closed(advisory: Advisory, line: ServerCommandLine) -> bool:
    """Return whether a command line closes a vulnerability to callers from outside."""
    outside = [kind for kind in _RESTRICTION if line.open_to(kind)]
    if advisory.way == NETWORK:
        return not outside
    if advisory.way == HTTP:
        return "http" not in outside
    assert advisory.way == SHARED_MEMORY
    return all(line.restricts(_RESTRICTION[kind], "shared-memory") for kind in outside)
