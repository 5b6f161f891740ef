"""Tests of how Redis' children run, over a real one that writes its file anew."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tollgate.server.processes.redis_server import (
    EmbeddedRedis,
    YieldingChildren,
    may_return,
)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[tuple[EmbeddedRedis, int]]:
    """A Redis, and its child, which takes long."""
    with EmbeddedRedis(tmp_path) as store, redis.Redis.from_url(store.url) as client:
        for index in range(1_000):
            client.set(f"key{index}", "x")
        client.config_set("rdb-key-save-delay", 100_000)
        client.bgrewriteaof()
        children = Path(f"/proc/{store.pid}/task/{store.pid}/children")
        until_s = time.monotonic() + 600
        while not children.read_text() and time.monotonic() < until_s:
            time.sleep(0.01)
        yield store, int(children.read_text())


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something holds, 20 s at most."""
    until_s = time.monotonic() + 600
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.02)
    assert holds()


def test_a_child_gives_way(child: tuple[EmbeddedRedis, int]) -> None:
    """It runs when nothing else wants to, or hardly; Redis itself as ever."""
    store, pid = child
    if may_return():
        wait_for(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)
    else:
        wait_for(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
    assert os.sched_getscheduler(store.pid) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, store.pid) == os.nice(0)


@pytest.mark.skipif(not may_return(), reason="this user may not give a share back")
def test_a_child_that_takes_too_long_gets_its_share_again(
    child: tuple[EmbeddedRedis, int],
) -> None:
    """After the patience of who looks, whatever it was given before."""
    store, pid = child
    wait_for(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)
    store._yielding.close()
    looking = YieldingChildren(store.pid, patience_s=0.3)
    wait_for(lambda: os.sched_getscheduler(pid) == os.SCHED_OTHER)
    looking.close()


def test_who_may_not_give_a_share_back_gives_the_smallest() -> None:
    """A user without rights, whose own child is looked at."""
    code = (
        "import os, resource, subprocess, time\n"
        "from tollgate.server.processes.redis_server import YieldingChildren\n"
        "resource.setrlimit(resource.RLIMIT_NICE, (0, 0))\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "looking = YieldingChildren(os.getpid())\n"
        "until_s = time.monotonic() + 20\n"
        "nice = lambda: os.getpriority(os.PRIO_PROCESS, child.pid)\n"
        "while nice() != 19 and time.monotonic() < until_s: time.sleep(0.02)\n"
        "print(nice(), os.sched_getscheduler(child.pid) == os.SCHED_OTHER)\n"
        "looking.close(); child.kill()\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert said.stdout == "19 True\n"


def test_a_process_that_ended_is_looked_at_no_more(tmp_path: Path) -> None:
    """The thread ends, and closing it twice is no error."""
    with EmbeddedRedis(tmp_path) as store:
        looking = YieldingChildren(store.pid)
    wait_for(lambda: not looking._worker.running)
    looking.close()
    looking.close()
