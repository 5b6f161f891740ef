"""A live server's pages hold what the table of metrics says, and nothing else."""

from __future__ import annotations

import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server.next_release import next_release
from tollgate.metrics import PAGES, MetricRow
from tollgate.testing.supervised import Supervised
from tollgate.testing.supervised import supervised as supervised_up
from tollgate_client.client import Client

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The pages of a server that decided 40 rows."""
    folder = tmp_path_factory.mktemp("up")
    repository = folder / "model_repository"
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY, repository, ignore=bytecode)
    release_hysteresis(repository)
    with supervised_up(repository, state=folder / "state") as product:
        with Client(product.grpc_url, timeout_s=20) as client:
            for number in range(10):
                client.decide(purchases(f"t{number}-"))
        yield {
            "triton": settled(product),
            "supervisor": product.get("/metrics")[1],
        }


def release_hysteresis(repository: Path) -> None:
    """Release a policy that has every metric of a policy."""
    step = repository / "fraud_decision"
    shutil.copytree(step / "1", step / "2")
    policy = step / "2/policy.yaml"
    section = "hysteresis: {entity: customer, of: 2, at_least: 2}\n\nreasons:\n"
    texts = [f"  {code}: Text.\n" for code in ("RAISED", "HELD", "UNCONFIRMED", "LATE")]
    text = policy.read_text()
    assert text.count("\nreasons:\n") == 1
    policy.write_text(text.replace("reasons:\n", section + "".join(texts)))
    next_release(repository, fraud_decision=2)


def purchases(name: str) -> dict[str, object]:
    """Columns of four purchases."""
    return {
        "transaction_id": [f"{name}{row}" for row in range(4)],
        "customer_id": [f"c{row}" for row in range(4)],
        "terminal_id": [f"m{row}" for row in range(4)],
        "amount": [10.0 + row for row in range(4)],
        "event_time": [time.time_ns() // 1000] * 4,
    }


def settled(product: Supervised) -> str:
    """Wait until Triton's page counts all rows."""
    until_s = time.monotonic() + PATIENCE_S
    before: list[str] = []
    while True:
        with urllib.request.urlopen(product.metrics_url, timeout=10) as answer:
            text = str(answer.read().decode())
        found = re.findall(r'^tollgate_rows_total{.*"decided".*} (\d+)', text, re.M)
        late = (
            *("tollgate_journal_lag_seconds_count", "tollgate_feed_age_seconds_count"),
            "tollgate_score_log_odds_sum",
        )
        # Metrics are reported in batches, and a page may be read between two.
        series = re.findall(r"^[^#\s]+", text, re.M)
        if found == ["40"] and all(name in text for name in late) and series == before:
            return text
        before = series
        assert time.monotonic() < until_s, found
        time.sleep(0.2)


def families(text: str) -> set[str]:
    """Name the families of a page, but those that say when another began."""
    found = re.findall(r"^# HELP (\S+)", text, re.MULTILINE)
    return {name for name in found if not name.endswith("_created")}


def known(row: MetricRow) -> set[str]:
    """Name the families that a row may be: steps report a histogram by its parts."""
    return {row.name, *row.series}


@pytest.mark.parametrize("page", ["triton", "supervisor"])
def test_the_page_is_what_the_table_says(page: str, pages: dict[str, str]) -> None:
    """Every row is on its page; every family of the page is in the table."""
    rows = PAGES[page][1]  # type: ignore[index]
    exported = families(pages[page])
    for row in rows:
        assert known(row) & exported, row.name
    assert exported <= {name for row in rows for name in known(row)}


@pytest.mark.parametrize("page", ["triton", "supervisor"])
def test_labels_are_those_of_the_table(page: str, pages: dict[str, str]) -> None:
    """Of every series that has values."""
    rows = PAGES[page][1]  # type: ignore[index]
    labels = {name: set(row.labels) for row in rows for name in row.series}
    seen = set()
    for line in pages[page].splitlines():
        if line.startswith("#") or "_created" in line:
            continue
        name = re.split(r"[{ ]", line)[0]
        found = set(re.findall(r'(\w+)="', line)) - {"le"}
        assert found == labels[name], line
        seen.add(name)
    assert {"tollgate_score_bucket", "nv_inference_count"} <= seen or page != "triton"


def test_no_series_is_of_a_row(pages: dict[str, str]) -> None:
    """However many rows and processes there were: as many series as the paper says."""
    for page, most in (("triton", 600), ("supervisor", 100)):
        series = [one for one in pages[page].splitlines() if one[:1] not in ("", "#")]
        assert len(series) < most
        assert not re.search(r'="(t\d-|c\d"|m\d")', "\n".join(series))


def test_forty_rows_are_forty_decisions(pages: dict[str, str]) -> None:
    """Counted by outcome, by time and by score; probes are not among them."""
    text = pages["triton"]
    for name in (
        "tollgate_decisions_total",
        'tollgate_step_seconds_bucket{[^}]*le="\\+Inf"[^}]*step="whole"',
        "tollgate_score_count",
    ):
        found = re.findall(rf"^{name}.* (\d+)$", text, re.MULTILINE)
        assert sum(map(int, found)) == 40, name
    assert re.search(r'tollgate_rows_total{.*kind="dry".*} [1-9]', text)


def test_the_supervisor_knows_release_scores_and_processes(
    pages: dict[str, str],
) -> None:
    """Which versions answer, how scores lay in training, what everything takes."""
    text = pages["supervisor"]
    assert (
        'tollgate_release_info{model="fraud_model",product="fraud",'
        'release="fraud-2",role="champion",version="1"} 1.0'
    ) in text
    assert 'tollgate_release_percent{product="fraud"' in text
    mean, deviation = (
        float(re.findall(rf"^tollgate_score_trained_{name}{{.*}} (\S+)", text, re.M)[0])
        for name in ("log_odds", "deviation")
    )
    assert 4 < mean < 8  # a score of 0.0003 is the median
    assert 1 < deviation < 4
    taking = re.findall(
        r'^tollgate_process_resident_bytes{.*process="([\w-]+)"', text, re.M
    )
    assert sorted(taking) == [
        *("fraud_decision", "fraud_features", "fraud_model"),
        *("redis-server", "supervisor", "tritonserver"),
    ]
