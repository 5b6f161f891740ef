"""Fixtures that many tests share: the product's spec, a real Redis, histories."""

from __future__ import annotations

import os

# Set before a library reads it. With two threads, training in scikit-learn spins while
# it waits, which takes up to six times the processor time on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import redis

from tollgate import compiled
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.simulate import simulate
from tollgate.store.redis.redis_store import RedisStore

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED = CHECKOUT.parent / "shared"

# Programs that pip does not bring, and the packages of Debian and Ubuntu that do.
PACKAGES = {
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "curl": "curl",
    "envsubst": "gettext-base",
    "h2load": "nghttp2-client",
    "nghttp": "nghttp2-client",
    "mosquitto": "mosquitto",
    "nginx": "nginx",
    "openssl": "openssl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "valkey-server": "valkey-server",
}
# The gateway's nginx loads it; a test that needs nginx needs it too.
NJS_MODULE = Path("/usr/lib/nginx/modules/ngx_http_js_module.so")
NJS_PACKAGE = "libnginx-mod-http-js"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """
    Look for what `@pytest.mark.system("nginx", "promtool")` says that a test needs.

    An absent program skips the test by name here, and fails it in CI.
    """
    marks = list(item.iter_markers("system"))
    wanted = {name for mark in marks for name in mark.args}
    if marks and not (wanted and wanted <= PACKAGES.keys()):
        pytest.fail(f"system(…) names one or more of {sorted(PACKAGES)}", pytrace=False)
    # pip has brought some beside Python; Debian keeps nginx where only root looks.
    places = os.environ.get("PATH", os.defpath).split(":")
    own = str(Path(sys.executable).parent)
    path = ":".join([*(place for place in places if place != own), "/usr/sbin"])
    absent = [name for name in sorted(wanted) if shutil.which(name, path=path) is None]
    text = ""
    if absent:
        packages = " ".join(sorted({PACKAGES[name] for name in absent}))
        text = f"no {', '.join(absent)} on PATH: apt-get install {packages}"
    elif "nginx" in wanted and not NJS_MODULE.exists():
        text = f"no {NJS_MODULE}: apt-get install {NJS_PACKAGE}"
    if text:
        if os.environ.get("CI") == "true":
            pytest.fail(text, pytrace=False)
        pytest.skip(text)


@pytest.fixture
def parsed_configs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often this process parses each text of a configuration, from here on."""
    from google.protobuf import text_format

    counts: Counter[str] = Counter()
    parse = text_format.Parse

    def counted(text: str, message: Any) -> Any:
        counts[text] += 1
        return parse(text, message)

    monkeypatch.setattr(text_format, "Parse", counted)
    return counts


@pytest.fixture(scope="session")
def spec_path() -> Path:
    """The features.yaml of the fraud product."""
    return CHECKOUT / "model_repository" / "fraud_features" / "1" / "features.yaml"


@pytest.fixture(scope="session")
def spec(spec_path: Path) -> FeatureSpec:
    """The features of the fraud product."""
    return load_spec(spec_path)


HOOKED = """\
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id}
fields:
  - {name: lat, type: number, decimals: 4, range: [-90, 90]}
  - {name: lon, type: number, decimals: 4, range: [-180, 180]}
  - {name: channel, type: category, vocabulary: [web, app]}
hook: hook.py
features:
  - {name: amount, field: amount}
  - {name: n_1d, entity: terminal, aggregate: count, window: 1d}
  - {name: lat_was, entity: customer, aggregate: last, of: lat, window: 9d, default: 5}
  - {name: lon_was, entity: customer, aggregate: last, of: lon, window: 9d, default: 6}
  - {name: km, hook: km, default: -1}
  - {name: risk, hook: risk, range: [0, 0.8], default: 0.5}
  - {name: per_km, ratio: [amount, km], default: -2}
"""
HOOK = """\
\"\"\"How far away the last purchase was, and how risky the channel is.\"\"\"

import numpy as np

KM = 6371.0
RISK = np.array([0.25, 0.9, np.nan, 0.75])  # web, app; unseen is -2, missing is -1


