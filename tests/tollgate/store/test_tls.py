"""A Redis that speaks TLS only and asks for our certificate."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.store.certificates import make_authority, make_certificate
from tests.support.store.redis_processes import free_ports, running, system_redis
from tollgate.audit.worker.chunk_source import ChunkSource, StreamEntry
from tollgate.errors import StoreError, StoreTimeout
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.stream_entries import End, decode_end
from tollgate.schema import Degraded
from tollgate.server.serving.embedded import serve
from tollgate.store.list_editing import ListStore
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.cluster_store import open_store as open_any_store
from tollgate.store.redis.pipelined_connection import open_pipeline
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.redis.store_address import open_client
from tollgate.store.store_events import Purchases
from tollgate.stream.redis_streams import RedisFeed, RedisSource
from tollgate_client import Client

pytestmark = pytest.mark.system("redis-server")

CHECKOUT = Path(__file__).parents[3]
NOW_US = 1_600_000_000_000_000
UrlOf = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates: of the store, of ours, of strangers."""
    path = tmp_path_factory.mktemp("tls")
    ca = make_authority(path, "ca")
    make_certificate(ca, "store", of="DNS:localhost")
    make_certificate(ca, "ours", of="DNS:tollgate-step")
    stranger = make_authority(path, "stranger")
    make_certificate(stranger, "theirs", of="DNS:tollgate-step")
    return path


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """The store's port; there is no port in the clear."""
    binary = system_redis()
    (number,) = free_ports(1)
    options = {
        "port": "0",
        "tls-port": str(number),
        "tls-cert-file": str(folder / "store.pem"),
        "tls-key-file": str(folder / "store.key"),
        "tls-ca-cert-file": str(folder / "ca.pem"),
        "tls-auth-clients": "yes",
    }
    with running(binary, folder / "redis", port=number, options=options):
        yield number


@pytest.fixture
def url_of(folder: Path, port: int) -> UrlOf:
    """Address the store, empty, with the names of files to use."""

    def url(
        *, ca: str = "ca", ours: str = "ours", host: str = "localhost", more: str = ""
    ) -> str:
        made = f"rediss://{host}:{port}?ssl_ca_certs={folder / ca}.pem"
        if ours:
            made += f"&ssl_certfile={folder / ours}.pem&ssl_keyfile={folder / ours}.key"
        return made + more

    client = open_client(url(), timeout_s=5.0)
    client.flushall()
    client.close()
    return url


def purchases(rows: int, *, first: int = 0) -> Purchases:
    """Purchases of a few customers at a few terminals."""
    number = np.arange(first, first + rows)
    return Purchases(
        transaction_id=[b"t%d" % one for one in number],
        entity_id=[
            [b"c%d" % (one % 5) for one in number],
            [b"m%d" % (one % 3) for one in number],
        ],
        event_time_us=NOW_US + number * 1_000_000,
        cents=number * 37 % 5_000,
    )


def test_features_over_tls_are_those_without(
    url_of: UrlOf,
    store_url: str,
    spec: FeatureSpec,
    open_store: Callable[..., RedisStore],
) -> None:
    """Bit for bit, and all calls go over one connection."""
    secure = OnlineFeatures(spec, open_store(url_of()))
    plain = OnlineFeatures(spec, open_store(store_url))
    for first in range(0, 96, 32):
        (one,) = secure.score([purchases(32, first=first)], write=[True])
        (other,) = plain.score([purchases(32, first=first)], write=[True])
        assert one.features.tobytes() == other.features.tobytes()
    watcher = open_client(url_of(), timeout_s=5.0)
    assert watcher.info()["total_connections_received"] >= 2
    before = watcher.info()["total_connections_received"]
    secure.score([purchases(32)], write=[True])
    assert watcher.info()["total_connections_received"] == before
    watcher.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ours": ""}, ""),
        ({"ours": "theirs"}, ""),
        ({"ca": "stranger"}, "certificate verify failed"),
        ({"host": "127.0.0.1"}, "not valid for '127.0.0.1'"),
    ],
    ids=["no certificate", "a stranger's", "another authority", "another host"],
)
def test_who_cannot_prove_who_they_are_are_refused(
    url_of: UrlOf,
    spec: FeatureSpec,
    open_store: Callable[..., RedisStore],
    wrong: dict[str, str],
    words: str,
) -> None:
    """Either side: no call is answered, no probe; nothing is applied."""
    store = open_store(url_of(**wrong))
    with pytest.raises(StoreError) as caught:
        OnlineFeatures(spec, store).load(purchases(1))
    assert words in str(caught.value)
    assert not store.probe()
    right = open_client(url_of(), timeout_s=5.0)
    assert right.dbsize() == 0
    right.close()


