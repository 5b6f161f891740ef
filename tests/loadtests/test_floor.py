"""The ensemble without work, beside the product, on a real tritonserver."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loadtests.floor import (
    ALL,
    NOTHING,
    STEPS,
    Cost,
    Options,
    main,
    run_all,
    to_markdown,
    write_floor,
)
from loadtests.scenarios import pick
from loadtests.surroundings import CHECKOUT


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("h2load") and shutil.which("cc")),
    reason="h2load or a C compiler is missing: apt-get install nghttp2-client gcc",
)
def test_steps_that_do_nothing_take_less_than_the_product() -> None:
    """Far less with many rows in a request; both answer."""
    options = Options(
        scenarios=pick("16-rows-4"),
        seconds=1.0,
        runs=1,
        customers=200,
        terminals=400,
    )
    costs, told = run_all(options, command="this test")
    (nothing,), (product,) = costs["16-rows-4", NOTHING], costs["16-rows-4", ALL]
    assert 0 < nothing.cpu_us < product.cpu_us
    assert nothing.decisions_per_s > product.decisions_per_s > 0
    assert "this test" in told


def test_it_keeps_tensors_and_delays(tmp_path: Path) -> None:
    """Only what runs is another: no step has a model file, all are Python."""
    source = CHECKOUT / "model_repository"
    write_floor(tmp_path, source=source)
    for model in STEPS:
        before = (source / model / "config.pbtxt").read_text()
        after = (tmp_path / model / "config.pbtxt").read_text()
        assert 'backend: "python"' in after
        assert "model_warmup [" not in after
        kept = [line for line in before.splitlines() if "dims" in line[:80]]
        kept = [line for line in kept if "name:" in line]
        assert kept
        assert set(kept) <= set(after.splitlines())
        assert before.count("max_queue_delay") == after.count("max_queue_delay") == 1
    ensemble = (tmp_path / "fraud" / "config.pbtxt").read_bytes()
    assert ensemble == (source / "fraud" / "config.pbtxt").read_bytes()


def test_the_table_has_medians_and_the_ratio_of_each_run() -> None:
    """Runs are compared with the run beside them."""
    costs = {
        ("1-row-16", NOTHING): [
            Cost(decisions_per_s=2000, p50_ms=5, p99_ms=9, cpu_us=cpu)
            for cpu in (300, 200, 400)
        ],
        ("1-row-16", ALL): [
            Cost(decisions_per_s=1000, p50_ms=9, p99_ms=19, cpu_us=cpu)
            for cpu in (600, 800, 500)
        ],
    }
    text = to_markdown(costs, "told")
    assert "| 1-row-16 | nothing | 2,000 | 5.0 | 9.0 | 300 |" in text
    assert "| 1-row-16 | product | 1,000 | 9.0 | 19.0 | 600 |" in text
    assert "1-row-16: nothing of product, run by run: 0.50, 0.25, 0.80." in text


def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and nothing is started."""
    assert main(["--seconds", "0"]) == 2
    told = capsys.readouterr().err
    assert told == "loadtests.floor: --seconds: 0.0 is not above 0\n"
