"""The compiled loops pack batches to the bytes of the NumPy code, for any batch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis
import numpy as np
import pytest
import redis
from msgspec.structs import asdict

from tests.support.steps.in_process_steps import NOW_US, Pipeline, use
from tests.support.steps.triton_classes import Request, Tensor
from tollgate import compiled
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.schema import CONTEXT
from tollgate.store.redis.redis_store import Command, Connection
from tollgate.store.store_events import Packer, Purchases, purchase_entries
from tollgate.validation import check_rows

if compiled.events is None:
    pytest.skip("no compiled events", allow_module_level=True)

REPOSITORY = Path(__file__).parents[3] / "model_repository"
SIZES = (1, 2, 3, 8, 31, 32, 33, 64, 257, 1024)
WIDE = """\
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id, hop: 1h}
fields: [{name: items, type: number}]
features:
  - {name: items_1d, entity: customer, aggregate: sum, of: items, window: 1d}
  - {name: shops_1d, entity: customer, aggregate: distinct, of: terminal_id, window: 1d}
  - {name: n_1d, entity: terminal, aggregate: count, window: 1d}
"""
NARROW = """\
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id}
features:
  - {name: c_1d, entity: customer, aggregate: count, window: 1d}
  - {name: t_1d, entity: terminal, aggregate: count, window: 1d}
"""


def in_both_ways(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> list[Any]:
    """Return the results of the compiled loops and of NumPy, or their errors."""
    results = []
    for loops in (compiled.events, None):
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "events", loops)
            try:
                results.append(work())
            except Exception as error:  # noqa: BLE001 - the same error either way
                results.append((type(error), str(error)))
    return results


def text(draw: random.Random, *, odd: float = 0.0) -> bytes:
    """Draw an id; `odd` is the share of ids that are invalid or unusual."""
    if draw.random() < odd:
        return draw.choice(
            (b"", b"\xff\xfe", b"x" * 129, b"y" * 300, b"\xed\xa0\x80", b"n\0ul\0")
        )
    length = draw.choice((1, 5, 14, 15, 16, 17, 128))
    return draw.choice((b"%d" % draw.randrange(40), "ü€😀".encode(), b"i" * length))


def ids(draw: random.Random, rows: int, *, odd: float = 0.0) -> list[bytes]:
    """Draw ids, in some batches all different."""
    if draw.random() < 0.3:
        return [b"%d" % (row + 10**6) for row in range(rows)]
    return [text(draw, odd=odd) for _ in range(rows)]


def plain(value: Any) -> Any:
    """Turn a result into values that compare bit for bit."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "__struct_fields__"):
        return {name: plain(one) for name, one in asdict(value).items()}
    return value


AMOUNTS = (
    *(0.0, -0.0, 0.01, 0.29, 1.005, 12.34, 10_000_000.0, 10_000_000.01, 9_999_999.99),
    *(-0.01, -1e-9, math.nan, math.inf, -math.inf, 1e300, 5e-324, 0.1 + 0.2, 1e-8),
    *(1234.560000001, 1234.56000001, 0.00999999, 0.005, 0.015),
)
TIMES_US = (946_684_800_000_000, 946_684_799_999_999, 0, -(2**63), 2**63 - 1)


