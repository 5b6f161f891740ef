"""From a scenario to a page: as a user runs it, in small."""

from __future__ import annotations

import base64
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from loadtests.paced.raw import read_raw
from loadtests.pages.__main__ import main as page
from loadtests.run import highest_rate, latency_ms
from loadtests.run import main as run
from tollgate.load.results import ANSWERED
from tollgate.testing import TestServer

pytestmark = pytest.mark.skipif(
    not shutil.which("cc"), reason="no C compiler: apt-get install gcc libnghttp2-14"
)
SMALL = "--customers 60 --terminals 80 --warm-up 0.2"


class Page(HTMLParser):
    """Collects the files that a page would load, and its pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[bytes] = []
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a picture, or what comes from elsewhere."""
        attributes = dict(attrs)
        source = attributes.get("src") or attributes.get("href") or ""
        head, _, content = source.partition(",")
        if tag == "img" and head == "data:image/png;base64":
            self.pictures.append(base64.b64decode(content))
        elif source or tag in ("script", "link", "iframe"):
            self.foreign.append(tag)


def test_two_runs_become_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raw files by run; Markdown with pictures; a page that loads nothing else."""
    with TestServer() as server:
        words = f"poison-mix --rate 100 --seconds 1.5 --runs 2 {SMALL} --label small"
        options = ["--grpc-url", server.url, "--out", str(tmp_path / "raw")]
        assert run([*words.split(), *options]) == 0
    files = capsys.readouterr().out.split()
    assert [Path(one).name for one in files] == [
        *("small-poison-mix-100x1-1.npz", "small-poison-mix-100x1-2.npz"),
    ]
    one, other = (read_raw(Path(file)) for file in files)
    assert set(one.about.kinds) == {ANSWERED, "INVALID_ARGUMENT"}
    assert one.about.server is None
    assert one.calls["due_us"].tolist() != other.calls["due_us"].tolist()
    report, text = tmp_path / "page.html", tmp_path / "page.md"
    assert page([*files, "--html", str(report), "--markdown", str(text)]) == 0
    found = Page()
    found.feed(report.read_text())
    assert len(found.pictures) == 3  # percentiles, and each run over time
    assert all(one.startswith(b"\x89PNG") for one in found.pictures)
    assert found.foreign == []
    written = text.read_text()
    for number, picture in enumerate(found.pictures, start=1):
        assert f"](page-{number}.png)" in written
        assert (tmp_path / f"page-{number}.png").read_bytes() == picture
    assert "| small: poison-mix 100/s | 2 |" in written
    bad = re.findall(
        r"^\| small-poison-mix-100x1-. \| (\d+) \| (\d+) \| (\d+) \|$", written, re.M
    )
    assert len(bad) == 2
    assert all(sent == refused and good == "0" for sent, refused, good in bad)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nothing --out x", "scenario: 'nothing' is none of steady"),
        ("steady --out x --runs 0", "--runs: 0 is below 1"),
        ("steady --out x --rows 40", "rows"),
        ("steady --out x --seconds 1", "--seconds: the warm-up of 2 s is all"),
        ("steady --out x --seconds inf", "--seconds: inf requests are more than"),
        ("steady --out x --rate 1e12", "requests are more than 50,000,000"),
        ("steady --out x --seed -1", "--seed: -1 is below 0"),
        ("steady --out x --share 0.5 --grpc-url h:1", "needs our own server"),
        ("steady steady --out x", "steady-1000x1-1.npz is requested twice"),
    ],
)
def test_a_wrong_flag_is_one_line(
    arguments: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2, and nothing is started or written."""
    monkeypatch.chdir(tmp_path)
    assert run(arguments.split()) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_measured_results_are_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the file, before anything is started."""
    old = tmp_path / "steady-50x1-2.npz"
    old.write_text("an hour's work")
    words = f"steady --rate 50 --runs 2 --grpc-url 127.0.0.1:1 --out {tmp_path}"
    assert run(words.split()) == 2
    assert "steady-50x1-2.npz: has results already" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == [old.name]
    assert old.read_text() == "an hour's work"


def test_a_page_of_nothing_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is none, and a place that is none."""
    assert page([str(tmp_path / "none.npz")]) == 2
    assert "none.npz: is no raw result" in capsys.readouterr().err
    assert page(["x.npz", "--html", "/no/such/folder/x.html"]) == 2
    assert "--html: /no/such/folder is not a folder" in capsys.readouterr().err