def test_host_name_is_checked_unless_the_address_says_no(
    url_of: UrlOf, open_store: Callable[..., RedisStore]
) -> None:
    """A certificate for `localhost` does for 127.0.0.1 only then."""
    assert not open_store(url_of(host="127.0.0.1")).probe()
    lenient = url_of(host="127.0.0.1", more="&ssl_check_hostname=false")
    assert open_store(lenient).probe()


def test_no_one_gets_in_without_tls(
    url_of: UrlOf, port: int, spec: FeatureSpec, open_store: Callable[..., RedisStore]
) -> None:
    """A plain address to the same port is a StoreError."""
    assert url_of()
    store = open_store(f"redis://localhost:{port}")
    with pytest.raises(StoreError):
        OnlineFeatures(spec, store).load(purchases(1))


def test_connection_closed_while_idle_costs_no_call_over_tls(
    url_of: UrlOf, spec: FeatureSpec, open_store: Callable[..., RedisStore]
) -> None:
    """The store hangs up; the next call finds out before it sends."""
    online = OnlineFeatures(spec, open_store(url_of()))
    watcher = open_client(url_of(), timeout_s=5.0)
    for first in range(3):
        assert len(online.load(purchases(1, first=first))) == 1
        assert watcher.client_kill_filter(_type="normal", skipme=True) == 1
    watcher.close()


def test_handshake_may_take_longer_than_a_call(
    url_of: UrlOf,
    port: int,
    spec: FeatureSpec,
    open_store: Callable[..., RedisStore],
) -> None:
    """Where the deadline is too short to connect, a probe connects, then calls go."""
    with slow_to_greet(port, delay_s=0.2) as relay:
        url = url_of().replace(f":{port}", f":{relay}")
        store = open_store(url, deadline_s=0.15)
        online = OnlineFeatures(spec, store)
        with pytest.raises(StoreTimeout):
            online.load(purchases(1))
        assert store.probe()
        assert len(online.load(purchases(1))) == 1
        store.close()


@contextlib.contextmanager
def slow_to_greet(port: int, *, delay_s: float) -> Iterator[int]:
    """Listen before a port; hold the first answer of each connection back."""
    listener = socket.create_server(("127.0.0.1", 0))
    peers = [listener]

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                peers.extend((client, server))
                for one, other, wait_s in (
                    (client, server, 0.0),
                    (server, client, delay_s),
                ):
                    threading.Thread(
                        target=hand_on, args=(one, other, wait_s), daemon=True
                    ).start()

    def hand_on(source: socket.socket, sink: socket.socket, wait_s: float) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                time.sleep(wait_s)
                wait_s = 0.0
                sink.sendall(content)

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    for one in peers:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def test_renewed_certificate_is_read_by_the_next_probe(
    url_of: UrlOf,
    folder: Path,
    spec: FeatureSpec,
    open_store: Callable[..., RedisStore],
) -> None:
    """A stranger's certificate is replaced by ours, under the same name."""
    for end in (".pem", ".key"):
        shutil.copy(folder / f"theirs{end}", folder / f"renewed{end}")
    store = open_store(url_of(ours="renewed"))
    assert not store.probe()
    for end in (".pem", ".key"):
        shutil.copy(folder / f"ours{end}", folder / f"renewed{end}")
    assert store.probe()
    assert len(OnlineFeatures(spec, store).load(purchases(1))) == 1


def test_plain_client_keeps_its_connection(url_of: UrlOf) -> None:
    """What TLS itself sends after the handshake is no reason to drop it."""
    for _ in range(20):
        client = open_client(url_of(), timeout_s=5.0)
        assert client.ping()
        time.sleep(0.005)
        received = client.info()["total_connections_received"]
        assert client.info()["total_connections_received"] == received
        client.close()


def test_feed_and_source_speak_tls(url_of: UrlOf) -> None:
    """What is sent over TLS is read over TLS."""
    feed = RedisFeed(url_of(), feed="events")
    feed.send([b"c"], [b"{}"])
    feed.close()
    source = RedisSource(url_of(), feed="events", group="g")
    assert [one.value for one in source.poll(most=10, wait_s=5.0)] == [b"{}"]
    source.close()