@pytest.mark.parametrize("rows", SIZES)
def test_rows_are_checked_alike(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amounts, errors and bad rows, for good and bad values in every combination."""
    draw = random.Random(rows)
    for turn in range(60):
        odd = (0.0, 0.5 / rows, 0.3)[turn % 3]
        amount = np.array(
            [
                draw.choice(AMOUNTS)
                if draw.random() < odd
                else draw.randrange(10**9) / 100
                for _ in range(rows)
            ]
        )
        time_us = np.array(
            [
                draw.choice((*TIMES_US, NOW_US + 86_400_000_000 + draw.randrange(2)))
                if draw.random() < odd
                else NOW_US - draw.randrange(10**15)
                for _ in range(rows)
            ],
            np.int64,
        )
        columns = {name: ids(draw, rows, odd=odd) for name in ("a_id", "b_id", "c_id")}
        amounts = (amount, None, np.stack([amount, amount], axis=1)[:, 1])[turn % 4 % 3]
        given, wanted = in_both_ways(
            monkeypatch,
            lambda c=columns, a=amounts, t=time_us: plain(
                check_rows(c, amount=a, time_us=t, now_us=NOW_US)
            ),
        )
        assert given == wanted


def spec_at(folder: Path, document: str) -> FeatureSpec:
    """Load a spec of a text."""
    path = folder / "features.yaml"
    path.write_text(document)
    return load_spec(path)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("document", [WIDE, NARROW], ids=["columns", "no columns"])
def test_batches_are_packed_alike(
    rows: int, document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries, keys, groups, arguments and the bytes of the whole command."""
    spec = spec_at(tmp_path, document)
    packer = Packer(spec)
    draw = random.Random(rows)
    for turn in range(30):
        purchases = Purchases(
            transaction_id=ids(draw, rows, odd=0.1 * (turn % 2)),
            entity_id=[ids(draw, rows), ids(draw, rows, odd=0.1 * (turn % 2))],
            event_time_us=NOW_US + np.array([draw.randrange(3) for _ in range(rows)]),
            cents=np.array(
                [draw.choice((0, 1, 10**9, 2**32, -1)) for _ in range(rows)]
            ),
            fields={
                "items": np.array([draw.choice((MISSING, 7, -3)) for _ in range(rows)])
            },
        )

        def pack(purchases: Purchases = purchases) -> Any:
            entries = purchase_entries(purchases)
            assert entries.flags.writeable
            columns = packer.columns(purchases)
            call = packer.pack(entries, purchases.entity_id, columns=columns)
            return plain([entries, call])

        given, wanted = in_both_ways(monkeypatch, pack)
        assert given == wanted
        given, wanted = in_both_ways(
            monkeypatch,
            lambda p=purchases: plain(
                packer.pack(purchase_entries(p)[::-1], p.entity_id)
            ),
        )
        assert given == wanted


def test_unusual_sequences_are_packed_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuples, arrays, other types of numbers, no rows, and lengths that differ."""
    spec = spec_at(tmp_path, NARROW)
    packer = Packer(spec)
    names = [b"a", b"bb", b"a"]
    for column in (
        names,
        tuple(names),
        np.array(names),
        np.array(names, np.object_),
        list(np.array(names)),
        names[:2],
        [*names, b"c"],
        [],
    ):
        for time_us in (
            np.arange(3),
            np.arange(3.0),
            np.arange(3, dtype=">i8"),
            np.arange(6)[::2],
            np.arange(3, dtype=np.int32),
            np.arange(2),
            np.zeros(0, np.int64),
        ):
            for entity_id in ([names, column], [column, names], [names]):

                def pack(
                    column: Any = column,
                    time_us: Any = time_us,
                    owners: Any = entity_id,
                ) -> Any:
                    purchases = Purchases(column, owners, time_us, time_us)
                    entries = purchase_entries(purchases)
                    return plain([entries, packer.pack(entries, owners)])

                given, wanted = in_both_ways(monkeypatch, pack)
                assert given == wanted


def test_commands_are_packed_as_by_hiredis() -> None:
    """Bytes and whole numbers of any size; other arguments are left to hiredis."""
    draw = random.Random(4)
    numbers = [0, 1, 9, 10, 99, 100, 10**9, 10**18, 2**63 - 1]
    for _ in range(300):
        commands = [
            tuple(
                draw.choice(numbers)
                if draw.random() < 0.3
                else draw.randbytes(draw.choice((0, 1, 9, 10, 11, 99, 100, 101, 5000)))
                for _ in range(draw.choice((1, 2, 9, 10, 120)))
            )
            for _ in range(draw.choice((0, 1, 2, 5)))
        ]
        wanted = b"".join(map(hiredis.pack_command, commands))
        assert compiled.events.pack_commands(commands) == wanted
        assert compiled.events.pack_commands(tuple(commands)) == wanted
    for odd in (-1, 2**63, 10**30, "a text", 1.5, None, True, bytearray(b"b")):
        assert compiled.events.pack_commands([(b"SET", b"k", odd)]) is None
    assert compiled.events.pack_commands([[b"PING"]]) is None


def test_arrays_of_other_lengths_are_not_covered() -> None:
    """Each loop checks lengths and places before it reads or writes."""
    loops = compiled.events
    two, three = np.zeros(2, np.int64), np.zeros(3, np.int64)
    names = [b"a", b"b"]
    limits = {
        "first_us": 0,
        "last_us": 9,
        "max_id_bytes": 128,
        "max_cents": 9.0,
        "tolerance": 1e-6,
    }
    for columns, amount, time_us in (
        ([names], np.zeros(3), two),
        ([names], np.zeros(2), three),
        ([names, names[:1]], np.zeros(2), two),
        ([names, ["a", "b"]], np.zeros(2), two),
        ([names, (b"a", b"b")], np.zeros(2), two),
        ([names], np.zeros(2, np.float32), two),
        ([names], np.zeros((2, 1)), two),
    ):
        checked = loops.check_rows(
            columns, amount, time_us, cents=np.ones(2, np.int64), **limits
        )
        assert checked is None
    rows = np.zeros(2 * 64, np.uint8)
    good = {"max_id_bytes": 8, "places": (0, 8, 16, 24, 26)}
    for packed, columns, times, cents, sums, changes in (
        (rows[:-1], [names], two, two, None, {}),
        (rows, [names], two, three, None, {}),
        (rows, [names], two, two, three, {}),
        (rows, [names, names], two, two, None, {}),
        (rows, [[*names, b"c"]], two, two, None, {}),
        (rows, [names], two, two, None, {"places": (0, 8, 16, 24, 57)}),
        (rows, [names], two, two, None, {"places": (0, 8, 57, 24, 26)}),
        (rows, [names], two, two, None, {"places": (-1, 8, 16, 24, 26)}),
        (rows, [names], two, two, None, {"places": (0, 8, 16, 63, 26)}),
        (rows, [names], two, two, None, {"max_id_bytes": 39}),
        (rows, [names], two, two, None, {"max_id_bytes": -1}),
        (rows, [names], two, two, None, {"max_id_bytes": 2**17}),
    ):
        arguments = (packed, columns, times, cents, sums)
        assert loops.fill_rows(*arguments, **(good | changes)) is None
    assert not rows.any()
    assert loops.fill_rows(rows, [names], two, two, None, **good) is True
    assert loops.entries([b"x" * 256], two[:1], two[:1], flags=1) is None
    assert loops.entries([], two[:0], two[:0], flags=1) is None
    places = np.zeros((2, 1, 2), np.int64)
    for prefixes, columns, entries, settings, result in (
        ([b"p"], [names], [bytes(97)], bytes(24), places),
        ([b"p"], [names], [b""], bytes(24), places),
        ([b"p"], [names], [bytes(96)], bytes(23), places),
        ([b"p"], [names], [], bytes(24), places),
        ([b"p"], [[b"a"]], [bytes(96)], bytes(24), places),
        ([b"p"], [], [bytes(96)], bytes(24), places),
        ([b"p"] * 2, [names] * 2, [bytes(96)] * 2, bytes(48), places),
        ([b"p"], [names], [bytes(96)], bytes(24), np.zeros((1, 1, 2), np.int64)),
        ([b"p"], [names], [bytes(96)], bytes(24), places[:, :, :0].copy()),
    ):
        assert loops.group(prefixes, columns, entries, settings, result) is None


def fraud_rows(draw: random.Random, rows: int, *, odd: float) -> dict[str, Any]:
    """Draw the columns of a request for a decision about purchases."""
    return {
        "transaction_id": [text(draw, odd=odd) for _ in range(rows)],
        "customer_id": [text(draw, odd=odd) for _ in range(rows)],
        "terminal_id": [text(draw, odd=odd) for _ in range(rows)],
        "amount": [
            draw.choice(AMOUNTS) if draw.random() < odd else draw.randrange(10**6) / 100
            for _ in range(rows)
        ],
        "event_time": [
            NOW_US + draw.randrange(-2, 3) * draw.choice((0, 1, 10**9, 86_400 * 10**7))
            for _ in range(rows)
        ],
    }


def credit_rows(draw: random.Random, rows: int, *, odd: float) -> dict[str, Any]:
    """Draw the columns of an application for credit, some fields left out."""
    columns = fraud_rows(draw, rows, odd=odd)
    del columns["customer_id"], columns["terminal_id"]
    for name in ("income", "utilization", "inquiries"):
        if draw.random() < 0.8:
            columns[name] = [draw.choice((math.nan, 0.5, 3.0, 1e12))] * rows
    if draw.random() < 0.8:
        columns["purpose"] = [text(draw, odd=odd) for _ in range(rows)]
    return columns


def batch_of(draw: random.Random, make: Callable[..., dict[str, Any]]) -> list[Request]:
    """Draw the requests of a dynamic batch."""
    left = draw.choice((1, 1, 2, 8, 32, 64))
    odd = draw.choice((0.0, 0.0, 0.02, 0.3))
    requests = []
    while left > 0:
        rows = min(left, draw.choice((1, 1, 1, 4, 32)))
        left -= rows
        tensors = {}
        for name, column in make(draw, rows, odd=odd).items():
            kind = np.object_ if isinstance(column[0], bytes) else None
            tensors[name] = Tensor(name, np.array(column, kind)[:, None])
        dry = draw.random() < 0.05
        requests.append(Request(tensors, '{"dry_run": true}' if dry else "{}"))
    return requests


def answer_of(step: Any, response: Any) -> Any:
    """Return the bytes of an answer without clocks, numbers and signature."""
    if response.error is not None:
        return response.error.text
    found = {one.called: np.ascontiguousarray(one.array) for one in response.tensors}
    context = found[CONTEXT].view(step._stage.dtype)[:, 0].copy()
    for name in ("arrival_us", "features_us", "stream", "sequence", "tag", "age_ms"):
        context[name] = np.zeros((), context[name].dtype)
    del found[CONTEXT]
    return plain([*found.items(), context])


@pytest.mark.parametrize("product", ["fraud", "credit"])
def test_the_feature_step_sends_and_answers_alike(
    product: str,
    store_url: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every command, feature and context of a series of batches, bad rows included."""
    use(monkeypatch, store_url=store_url, journal_url="")
    pack = Connection._pack
    sent: list[Command] = []

    def note(self: Connection, commands: Any) -> bytes:
        packed = pack(self, commands)
        assert packed == b"".join(map(self._pack_one, commands))
        sent.extend(commands)
        return packed

    monkeypatch.setattr(Connection, "_pack", note)

    def run() -> Any:
        redis_client.flushall()
        step = Pipeline(
            REPOSITORY / f"{product}_features" / "1",
            REPOSITORY / f"{product}_decision" / "1",
            parameters={"dry_share_ms": "0"},
        )
        sent.clear()
        draw = random.Random(product)
        make = fraud_rows if product == "fraud" else credit_rows
        try:
            answers = [
                answer_of(step.features, one)
                for _ in range(80)
                for one in step.features.execute(batch_of(draw, make))
            ]
        finally:
            step.close()
        # The commands for watermarks and for the list of states depend on the clock.
        timed = (":feed:", ":written-states")
        return answers, [
            one for one in sent if not any(key in str(one[1:2]) for key in timed)
        ]

    given, wanted = in_both_ways(monkeypatch, run)
    assert given[1] == wanted[1]
    assert given[0] == wanted[0]
    assert len(given[1]) > 40
    assert any(not isinstance(one, str) for one in given[0])
