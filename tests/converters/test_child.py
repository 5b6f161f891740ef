"""A process that answers messages, and what is said of one that does not."""

import sys

import pytest

from converters.sources.child_process import Child, ChildLost

ECHO = """
from converters.sources.wire import receive, send, take_streams
requests, replies = take_streams()
print("not a message")
while body := receive(requests):
    send(replies, body[::-1])
"""


def child(code, *, timeout_s=60.0):
    """Start Python with this code."""
    return Child([sys.executable, "-c", code], timeout_s=timeout_s)


def test_messages_of_any_length_come_back():
    """Also longer than a pipe holds, and with what libraries print in between."""
    echo = child(ECHO)
    try:
        for body in (b"ab", bytes(range(256)) * 4096, b"yz"):
            assert echo.ask(body) == body[::-1]
    finally:
        echo.close()


@pytest.mark.parametrize(
    ("code", "timeout_s", "how"),
    [
        ("import time; time.sleep(60)", 0.3, ""),
        ("raise SystemExit(3)", 60.0, "status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60.0, "SIGSEGV"),
        ("import os; os.close(1); os.read(0, 1); os._exit(4)", 60.0, "status 4"),
    ],
)
def test_a_child_that_ends_says_how(code, timeout_s, how):
    """Late ones are killed; the signal or the status is named."""
    lost = child(code, timeout_s=timeout_s)
    try:
        with pytest.raises(ChildLost) as caught:
            lost.ask(b"x" * 100_000)
    finally:
        lost.close()
    assert caught.value.how == how
