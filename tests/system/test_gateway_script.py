"""90-watch.sh, which nginx's image runs: bounds follow the servers that are ready."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gateway.gateways import Place, live, running
from tollgate.gateway.template import TEMPLATE, Gateway
from tollgate.testing import TestServer

pytestmark = pytest.mark.system("nginx", "openssl", "envsubst")

SCRIPT = Path(__file__).parents[2] / "helm/tollgate/files/gateway/90-watch.sh"
GETENT = '#!/bin/sh\nwhile read -r one; do echo "$one STREAM"; done <"$ADDRESSES"\n'
# Each look takes a character off; with the last one a second server is there.
COMES = """
looks=$(cat "${ADDRESSES%/*}/looks")
[ -n "$looks" ] || exit 0
printf %s "${looks#?}" >"${ADDRESSES%/*}/looks"
[ "$looks" != . ] || echo 10.0.0.2 >>"$ADDRESSES"
"""


@pytest.fixture
def names(tmp_path: Path) -> Callable[[int], None]:
    """Make a name mean so many addresses; each is told for three kinds of sockets."""
    program = tmp_path / "bin" / "getent"
    program.parent.mkdir()
    program.write_text(GETENT)
    program.chmod(0o755)

    def mean(count: int) -> None:
        lines = [f"10.0.0.{number}\n" * 3 for number in range(1, count + 1)]
        (tmp_path / "addresses.new").write_text("".join(lines))
        (tmp_path / "addresses.new").rename(tmp_path / "addresses")

    return mean


@contextlib.contextmanager
def watching(
    told: Gateway, folder: Path, **variables: str
) -> Iterator[Callable[[str], str]]:
    """Run the script beside nginx; call with words to read on to a line with them."""
    environment = told.values() | {
        "GATEWAY_CONFIGURATION": str(told.state / "nginx.conf"),
        "GATEWAY_TEMPLATE": str(TEMPLATE),
        "GATEWAY_WATCH_S": "0.1",
        "ADDRESSES": str(folder / "addresses"),
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin:/usr/sbin",
    }
    script = SCRIPT.read_text().replace("watch &", "watch")
    process = subprocess.Popen(
        ["/bin/sh", "-c", script],
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    told_lines = process.stdout

    def until(words: str) -> str:
        said = ""
        for line in told_lines:
            said += line
            if words in line:
                return said
        raise AssertionError(f"ended without {words!r}: {said}")

    try:
        yield until
    finally:
        process.kill()
        process.communicate()


def bounds(told: Gateway) -> list[int]:
    """Read the bounds that nginx was told: all, one caller's, bulk."""
    text = (told.state / "nginx.conf").read_text()
    assert not re.search(r"\$\{GATEWAY_\w", text)
    return [int(one) for one in re.findall(r"limit_conn under_\w+ (\d+);", text)]


def test_bounds_are_a_gateways_part_of_all_servers(
    place: Place, upstream: TestServer, tmp_path: Path, names: Callable[[int], None]
) -> None:
    """40, 28 and 1 for each server, shared by two gateways; none goes below one."""
    told = place.gateway(upstream.url)
    told_to = {"GATEWAY_PODS": "2", "GATEWAY_BOUNDS": str(tmp_path / "bounds")}
    names(3)
    with running(told), watching(told, tmp_path, **told_to) as until:
        until("looking at")
        assert bounds(told) == [60, 42, 1]
        names(5)
        until("read anew")
        assert bounds(told) == [100, 70, 2]
        assert (tmp_path / "bounds").read_text() == "100 70 2\n"
        names(1)
        until("read anew")
        assert bounds(told) == [20, 14, 1]
        names(0)  # nobody is ready: the bounds stay until somebody is
        until("read anew")
        assert bounds(told) == [20, 14, 1]
        with place.channel(told.listen) as opened:
            assert live(opened, key=place.shop) == "OK"


def test_bounds_by_hand_stay(
    place: Place, upstream: TestServer, tmp_path: Path, names: Callable[[int], None]
) -> None:
    """As on a laptop; and servers that are named are not counted."""
    told = place.gateway(upstream.url, in_flight=33)
    names(3)
    with running(told):
        with watching(told, tmp_path) as until:
            until("looking at")
            assert bounds(told) == [33, 28, 1]
        with watching(told, tmp_path, GATEWAY_PODS="2", GATEWAY_SERVERS="6") as until:
            until("looking at")
            assert bounds(told) == [99, 84, 3]


def test_nginx_waits_for_a_server(
    place: Place, upstream: TestServer, tmp_path: Path, names: Callable[[int], None]
) -> None:
    """It would end at once where the name of the servers means nothing yet."""
    told = place.gateway(upstream.url)
    names(0)
    with running(told), watching(told, tmp_path, GATEWAY_PODS="1") as until:
        assert "looking at" not in until("waiting for a server")
        names(2)
        until("looking at")
        assert bounds(told) == [80, 56, 2]


def test_a_server_that_comes_while_the_script_begins_is_counted(
    place: Place, upstream: TestServer, tmp_path: Path, names: Callable[[int], None]
) -> None:
    """Between its first looks; after them it would be told no more."""
    program = tmp_path / "bin" / "getent"
    program.write_text(program.read_text() + COMES)
    for look in (1, 2):
        told = place.gateway(upstream.url)
        names(1)
        (tmp_path / "looks").write_text("." * look)
        with running(told), watching(told, tmp_path, GATEWAY_PODS="1") as until:
            assert "servers: 2" in until("looking at")
            assert bounds(told) == [80, 56, 2]


def test_without_room_for_bounds_keys_are_read_anew_all_the_same(
    place: Place, upstream: TestServer, tmp_path: Path, names: Callable[[int], None]
) -> None:
    """A key that was taken away ends; the bounds follow when there is room."""
    keys = Path(shutil.copy(place.keys, tmp_path))
    told = place.gateway(upstream.url, keys=keys)
    names(2)
    with running(told), watching(told, tmp_path, GATEWAY_PODS="1") as until:
        until("looking at")
        room = told.state / "nginx.conf.new"
        room.mkdir()
        names(3)
        until("bounds cannot be written")
        until("read anew")
        assert bounds(told) == [80, 56, 2]
        keys.write_text("")
        until("read anew")
        room.rmdir()
        until("servers: 3")
        until("read anew")
        assert bounds(told) == [120, 84, 3]
