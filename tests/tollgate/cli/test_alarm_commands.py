"""`alarms run` and `alarms deliver` as a person types them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import redis

from tests.support.stream.alarm_chain import reading
from tollgate.testing import Answer, TestServer

CHECKOUT = Path(__file__).resolve().parents[3]
FEED = "tollgate.fraud.readings:0"


def alarms(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the group until its feed is idle."""
    command = [sys.executable, "-c", "from tollgate.cli import main; main()", "alarms"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TOLLGATE_")
    }
    return subprocess.run(
        [*command, *words, "--until-idle"],
        cwd=CHECKOUT,
        env=environment | {"COLUMNS": "200"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def bodies() -> Iterator[tuple[str, list[bytes]]]:
    """A receiver that accepts everything: its address, and what it got."""
    found: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        """Accept one request."""

        def do_POST(self) -> None:
            found.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", found
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_reading_becomes_an_alarm_and_reaches_the_webhook(
    store_url: str,
    redis_client: redis.Redis,
    bodies: tuple[str, list[bytes]],
    tmp_path: Path,
) -> None:
    """Readings, dead letters and alarms have the names of the product."""
    url, found = bodies
    for event in (reading("r-1", "m", amount=200.0), reading("r-2", "m"), b"{"):
        redis_client.xadd(FEED, {"event": event})
    with TestServer(default=Answer("approve")) as server:
        server.answer("r-1", Answer("decline", 0.9))
        done = alarms("run", "--url", server.url, TOLLGATE_STORE_URL=store_url)
    assert done.returncode == 0, done.stderr
    assert "decided 2, alarms 2, dead letters 1, retries 0" in done.stdout
    secret = tmp_path / "webhook.secret"
    secret.write_text(f"whsec_{base64.b64encode(b'k' * 32).decode()}\n")
    done = alarms(
        *("deliver", "--secret-file", str(secret)),
        TOLLGATE_STORE_URL=store_url,
        TOLLGATE_WEBHOOK_URL=url,
    )
    assert done.returncode == 0, done.stderr
    assert "delivered 2, dead letters 0, retries 0" in done.stdout
    assert [json.loads(one)["decision"] for one in found] == ["decline", "approve"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["run", "--outcomes", "deny"], "'deny' is no outcome"),
        (["run", "--entity", "pump"], "'pump' is no entity of fraud"),
        (["run", "--feed-url", "mqtt://h/x"], "is not HOST or HOST:PORT"),
        (["deliver"], "--webhook-url: names no receiver"),
        (["deliver", "--webhook-url", "https://h/"], "--secret-file: is missing"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(
    store_url: str, words: list[str], problem: str
) -> None:
    """With status 2, before anything is read."""
    done = alarms(*words, TOLLGATE_STORE_URL=store_url)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