def test_a_search_ends_next_to_the_limit() -> None:
    """Six rates at most; the result is one of those that held."""
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= 777

    found = highest_rate(holds, most=1000)
    assert 777 - 1000 / 64 - 1 <= found <= 777
    assert found in tried
    assert len(tried) == 6
    assert highest_rate(lambda rate: False, most=1000) == 0
    assert highest_rate(lambda rate: True, most=3) == 2


def test_latency_counts_from_the_due_time_after_the_warm_up(tmp_path: Path) -> None:
    """A refused request counts as an endless one, however fast it was refused."""
    with TestServer() as server:
        words = f"poison-mix --rate 100 --seconds 1.5 {SMALL}"
        assert (
            run([*words.split(), "--grpc-url", server.url, "--out", str(tmp_path)]) == 0
        )
    raw = read_raw(tmp_path / "poison-mix-100x1-1.npz")
    p50_ms, p99_ms, p999_ms = latency_ms(raw)
    counted = [one for one in raw.calls if one["due_us"] >= 0.2e6]
    took = sorted(one["took_us"] / 1e3 for one in counted if one["kind"] == 0)
    failed = len(counted) - len(took)
    assert failed > len(counted) * 0.01
    assert p50_ms == took[-(-len(counted) // 2) - 1]
    assert p99_ms == p999_ms == np.inf


@pytest.mark.slow
def test_the_closed_loop_of_the_fused_form_sets_the_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A share of it in two runs, with layers; a search names a rate that it ran."""
    words = f"steady --form fused --rows 4 --seconds 1 {SMALL} --out {tmp_path}"
    assert run([*words.split(), "--share", "0.1", "--layers"]) == 0
    captured = capsys.readouterr()
    (file,) = captured.out.split()
    closed = re.search(r"closed loop: ([\d,]+) requests/s", captured.err)
    assert closed
    raw = read_raw(Path(file))
    rate = raw.about.scenario.peak_rate
    assert rate == pytest.approx(0.1 * float(closed[1].replace(",", "")), abs=0.1)
    assert (raw.calls["rows"] == 4).all()
    assert len(np.unique(raw.batches["step"])) == 3
    assert raw.layers_ms
    assert run([*words.split(), "--p99-ms", "1e9"]) == 0
    line, *files = capsys.readouterr().out.splitlines()
    found = re.search(r"4 rows: p99 is 1e\+09 ms or less up to ([\d,]+) req", line)
    assert found
    assert f"steady-{found[1].replace(',', '')}x4-1.npz" in {
        Path(one).name for one in files
    }


@pytest.mark.slow
def test_the_real_server_is_looked_at_counted_and_troubled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers, writes and records of every purchase; a slow store shows in the bits."""
    words = "slow-store --rate 80 --seconds 3 --layers --customers 60 --terminals 80"
    out = ["--warm-up", "0.5", "--out", str(tmp_path)]
    assert run([*words.split(), *out]) == 0
    (file,) = capsys.readouterr().out.split()
    raw = read_raw(Path(file))
    calls, server = raw.calls, raw.about.server
    assert server is not None
    answered = calls["kind"] == 0
    assert answered.mean() > 0.9
    assert calls["decided"][answered].all()
    slow = (calls["due_us"] > 1.1e6) & (calls["due_us"] < 1.9e6)
    assert calls["degraded"][slow & answered].mean() > 0.9
    assert server.purchases == server.journalled >= answered.sum()
    counted = calls[(calls["due_us"] >= 0.5e6) & answered]
    took_ms = (counted["took_us"] - np.maximum(counted["late_us"], 0)) / 1e3
    assert sum(raw.layers_ms.values()) == pytest.approx(took_ms, abs=0.01)
    assert len(np.unique(raw.batches["step"])) == 3
    assert page([file, "--html", str(tmp_path / "page.html")]) == 0
    found = Page()
    found.feed((tmp_path / "page.html").read_text())
    assert len(found.pictures) == 4  # percentiles, layers, over time, batches
    assert page([file]) == 0
    printed = capsys.readouterr().out
    assert "| slow-store 80/s | features |" in printed
    assert "## Steps at work" in printed
    assert "store-slow over" in printed
