"""Lines of nginx become counts: by what asked, what became of it, and whose it was."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tollgate.gateway.gateway_metrics import (
    ASKED,
    CALLERS,
    OUTCOMES,
    STATUSES,
    GatewayMetrics,
)
from tollgate.gateway.template import INSPECTION, TEMPLATE, Limits

COMMAND = "from tollgate.cli import main; main()"
PASSED = b'["decision","passed","shop","0",0.008]\n'
REQUESTS = "tollgate_gateway_requests_total"
SECONDS = "tollgate_gateway_request_seconds"


@pytest.fixture
def counted(tmp_path: Path) -> GatewayMetrics:
    """Nothing counted yet."""
    return GatewayMetrics(tmp_path / "requests.log", limits=Limits(1000, 40, 28, 1))


def value(counted: GatewayMetrics, name: str, **labels: str) -> float | None:
    """Read one series."""
    return counted.registry.get_sample_value(name, labels)


def labels(
    asked: str, outcome: str, *, caller: str = "shop", status: str = "OK"
) -> dict[str, str]:
    """Name a series of requests."""
    return {"asked": asked, "outcome": outcome, "caller": caller, "status": status}


def test_lines_are_counted_and_timed(counted: GatewayMetrics) -> None:
    """Two of 8 ms, one of 60 and a refusal at once."""
    counted.count(PASSED * 2 + PASSED.replace(b"0.008", b"0.060"))
    counted.count(b'["decision","overloaded","shop","14",0.000]\n')
    assert value(counted, REQUESTS, **labels("decision", "passed")) == 3
    refused = labels("decision", "overloaded", status="UNAVAILABLE")
    assert value(counted, REQUESTS, **refused) == 1
    passed = {"asked": "decision", "outcome": "passed"}
    assert value(counted, f"{SECONDS}_sum", **passed) == pytest.approx(0.076)
    for le, number in (("0.007", 0), ("0.008", 2), ("0.05", 2), ("0.075", 3)):
        assert value(counted, f"{SECONDS}_bucket", **passed, le=le) == number
    at_once = {"asked": "decision", "outcome": "overloaded", "le": "0.0005"}
    assert value(counted, f"{SECONDS}_bucket", **at_once) == 1


def test_the_gateway_tells_what_it_lets_in(counted: GatewayMetrics) -> None:
    """So that a query holds what is under way against it."""
    name = "tollgate_gateway_in_flight_limit"
    found = [value(counted, name, of=one) for one in ("all", "caller", "bulk")]
    assert found == [40, 28, 1]
    assert value(counted, "tollgate_gateway_caller_rate_limit") == 1000


def test_bounds_follow_what_the_script_says(
    counted: GatewayMetrics, tmp_path: Path
) -> None:
    """All, one caller's, bulk; what is absent or no such line changes nothing."""
    path = tmp_path / "bounds"
    for text, expected in (
        (None, [40, 28, 1]),
        ("120 84 3\n", [120, 84, 3]),
        ("", [120, 84, 3]),
        ("80 56", [120, 84, 3]),
        ("a b c", [120, 84, 3]),
        ("60 42 1\n", [60, 42, 1]),
    ):
        if text is not None:
            path.write_text(text)
        counted.read_bounds(path)
        name = "tollgate_gateway_in_flight_limit"
        found = [value(counted, name, of=one) for one in ("all", "caller", "bulk")]
        assert found == expected


def test_words_are_those_of_the_configuration() -> None:
    """What nginx may say is what is counted, and the other way round."""
    text = TEMPLATE.read_text()
    refusals = set(re.findall(r"set \$gateway_refused (\w+);", text))
    refusals |= set(re.findall(r"new Refusal\('(\w+)'", INSPECTION.read_text()))
    numbers = re.search(r"map \$gateway_refused \$gateway_said {(.*?)}", text, re.S)
    assert numbers is not None
    assert refusals == set(re.findall(r"^ +(\w+) \d+;", numbers[1], re.M))
    assert refusals | {"passed", "gave_up"} == set(OUTCOMES)
    asked = re.search(r'map "\$gateway_bulk \$uri" \$gateway_asked {(.*?)}', text, re.S)
    assert asked is not None
    assert set(re.findall(r" (\w+);", asked[1])) == set(ASKED)


