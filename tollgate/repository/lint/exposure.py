"""
Rules TG5xx: find interfaces that a command line leaves open, and vulnerabilities.

The table of published vulnerabilities is small: it holds those whose fix a source could
be found for. A release that is not named here is not proven safe; NVIDIA's bulletins
are the authority.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from tollgate.errors import InputError
from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import DOCS, Rule, Severity
from tollgate.repository.lint.model_rules import DEFAULT_MS, blind
from tollgate.repository.lint.start_line import ServerCommandLine

_BULLETIN = "nvidia.custhelp.com/app/answers/detail/a_id/"
_RELEASE = re.compile(r"\d\d\.(?:0[1-9]|1[0-2])")
_VERSION = re.compile(r"2\.(\d+)(?:\.(\d+))?")

HTTP = "http"
SHARED_MEMORY = "shared memory"
NETWORK = "network"


class Advisory(msgspec.Struct, frozen=True):
    """
    One group of vulnerabilities with the same precondition and the same fix.

    Attributes:
        names: CVE numbers.
        fixed: First release that is known to have the fix, year and month.
        way: Interface that must be open for it: HTTP, SHARED_MEMORY or NETWORK (any
            protocol).
        harm: Description of the possible harm.
        source: Source for fix and harm.
    """

    names: tuple[str, ...]
    fixed: str
    way: str
    harm: str
    source: str


ADVISORIES = (
    Advisory(
        names=("CVE-2025-23310", "CVE-2025-23311"),
        fixed="25.07",
        way=HTTP,
        harm="a chunked HTTP request overflows the stack: a crash, or code execution",
        source=_BULLETIN + "5687",
    ),
    Advisory(
        names=("CVE-2025-23319", "CVE-2025-23320", "CVE-2025-23334"),
        fixed="25.07",
        way=SHARED_MEMORY,
        harm="an error names the Python backend's shared memory, which can then be "
        "registered and written: code execution",
        source=_BULLETIN
        + "5687, github.com/triton-inference-server/pytriton/issues/108",
    ),
    Advisory(
        names=("CVE-2026-24206", "CVE-2026-24207"),
        fixed="26.04",
        way=NETWORK,
        harm="authentication is bypassed: models can be loaded, code executed",
        source=_BULLETIN + "5828; 26.04 by github.com/cms-sw/cmssw/pull/51027",
    ),
    Advisory(
        names=("CVE-2026-24208", "CVE-2026-24209"),
        fixed="26.04",
        way=NETWORK,
        harm="a path leads out of its folder: the server fails",
        source=_BULLETIN + "5828; 26.04 by github.com/cms-sw/cmssw/pull/51027",
    ),
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


_PROTOCOLS = DOCS + "customization_guide/inference_protocols.html"
_DEPLOY = DOCS + "customization_guide/deploy.html"
_MANAGEMENT = DOCS + "user_guide/model_management.html"
_RESTRICTION = {"grpc": "grpc-restricted-protocol", "http": "http-restricted-api"}

RULES = (
    Rule(
        code="TG501",
        title="the server polls its repository",
        severity=Severity.ERROR,
        why="POLL loads what it sees, half-copied files too, and unloads what works; "
        "NVIDIA does not recommend it in production.",
        source=_MANAGEMENT,
        mend="--model-control-mode=explicit, and load what a release names.",
    ),
    Rule(
        code="TG502",
        title="model control is open over gRPC",
        severity=Severity.ERROR,
        why="Whoever reaches the port can load a model, and a model is code that runs "
        "as the server's user.",
        source=_DEPLOY + "; " + _PROTOCOLS,
        mend="--grpc-restricted-protocol=model-repository,model-config,shared-memory,"
        "trace,logging:KEY=SECRET",
    ),
    Rule(
        code="TG503",
        title="model control is open over HTTP",
        severity=Severity.ERROR,
        why="As over gRPC; closing one of the two leaves the other.",
        source=_DEPLOY + "; " + _PROTOCOLS,
        mend="--allow-http=false, or --http-restricted-api=model-repository,model-"
        "config,shared-memory,trace,logging:KEY=SECRET",
    ),
    Rule(
        code="TG504",
        title="shared memory can be registered by anybody",
        severity=Severity.WARNING,
        why="Who can name a region of the server's machine can read and write it "
        "through requests; with the Python backend that was a way to run code.",
        source=_PROTOCOLS + "; CVE-2025-23319, CVE-2025-23320, CVE-2025-23334",
        mend="Name shared-memory in the restricted protocols too.",
    ),
    Rule(
        code="TG505",
        title="HTTP is open beyond this machine",
        severity=Severity.WARNING,
        why="A second protocol to guard, without the connections and deadlines of "
        "gRPC; its parser had the gravest published holes.",
        source=_DEPLOY + "; CVE-2025-23310, CVE-2025-23311",
        mend="--allow-http=false, or --http-address=127.0.0.1 with a proxy before it.",
    ),
    Rule(
        code="TG506",
        title="the histograms that are switched on are blind to the objective",
        severity=Severity.WARNING,
        why="histogram_latencies has boundaries at 100, 500, 2000 and 5000 ms only.",
        source=DOCS + "user_guide/metrics.html",
        mend="Give each model boundaries in model_metrics, or measure in the steps.",
    ),
    Rule(
        code="TG507",
        title="the server calls itself ready without its models",
        severity=Severity.WARNING,
        why="With strict-readiness off, /v2/health/ready says yes while models are "
        "unavailable, and traffic is sent there.",
        source="tritonserver --help (2.51)",
        mend="Leave --strict-readiness at true; ask for each product, not the server.",
    ),
    Rule(
        code="TG508",
        title="the release has known vulnerabilities",
        severity=Severity.ERROR,
        why="They are published, with the way in; see the finding.",
        source="tollgate/repository/lint/exposure.py",
        mend="Serve with the release that has the fix; until then close the way in.",
    ),
    Rule(
        code="TG509",
        title="the release has known vulnerabilities, and the way in is closed",
        severity=Severity.ADVICE,
        why="The start line leaves them no way in, as long as it stays so.",
        source="tollgate/repository/lint/exposure.py",
        mend="Serve with the release that has the fix.",
    ),
)


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
