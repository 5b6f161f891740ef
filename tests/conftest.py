"""Fixtures that many tests share: the product's spec, a real Redis, histories."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import redis

from tollgate.features.spec import FeatureSpec, load_spec
from tollgate.server.redis import EmbeddedRedis
from tollgate.simulate import simulate
from tollgate.store.redis import RedisStore

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED = CHECKOUT.parent / "shared"


@pytest.fixture(scope="session")
def spec_path() -> Path:
    """The features.yaml of the fraud product."""
    return CHECKOUT / "model_repository" / "fraud_features" / "1" / "features.yaml"


@pytest.fixture(scope="session")
def spec(spec_path: Path) -> FeatureSpec:
    """The features of the fraud product."""
    return load_spec(spec_path)


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