def test_statuses_have_grpcs_names() -> None:
    """By number; none is left out."""
    found = {code.value[0]: code.name for code in grpc.StatusCode}
    assert dict(enumerate(STATUSES)) == found


def test_a_status_that_is_none_is_unknown(counted: GatewayMetrics) -> None:
    """Labels are words of a list, whatever a server sends; no status is none."""
    for status in (b"99", b"00", b"x", b""):
        counted.count(PASSED.replace(b'"0"', b'"' + status + b'"'))
    unknown = labels("decision", "passed", status="UNKNOWN")
    assert value(counted, REQUESTS, **unknown) == 3
    assert value(counted, REQUESTS, **labels("decision", "passed", status="")) == 1


def test_callers_beyond_a_hundred_share_a_label(counted: GatewayMetrics) -> None:
    """Who was known before goes on by name; strangers take no place."""
    for number in range(CALLERS + 50):
        counted.count(PASSED.replace(b"shop", b"shop-%d" % number))
    counted.count(PASSED.replace(b"shop", b"shop-0") + PASSED.replace(b"shop", b""))
    assert value(counted, REQUESTS, **labels("decision", "passed", caller="shop-0"))
    others = labels("decision", "passed", caller="(others)")
    assert value(counted, REQUESTS, **others) == 50
    assert value(counted, REQUESTS, **labels("decision", "passed", caller="")) == 1
    page = {
        sample.labels["caller"]
        for family in counted.registry.collect()
        for sample in family.samples
        if sample.name == REQUESTS
    }
    assert len(page) == CALLERS + 2


def test_lines_that_are_none_cost_no_others(counted: GatewayMetrics) -> None:
    """Half lines of a full disk, bytes, other words: counted as unreadable."""
    torn = (
        b'["decision","pas["decision","passed","shop","0",0.008]\n',
        b"\xff\xfe\n",
        b'["decision","eaten","shop","0",0.008]\n',
        b'["decision","passed","shop","0"]\n',
        b'["decision","passed","\xff","0",0.008]\n',
    )
    for line in torn:
        counted.count(PASSED + line + PASSED)
    assert value(counted, "tollgate_gateway_unreadable_lines_total") == len(torn)
    both = 2.0 * len(torn)
    assert value(counted, REQUESTS, **labels("decision", "passed")) == both


def test_a_subject_is_text(counted: GatewayMetrics) -> None:
    """As nginx writes it into JSON; no longer than 128 characters."""
    subject = "CN=" + "x" * 200 + '"\\'
    written = subject.replace("\\", "\\\\").replace('"', '\\"').encode()
    counted.count(PASSED.replace(b"shop", written))
    found = labels("decision", "passed", caller=subject[:128])
    assert value(counted, REQUESTS, **found) == 1


def test_who_counts_is_to_be_scraped(tmp_path: Path) -> None:
    """Port 0, nowhere for other commands, would be counting for nobody."""
    bounds = [
        f"--{name}=1"
        for name in ("rate", "in-flight", "caller-in-flight", "bulk-in-flight")
    ]
    given = ["gateway", "metrics", str(tmp_path / "x"), "--metrics-port=0", *bounds]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *given],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert b"--metrics-port" in done.stderr


def test_what_is_looked_at_is_what_nginx_wrote(tmp_path: Path) -> None:
    """From the file into the counts."""
    path = tmp_path / "requests.log"
    counted = GatewayMetrics(path)
    counted.update()
    path.write_bytes(PASSED)
    counted.update()
    counted.update()
    counted.close()
    assert value(counted, REQUESTS, **labels("decision", "passed")) == 1
    assert value(counted, "tollgate_gateway_in_flight_limit", of="all") is None
