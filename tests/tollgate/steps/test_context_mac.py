"""Signatures of features and context: who may make them, and how often they count."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tollgate.schema import CONTEXT_KEY_VARIABLE, context_dtype
from tollgate.steps import context_mac
from tollgate.steps.context_mac import (
    EXPIRED,
    MAX_AGE_US,
    REPLAYED,
    UNSIGNED,
    WINDOW,
    ContextSigner,
    ContextVerifier,
    read_key,
)

KEY = bytes(range(32))
LAYOUT = context_dtype(("customer",), ("lat",))
BOUNDS = [0, 1, 4, 6]  # three requests
# Byte offsets of the first row, out of docs/contract.md, for one entity.
STREAM, SEQUENCE, TAG, FIELDS = 804, 812, 820, 836
NOW_US = 5_000_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the monotonic clock that the age of a context is measured by."""
    monkeypatch.setattr(context_mac.time, "monotonic_ns", lambda: NOW_US * 1000)


def rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Make features and contexts of six rows; unsigned."""
    raw = rng.integers(0, 256, (6, LAYOUT.itemsize), np.uint8)
    context = raw.view(LAYOUT)[:, 0].copy()
    context["arrival_us"] = NOW_US - 10_000
    for name in ("stream", "sequence", "tag"):
        context[name] = np.zeros(6, context[name].dtype)
    return rng.random((6, 3)).astype(np.float32), context


def signed(
    seed: int = 1, signer: ContextSigner | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Make six rows and sign them."""
    features, context = rows(np.random.default_rng(seed))
    (signer or ContextSigner(KEY)).sign(features, context, bounds=BOUNDS)
    return features, context


def test_the_tag_is_the_keyed_hash_of_all_bytes_but_the_tag() -> None:
    """Computed from the offsets in the contract, request by request."""
    features, context = signed()
    whole = context.tobytes()
    width = len(whole) // 6
    assert width == FIELDS + 8
    for start, stop in ((0, 1), (1, 4), (4, 6)):
        request = whole[start * width : stop * width]
        text = request[:TAG] + request[TAG + 16 :] + features[start:stop].tobytes()
        # RFC 2104, written out: the key is padded with zeros to a block.
        inner, outer = (
            bytes(one ^ pad for one in KEY.ljust(64, b"\0")) for pad in (0x36, 0x5C)
        )
        hashed = hashlib.sha256(inner + text).digest()
        wanted = hashlib.sha256(outer + hashed).digest()[:16]
        assert request[TAG : TAG + 16] == wanted
    assert context["stream"][0] == int.from_bytes(
        whole[STREAM : STREAM + 8], "little", signed=False
    )
    assert [int(context["sequence"][row]) for row in (0, 1, 4)] == [0, 1, 2]


def test_a_genuine_batch_is_accepted_once() -> None:
    """The second time each of its requests is a replay."""
    features, context = signed()
    verifier = ContextVerifier(KEY)
    assert verifier.refusals(features, context, bounds=BOUNDS) == {}
    again = verifier.refusals(features, context, bounds=BOUNDS)
    assert again == dict.fromkeys(range(3), REPLAYED)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_changed_byte_refuses_its_request_alone(place: int) -> None:
    """Every byte of every row counts, in context and features."""
    width = LAYOUT.itemsize
    rng = np.random.default_rng(place)
    verifier = ContextVerifier(KEY)
    for _ in range(200):
        features, context = signed(int(rng.integers(1 << 30)))
        row = int(rng.integers(BOUNDS[place], BOUNDS[place + 1]))
        if rng.random() < 0.2:
            raw = features.view(np.uint8)
            raw[row, rng.integers(raw.shape[1])] ^= np.uint8(1 << rng.integers(8))
        else:
            raw = context.view(np.uint8).reshape(6, width)
            raw[row, rng.integers(width)] ^= np.uint8(1 << rng.integers(8))
        found = verifier.refusals(features, context, bounds=BOUNDS)
        assert found == {place: UNSIGNED}


def test_another_key_signs_nothing() -> None:
    """What one server signed means nothing to another."""
    features, context = signed()
    found = ContextVerifier(bytes(32)).refusals(features, context, bounds=BOUNDS)
    assert found == dict.fromkeys(range(3), UNSIGNED)


def test_rows_cannot_move_between_requests() -> None:
    """A signature is of a request's rows, in their order and number."""
    features, context = signed()
    verifier = ContextVerifier(KEY)
    assert verifier.refusals(features[1:3], context[1:3], bounds=[0, 2]) == {
        0: UNSIGNED
    }
    swapped = [0, 1, 3, 2, 4, 5]
    found = verifier.refusals(features[swapped], context[swapped], bounds=BOUNDS)
    assert found == {1: UNSIGNED}


def test_an_old_context_is_refused() -> None:
    """Sixty seconds after the feature step took it, or before it did."""
    verifier = ContextVerifier(KEY)
    for age_us, wanted in (
        (0, {}),
        (MAX_AGE_US, {}),
        (MAX_AGE_US + 1, {0: EXPIRED}),
        (-1, {0: EXPIRED}),
    ):
        features, context = rows(np.random.default_rng(7))
        context["arrival_us"] = NOW_US - age_us
        ContextSigner(KEY).sign(features, context, bounds=[0, 6])
        assert verifier.refusals(features, context, bounds=[0, 6]) == wanted


def test_requests_may_overtake_one_another_but_come_once() -> None:
    """Any order within the window, against a plain set of what was seen."""
    signer, rng = ContextSigner(KEY), np.random.default_rng(3)
    sent = []
    for _ in range(300):
        features, context = rows(rng)
        signer.sign(features[:1], context[:1], bounds=[0, 1])
        sent.append((features[:1], context[:1].copy()))
    verifier, seen = ContextVerifier(KEY), set()
    for number in rng.integers(0, 300, 2_000).tolist():
        features, context = sent[number]
        found = verifier.refusals(features, context, bounds=[0, 1])
        assert found == ({0: REPLAYED} if number in seen else {})
        seen.add(number)


def test_what_is_behind_the_window_is_refused() -> None:
    """Nobody remembers whether it was seen."""
    window = context_mac._ReplayWindow()
    assert window.accept(WINDOW)
    assert window.accept(1)  # the last one that is remembered
    assert not window.accept(0)
    assert window.accept(10 * WINDOW)  # a jump forgets all before
    assert not window.accept(9 * WINDOW)
    assert window.accept(9 * WINDOW + 1)
    assert not window.accept(9 * WINDOW + 1)


@pytest.mark.parametrize("text", ["", "5e", "x" * 64, "5e" * 33])
def test_a_step_without_a_key_does_not_start(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would sign or accept nothing; the error names the variable and the mend."""
    monkeypatch.setenv(CONTEXT_KEY_VARIABLE, text)
    with pytest.raises(ValueError, match=rf"{CONTEXT_KEY_VARIABLE} .*openssl rand"):
        read_key()
