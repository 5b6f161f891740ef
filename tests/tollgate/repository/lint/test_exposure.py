"""What a start line leaves open is named, each thing by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.repository.lint.exposure import (
    ADVISORIES,
    findings,
    known_for,
    release_findings,
    release_of,
)
from tollgate.repository.lint.linting import RULES
from tollgate.repository.lint.start_line import (
    ServerCommandLine,
    parse_server_command_line,
)
from tollgate.server.triton.launcher import Installed, TritonServer

CLOSED = """\
tritonserver
--model-control-mode=explicit
--grpc-restricted-protocol=model-repository,model-config,shared-memory:admin=secret
--allow-http=false
"""
RESTRICTED = "--http-restricted-api=model-repository,shared-memory:admin=secret"

# code: (text of CLOSED, text instead, line, the same near it that does no harm)
BREAKS = {
    "TG501": ("mode=explicit", "mode=poll", 2, "mode=none"),
    "TG502": ("model-repository,", "", 2, "model-repository,statistics,"),
    "TG503": (
        "--allow-http=false",
        "--http-address=127.0.0.1 --http-restricted-api=shared-memory:admin=secret",
        2,
        f"--http-address=127.0.0.1 {RESTRICTED}",
    ),
    "TG504": (",shared-memory", "", 3, ",shared-memory,trace"),
    "TG505": (
        "--allow-http=false",
        f"--http-port=80\n{RESTRICTED}",
        1,
        f"--http-port=80 --http-address=::1\n{RESTRICTED}",
    ),
    "TG506": (
        "--allow-http=false",
        "--allow-http=false\n--metrics-config=histogram_latencies=true",
        5,
        "--allow-http=false --metrics-config=summary_latencies=true",
    ),
    "TG507": (
        "--allow-http=false",
        "--allow-http=false\n--strict-readiness=false",
        5,
        "--allow-http=false --strict-readiness=true",
    ),
}
CVES_2025 = {f"CVE-2025-{number}" for number in (23310, 23311, 23319, 23320, 23334)}


def found_in(text: str, *, objective_ms: float | None = 50) -> list[tuple[str, int]]:
    """Lint a start line: code and line of each finding."""
    line = parse_server_command_line(text, file="run.sh")
    return [(one.code, one.line) for one in findings(line, objective_ms=objective_ms)]


def named_for(release: str, line: ServerCommandLine | None) -> dict[str, set[str]]:
    """Name the vulnerabilities of a release by the rule that names them."""
    named: dict[str, set[str]] = {"TG508": set(), "TG509": set()}
    for one in release_findings(release, line=line, file="f", at_line=3):
        names = one.problem.partition(": ")[0].split(", ")
        named[one.code].update(names)
        assert (one.file, one.line) == ("f", 3)
    return named


@pytest.mark.parametrize("code", BREAKS)
def test_what_is_open_is_found_at_its_line_alone(code: str) -> None:
    """One thing opened in a closed line: one finding, or none when it is harmless."""
    old, new, line, harmless = BREAKS[code]
    assert CLOSED.count(old) == 1
    assert found_in(CLOSED.replace(old, new)) == [(code, line)]
    assert found_in(CLOSED.replace(old, harmless)) == []


def test_every_rule_for_start_lines_has_its_case() -> None:
    """TG508 and TG509 have tests of their own below."""
    codes = {code for code in RULES if code.startswith("TG5")}
    assert BREAKS.keys() | {"TG508", "TG509"} == codes


def test_a_closed_line_is_closed() -> None:
    """Nothing is found, with and without an objective."""
    assert found_in(CLOSED) == found_in(CLOSED, objective_ms=None) == []


def test_what_is_not_told_is_what_triton_does_then() -> None:
    """A bare tritonserver: HTTP and shared memory are open, its models are fixed."""
    assert found_in("\ntritonserver") == [("TG504", 2), ("TG504", 2), ("TG505", 2)]


def test_an_objective_among_tritons_own_boundaries_is_seen() -> None:
    """100 ms is one of them."""
    text = CLOSED + "--metrics-config=histogram_latencies=true"
    assert found_in(text, objective_ms=100) == found_in(text, objective_ms=None) == []


def test_our_own_server_is_closed(tmp_path: Path) -> None:
    """What the launcher starts, word by word, leaves nothing open."""
    server = TritonServer(tmp_path, state=tmp_path, store_url="", cache_mb=16)
    triton = Installed(tmp_path, tmp_path, tmp_path, gpu=False)
    text = "\n".join(["tritonserver", *server._options(triton)])
    assert found_in(text) == []
    named = named_for("24.10", parse_server_command_line(text, file="us"))
    assert named["TG508"] == set()
    assert named["TG509"] >= CVES_2025


def test_vulnerabilities_are_named_until_the_release_that_has_the_fix() -> None:
    """The five of 2025 up to 25.06; of 25.07 only later ones; of 26.07 none."""
    bare = parse_server_command_line("tritonserver", file="f")
    assert named_for("25.06", bare)["TG508"] >= CVES_2025
    assert not named_for("25.07", bare)["TG508"] & CVES_2025
    assert (
        named_for("25.07", bare)["TG508"] == named_for("26.03", bare)["TG508"] != set()
    )
    assert named_for("26.07", bare) == {"TG508": set(), "TG509": set()}


def test_a_way_that_is_closed_makes_it_advice() -> None:
    """HTTP off closes one, restricted shared memory the other, loopback all."""
    line = parse_server_command_line(CLOSED, file="f")
    named = named_for("24.10", line)
    assert named["TG509"] == CVES_2025
    assert named["TG508"] == {f"CVE-2026-{n}" for n in (24206, 24207, 24208, 24209)}
    local = parse_server_command_line(CLOSED + "--grpc-address=127.0.0.1", file="f")
    assert named_for("24.10", local)["TG508"] == set()
    assert named_for("24.10", None)["TG509"] == set()


def test_every_vulnerability_stands_once_with_a_source() -> None:
    """The table is small and can be checked."""
    names = [name for advisory in ADVISORIES for name in advisory.names]
    assert len(names) == len(set(names))
    assert all("nvidia.custhelp.com" in advisory.source for advisory in ADVISORIES)
    assert list(known_for("26.04")) == []


# From server pull requests 6971 and later, which name both.
VERSIONS = {
    "2.51.0": "24.10",
    "2.53": "24.12",
    "2.54.0": "25.01",
    "2.59.0": "25.06",
    "2.59.1": "25.07",
    "2.60.0": "25.08",
    "2.62.0": "25.10",
    "2.69.0": "26.05",
    "2.70.0": "26.06",
    "26.07": "26.07",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_are_releases(version: str) -> None:
    """Triton counts in two ways."""
    assert release_of(version) == VERSIONS[version]


@pytest.mark.parametrize("text", ["2.44.0", "26.13", "3.0", "latest", "2", "2.51.0.1"])
def test_what_is_no_release_is_refused(text: str) -> None:
    """With the value."""
    with pytest.raises(InputError, match=f"target: .{text}. is no release"):
        release_of(text)
