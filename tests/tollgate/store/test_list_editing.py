"""Allow and deny lists are sets in the store: filled, read, found again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.store.redis_processes import free_ports, running
from tollgate.errors import InputError, StoreError
from tollgate.server.processes.environment import find_redis_server
from tollgate.store.id_lists import LookupList, list_key, lists_text, read_lists
from tollgate.store.list_editing import ListStore
from tollgate.store.redis.cluster_nodes import SLOTS

KEY = list_key("fraud", "stolen_cards")


def reported(client: redis.Redis) -> str:
    """Ask a node of a cluster how it is; redis-py may make a dict of it."""
    found = client.execute_command("CLUSTER", "INFO")
    if isinstance(found, dict):
        return "\n".join(f"{name}:{value}" for name, value in found.items())
    return str(found.decode())


@pytest.fixture
def cluster_url(tmp_path: Path) -> Iterator[str]:
    """A Redis Cluster of one node, which has all slots."""
    (port,) = free_ports(1)
    options = {"port": str(port), "cluster-enabled": "yes"}
    with running(find_redis_server(), tmp_path, port=port, options=options):
        client = redis.Redis(port=port)
        client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        while "cluster_state:ok" not in reported(client):
            time.sleep(0.02)
        client.close()
        yield f"redis+cluster://127.0.0.1:{port}"


@pytest.fixture(params=["store_url", "cluster_url"])
def lists(
    request: pytest.FixtureRequest, redis_client: redis.Redis
) -> Iterator[ListStore]:
    """The lists of one Redis, and of a cluster."""
    store = ListStore(request.getfixturevalue(request.param), timeout_s=5.0)
    yield store
    store.close()


def test_what_was_added_is_there_until_it_is_removed(lists: ListStore) -> None:
    """Ids count once, and each call returns how many changed."""
    assert lists.add(KEY, [b"c1", b"c2", b"c1"]) == 2
    assert lists.add(KEY, [b"c2", b"c3"]) == 1
    assert lists.size(KEY) == 3
    assert lists.holds(KEY, [b"c1", b"c9"]) == [True, False]
    assert lists.remove(KEY, [b"c1", b"c9"]) == 1
    assert sorted(lists.members(KEY)) == [b"c2", b"c3"]
    assert lists.size(list_key("fraud", "other")) == 0


def test_a_list_of_many_is_added_and_read_whole(lists: ListStore) -> None:
    """More than one command's worth of ids, each once."""
    many = [b"customer-%05d" % at for at in range(2_500)]
    assert lists.add(KEY, many) == 2_500
    assert sorted(lists.members(KEY)) == many


@pytest.mark.parametrize("wrong", [b"", b"x" * 129])
def test_an_id_that_no_request_can_have_is_refused(
    lists: ListStore, wrong: bytes
) -> None:
    """Nothing is added, not even those before it."""
    with pytest.raises(InputError, match="is not of 1 to 128 bytes"):
        lists.add(KEY, [b"fine", wrong])
    assert lists.size(KEY) == 0


def test_what_is_no_list_is_an_error_of_the_store(
    lists: ListStore,
) -> None:
    """A key of another kind is refused by the store, and said so."""
    lists._execute((b"SET", KEY, b"text"))
    with pytest.raises(StoreError):
        lists.size(KEY)


def test_a_store_that_is_away_is_an_error() -> None:
    """One line, not an exception of the library."""
    (port,) = free_ports(1)
    for scheme in ("redis", "redis+cluster"):
        store = ListStore(f"{scheme}://127.0.0.1:{port}", timeout_s=0.5)
        with pytest.raises(StoreError):
            store.size(KEY)
        store.close()


def test_parameter_of_lists_is_read_as_it_was_written() -> None:
    """Names, inputs and keys, in order; anything else is refused."""
    lists = (
        LookupList("stolen_cards", "customer_id", KEY),
        LookupList("trusted", "terminal_id", list_key("fraud", "trusted")),
    )
    text = lists_text(lists)
    assert text.startswith("stolen_cards:customer_id=tollgate:fraud:list:stolen_cards,")
    assert read_lists(text) == lists
    assert read_lists("") == ()
    for wrong in ("a", "a=b", "a:b", ":b=c"):
        with pytest.raises(InputError, match="is not NAME:INPUT=KEY"):
            read_lists(wrong)