def test_lists_speak_tls(url_of: UrlOf) -> None:
    """What is listed over TLS is found over TLS."""
    lists = ListStore(url_of(), timeout_s=5.0)
    assert lists.add(b"list", [b"c1", b"c2"]) == 2
    assert lists.holds(b"list", [b"c2", b"c3"]) == [True, False]
    assert lists.remove(b"list", [b"c1", b"c2"]) == 2
    lists.close()


def through(url: str) -> End:
    """Send chunks of a journal, more than one read takes, and take them as sealed."""
    chunks = [b"%03d" % number + b"x" * 5_000 for number in range(64)]
    stream = JournalStream("fraud", open_pipeline(url, deadline_s=5.0))
    for chunk in chunks:
        while not stream.room([chunk]):
            assert stream.collect(5.0).error is None
        stream.send([chunk])
    while stream.awaiting:
        assert stream.collect(5.0).error is None
    assert stream.end(End("00" * 8, 64, killed=False))
    stream.close()
    source = ChunkSource(url, product="fraud")
    taken: list[StreamEntry] = []
    while len(taken) < len(chunks) + 1:
        taken += source.poll(most=100, wait_s=5.0)
    source.acknowledge([one.id for one in taken])
    source.close()
    assert [one.chunk for one in taken[:-1]] == chunks
    return decode_end(taken[-1].end)


def test_the_journal_speaks_tls(url_of: UrlOf) -> None:
    """Chunks that nobody waits for, and who reads them."""
    assert through(url_of()) == End("00" * 8, 64, killed=False)


def test_cluster_speaks_tls(
    folder: Path,
    spec: FeatureSpec,
    store_url: str,
    open_store: Callable[..., RedisStore],
) -> None:
    """A cluster of one node that reports its name: one certificate for all."""
    (number,) = free_ports(1)
    make_certificate(folder / "ca.pem", "node", of="IP:127.0.0.1")
    options = {
        "port": "0",
        "tls-port": str(number),
        "tls-cluster": "yes",
        "tls-cert-file": str(folder / "node.pem"),
        "tls-key-file": str(folder / "node.key"),
        "tls-ca-cert-file": str(folder / "ca.pem"),
        "cluster-enabled": "yes",
    }
    address = f"127.0.0.1:{number}?ssl_ca_certs={folder / 'ca.pem'}"
    address += f"&ssl_certfile={folder / 'ours.pem'}&ssl_keyfile={folder / 'ours.key'}"
    with running(system_redis(), folder / "one", port=number, options=options):
        client = open_client(f"rediss://{address}", timeout_s=5.0)
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until = time.monotonic() + 600
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            assert time.monotonic() < until
            time.sleep(0.02)
        client.close()
        store = open_any_store(f"rediss+cluster://{address}", deadline_s=5.0)
        assert store.probe()
        (one,) = OnlineFeatures(spec, store).score([purchases(32)], write=[True])
        store.close()
        lists = ListStore(f"rediss+cluster://{address}", timeout_s=5.0)
        assert (lists.add(b"list", [b"c1"]), lists.size(b"list")) == (1, 1)
        lists.close()
        assert through(f"rediss+cluster://{address}").sequence == 64
    plain = OnlineFeatures(spec, open_store(store_url))
    (other,) = plain.score([purchases(32)], write=[True])
    assert one.features.tobytes() == other.features.tobytes()


@pytest.mark.slow
def test_served_steps_speak_tls(url_of: UrlOf, tmp_path: Path) -> None:
    """The step in a real tritonserver reads the same address; nothing is degraded."""
    with serve(
        CHECKOUT / "model_repository", state=tmp_path, store_url=url_of()
    ) as server:
        now_us = time.time_ns() // 1000
        rows = {
            "transaction_id": ["a", "b"],
            "customer_id": ["c", "c"],
            "terminal_id": ["m", "m"],
            "amount": [1.0, 2.0],
            "event_time": [now_us, now_us + 1],
        }
        # A busy machine may miss the 5 ms of a payment: ask as one who can wait.
        with Client(server.grpc_url, store_deadline_ms=30_000) as client:
            answer = client.decide(rows, deadline_s=60.0)
    cold = int(Degraded.COLD_START)
    assert [int(bits) & ~cold for bits in answer.degraded] == [0, 0]
