"""The ensemble without work, in turns with the product, on a real tritonserver."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from loadtests.floor import (
    ALL,
    NOTHING,
    STEPS,
    cpu_us,
    main,
    run_all,
    to_markdown,
    write_floor,
)
from loadtests.requests.recorded_answers import Tally
from loadtests.results.measure import Run, Work
from loadtests.results.percentiles import Latency
from loadtests.results.surroundings import CHECKOUT
from tollgate.load.process_usage import Use


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("h2load") and shutil.which("cc")),
    reason="h2load or a C compiler is missing: apt-get install nghttp2-client gcc",
)
def test_steps_that_do_nothing_take_less_than_the_product() -> None:
    """Far less with many rows in a request; both answer."""
    options = Namespace(
        only=["16-rows-4"],
        seconds=1.0,
        runs=1,
        customers=200,
        terminals=400,
        command="this test",
    )
    runs, description = run_all(options)
    (nothing,), (product,) = runs["16-rows-4", NOTHING], runs["16-rows-4", ALL]
    assert 0 < cpu_us(nothing) < cpu_us(product)
    assert nothing.decisions_per_s > product.decisions_per_s > 0
    # A step that answered with errors would be quick, too.
    assert (nothing.tally.failures, nothing.tally.refused_rows) == ({}, 0)
    assert nothing.work.feature_batches > 0
    assert "this test" in description


def test_it_keeps_tensors_and_delays(tmp_path: Path) -> None:
    """Only what runs is another: no step has a model file, all are Python."""
    source = CHECKOUT / "model_repository"
    write_floor(tmp_path, source=source)
    for model in STEPS:
        before = (source / model / "config.pbtxt").read_text()
        after = (tmp_path / model / "config.pbtxt").read_text()
        assert 'backend: "python"' in after
        assert "model_warmup [" not in after
        declared = [line for line in before.splitlines() if "dims" in line[:80]]
        declared = [line for line in declared if "name:" in line]
        assert declared
        assert set(declared) <= set(after.splitlines())
        assert before.count("max_queue_delay") == after.count("max_queue_delay") == 1
    ensemble = (tmp_path / "fraud" / "config.pbtxt").read_bytes()
    assert ensemble == (source / "fraud" / "config.pbtxt").read_bytes()


def test_the_table_has_medians_and_the_ratio_of_each_run() -> None:
    """Runs are compared with the run next to them; failures add up."""
    runs = {
        ("1-row-16", NOTHING): [run_of(2000, us) for us in (300, 200, 400)],
        ("1-row-16", ALL): [run_of(1000, us, failed=1) for us in (600, 800, 500)],
    }
    text = to_markdown(runs, "measured")
    assert "| 1-row-16 | nothing | 2,000 | 5.0 | 9.0 | 300 | 16.0 | 0 |" in text
    assert "| 1-row-16 | product | 1,000 | 5.0 | 9.0 | 600 | 16.0 | 3 |" in text
    assert "1-row-16: nothing of product, run by run: 0.50, 0.25, 0.80." in text


def run_of(decisions_per_s: float, cpu: float, *, failed: int = 0) -> Run:
    """A second of single rows in batches of 16, so many µs of processor time each."""
    rows = int(decisions_per_s)
    return Run(
        measured_s=1.0,
        requests_per_s=decisions_per_s,
        decisions_per_s=decisions_per_s,
        latency=Latency(p50_ms=5, p90_ms=7, p99_ms=9, p999_ms=10, max_ms=11),
        tally=Tally(
            requests=rows,
            rows=rows,
            refused_rows=0,
            degraded_rows=0,
            degraded={},
            failures={"gRPC status 14: full": failed} if failed else {},
        ),
        new_share=1.0,
        writes_per_purchase=0.0,
        continued_bodies=0,
        work=Work(
            answered=rows,
            failed=failed,
            purchases=1600,
            feature_batches=100,
            model_batches=100,
            writes=0,
            cpu_s=1600 * cpu / 1e6,
        ),
        use=Use(processes=4, pss_mb=200, rss_mb=260, cpu_s=3.0),
        generator_cpu_s=0.1,
    )


def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and nothing is started."""
    assert main(["--seconds", "0"]) == 2
    error = capsys.readouterr().err
    assert error == "loadtests.floor: --seconds: 0.0 is below 0.1\n"