def haversine(lat, lon, lat_was, lon_was):
    across = np.sin((lon - lon_was) / 2) ** 2 * np.cos(lat) * np.cos(lat_was)
    part = np.sin((lat - lat_was) / 2) ** 2 + across
    return 2 * KM * np.arcsin(np.sqrt(np.minimum(part, 1.0)))


def hook(request, features):
    km = haversine(
        np.radians(request["lat"]),
        np.radians(request["lon"]),
        np.radians(features["lat_was"]),
        np.radians(features["lon_was"]),
    )
    return {"km": km, "risk": RISK[request["channel"]]}
"""


@pytest.fixture
def hooked(tmp_path: Path) -> Callable[..., Path]:
    """Write a features.yaml with a hook; texts are replaced in the hook, or in it."""

    def write(*changes: tuple[str, str], spec: tuple[str, str] = ("", "")) -> Path:
        text = HOOK
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        assert spec[0] in HOOKED
        folder = tmp_path / "shop_features" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hook.py").write_text(text)
        path = folder / "features.yaml"
        path.write_text(HOOKED.replace(*spec, 1))
        return path

    return write


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """One real Redis for all tests, on a unix socket."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_client(redis_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """A plain client of that Redis, which is empty when the test begins."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    client.script_flush()
    yield client
    client.close()


@pytest.fixture
def store_url(redis_server: EmbeddedRedis, redis_client: redis.Redis) -> str:
    """The address of that Redis, which is empty when the test begins."""
    assert redis_client.dbsize() == 0
    return redis_server.url


@pytest.fixture(params=["compiled", "numpy"])
def both_readers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read windows in the compiled loop, if it was built, and then with NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "windows", None)


@pytest.fixture(params=["compiled", "numpy"])
def both_packers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check and pack rows in the compiled loop, if it was built, and then in NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "events", None)


@pytest.fixture(params=["compiled", "numpy"])
def both_deciders(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decide and journal in the compiled loop, if it was built, and then with NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "decisions", None)


@pytest.fixture
def open_store() -> Iterator[Callable[..., RedisStore]]:
    """Open stores by address (and deadline); they are closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_(url: str, *, deadline_s: float = 10.0) -> RedisStore:
            store = RedisStore(url, deadline_s=deadline_s)
            opened.callback(store.close)
            return store

        yield open_


@pytest.fixture(scope="session")
def simulated() -> pl.DataFrame:
    """A small simulated history: 30 customers, 24 terminals, 60 days, with frauds."""
    return simulate(customers=30, terminals=24, days=60, radius=30.0, seed=3)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """
    The folder of data made by others, beside the checkout.

    A clone without it skips; where its parent is, a missing file is a failure.
    """
    if not SHARED.exists():
        pytest.skip("no ../shared beside this checkout: data made by others is absent")
    return SHARED / "data"


class ObjectStore:
    """S3 as a process of its own, which can go away and come back."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Begin to answer, with nothing in it."""
        code = "import sys; from moto.server import main; main(sys.argv[1:])"
        place = ["-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *place],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert self._process.poll() is None
            time.sleep(0.1)

    def stop(self) -> None:
        """Be gone, with all that is in it."""
        self._process.kill()
        self._process.wait()

    def files(self) -> Any:
        """Open it, as somebody who knows nothing of us."""
        import s3fs

        return s3fs.S3FileSystem(
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            key="test",
            secret="test",
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def fill(self, bucket: str, folder: Path) -> str:
        """Make a bucket with the files of a folder; the address of it."""
        files = self.files()
        files.mkdir(bucket)
        files.put(f"{folder}/", f"{bucket}/models/", recursive=True)
        return f"s3://{bucket}/models"


@pytest.fixture
def passing_store() -> Iterator[ObjectStore]:
    """An S3 of one test, which may stop it."""
    store = ObjectStore()
    store.start()
    yield store
    store.stop()


@pytest.fixture(scope="module")
def object_store() -> Iterator[ObjectStore]:
    """An S3 that is empty, for the tests of a module; the environment names it."""
    store = ObjectStore()
    store.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store
    store.stop()
