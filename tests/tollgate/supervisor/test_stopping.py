"""A server that stops is first not ready, still answers, and then ends."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from tollgate.errors import ServerError
from tollgate.server.address import find_server
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.triton.probe import probe
from tollgate.testing.supervised import Supervised

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
DRAIN_S = 3.0


def test_a_server_that_is_told_to_end_answers_what_it_has(tmp_path: Path) -> None:
    """503 at once; while it drains every request is answered; exit status 0."""
    with EmbeddedRedis(tmp_path / "store") as redis:
        words = (
            *("serve", "--store-url", redis.url),
            *("--drain-delay", str(DRAIN_S), "--log-format", "json"),
        )
        product = Supervised(REPOSITORY, tmp_path / "state", words=words)
        try:
            product.wait(lambda: bool(product.health_url) and product.ready())
            address = find_server(tmp_path / "state")
            assert address is not None
            answered: list[float] = []
            problems: list[tuple[float, str]] = []
            ended = threading.Event()

            def ask() -> None:
                while not ended.is_set():
                    try:
                        probe(address, "fraud", rows=(1,))
                        answered.append(time.monotonic())
                    except ServerError as error:
                        problems.append((time.monotonic(), str(error)))

            asking = threading.Thread(target=ask)
            asking.start()
            product.wait(lambda: bool(answered))
            told_s = time.monotonic()
            product.process.send_signal(signal.SIGTERM)
            product.wait(lambda: product.get("/readyz")[0] == 503)
            assert '"draining"' in product.get("/readyz")[1]
            assert product.get("/livez")[0] == 200
            assert product.process.wait(600) == 0
            ended.set()
            asking.join()
        finally:
            product.stop()
        # Who went on asking was answered for as long as was said.
        assert max(answered) > told_s + DRAIN_S / 2
        assert [text for at, text in problems if at < told_s + DRAIN_S / 2] == []
    assert find_server(tmp_path / "state") is None
