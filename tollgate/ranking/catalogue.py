"""Hold what a release knows of a shop's items: ids, neighbours, popularity, factors."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError
from tollgate.schema import (
    ACTIONS,
    ITEM_SEPARATOR,
    MAX_ID_BYTES,
    FieldForm,
    hash_words,
)

CATALOGUE_FILE = "catalogue.npz"
RETRIEVAL_FILE = "retrieval.onnx"
EVERYONE = "everyone"  # name of segment 0

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_FORMAT = 1
_TEXTS = ("item_ids", "category_names", "static_names", "segments")
_OPTIONAL = {"segment_field"}  # left out where it is empty


class Catalogue(msgspec.Struct, frozen=True, eq=False, dict=True):
    """
    The items of a release, and what was learnt of them; I items.

    Attributes:
        item_ids: Ids in UTF-8, at most MAX_ID_BYTES long, without ITEM_SEPARATOR. The
            position of an item here is its index everywhere else.
        categories: Index in `category_names`, -1 for none; int32 [I].
        category_names: Names of the categories.
        popularity: Share of all events; float32 [I].
        recent_popularity: Share of the newest tenth of the events; float32 [I].
        vectors: Vectors of unit length from the items' own co-occurrence, for the
            diversity of a list and for features; float32 [I, D], zeros for an item
            without events.
        neighbours: The most similar items of each item, -1 after the last; int32
            [I, M].
        similarities: Their similarity within [0, 1], 0 after the last; float32 [I, M].
        followers: The items that came most often shortly after an item in the users'
            histories, -1 after the last; int32 [I, M].
        follow_shares: Strength of that within [0, 1]; float32 [I, M].
        factors: Factors of an item in a user's history, for the retrieval. Those of the
            candidates are in `retrieval.onnx`; float32 [I, D].
        action_weights: Weight of an event in the user's vector by its action, in the
            order of `schema.ACTIONS`, and last that of an event without an action;
            float32 [4].
        half_life: Number of newer items after which an item weighs half in the user's
            vector; infinity for no decay.
        similar_count: Number of candidates that are neighbours of the user's newest
            items; the other candidates come from the whole history.
        statics: Numbers of each item that are features as they are; float32 [I, S].
        static_names: Their names.
        segments: Names of the groups of users that have popular items of their own; the
            first is EVERYONE.
        popular: Items in descending order of popularity, by segment, -1 after the last;
            int32 [S, P].
        repeats: Items of the user's newest events may be candidates.
        segment_field: Field of a request whose word is the segment of its user; empty
            for none: all users are of EVERYONE.
    """

    item_ids: list[bytes]
    categories: I32
    category_names: list[str]
    popularity: F32
    recent_popularity: F32
    vectors: F32
    neighbours: I32
    similarities: F32
    followers: I32
    follow_shares: F32
    factors: F32
    action_weights: F32
    half_life: float
    similar_count: int
    statics: F32
    static_names: list[str]
    segments: list[str]
    popular: I32
    repeats: bool = True
    segment_field: str = ""

    @property
    def size(self) -> int:
        """Return the number of items."""
        return len(self.item_ids)

    @functools.cached_property
    def hash(self) -> int:
        """Hash the content; an unsigned number of 64 bits."""
        digest = hashlib.blake2b(digest_size=8)
        for name, values in self._arrays().items():
            digest.update(f"{name} {values.dtype.str} {values.shape};".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
        return int.from_bytes(digest.digest(), "big")

    @functools.cached_property
    def log_popularity(self) -> F32:
        """Return the logarithm of each item's share of the events; float32 [I]."""
        floor = 0.1 / max(self.size, 1)
        shares = np.log(self.popularity.astype(np.float64) + floor)
        return np.asarray(shares, np.float32)

    @functools.cached_property
    def trend(self) -> F32:
        """Return the logarithm of recent popularity by popularity; float32 [I]."""
        floor = 0.1 / max(self.size, 1)
        recent = np.log(self.recent_popularity.astype(np.float64) + floor)
        return np.asarray(recent - self.log_popularity, np.float32)

    @functools.cached_property
    def _by_hash(self) -> tuple[I64, I32]:
        hashes = hash_words(self.item_ids)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        return hashes[order], order

    def index_of(self, hashes: npt.NDArray[np.int64]) -> I32:
        """
        Return the indices of items.

        Args:
            hashes: Hashes of their ids (`schema.hash_words`), of any shape.

        Returns:
            An array of the same shape; -1 for an unknown item.
        """
        known, order = self._by_hash
        if not len(known):
            return np.full(np.shape(hashes), -1, np.int32)
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return np.where(known[at] == hashes, order[at], np.int32(-1))

    def segments_of(
        self, fields: Mapping[str, npt.NDArray[np.int64]], *, rows: int
    ) -> I32:
        """
        Return the segments of requests, 0 for EVERYONE where a word is no segment.

        Args:
            fields: Declared fields by name, categories as hashes; int64 [N] each.
            rows: Number of requests, N.
        """
        sent = fields.get(self.segment_field)
        if sent is None:
            return np.zeros(rows, np.int32)
        places = self._segment_places
        return np.array([places.get(one, 0) for one in sent.tolist()], np.int32)

    @functools.cached_property
    def _segment_places(self) -> dict[int, int]:
        words = [one.encode() for one in self.segments[1:]]
        return dict(zip(hash_words(words).tolist(), itertools.count(1), strict=False))

    def save(self, folder: Path) -> None:
        """Write CATALOGUE_FILE into a folder."""
        with open(folder / CATALOGUE_FILE, "wb") as file:
            np.savez(file, **self._arrays())

    @staticmethod
    def load(folder: Path) -> Catalogue:
        """
        Read CATALOGUE_FILE of a folder.

        Raises:
            RepositoryError: The file is missing or damaged, or its parts do not fit.
        """
        path = folder / CATALOGUE_FILE
        return Catalogue._read(path, path)

    @staticmethod
    def decode(content: bytes) -> Catalogue:
        """
        Read the content of a CATALOGUE_FILE.

        Raises:
            RepositoryError: It is damaged, or its parts do not fit.
        """
        return Catalogue._read(io.BytesIO(content), CATALOGUE_FILE)

    @staticmethod
    def _read(content: Path | IO[bytes], path: object) -> Catalogue:
        try:
            with np.load(content, allow_pickle=False) as file:
                values: dict[str, Any] = {name: file[name] for name in file.files}
        except FileNotFoundError as error:
            raise RepositoryError(path, "no such file") from error
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise RepositoryError(path, f"is damaged: {error}") from error
        found = values.pop("format", None)
        if found is None or int(found) != _FORMAT:
            problem = f"has format {found}; this version reads {_FORMAT}"
            raise RepositoryError(path, problem)
        missing = sorted(set(Catalogue.__struct_fields__) - set(values) - _OPTIONAL)
        if missing:
            raise RepositoryError(path, f"lacks {missing[0]}")
        for name in _TEXTS:
            texts = bytes(values[name]).split(b"\0")[:-1]
            values[name] = (
                texts if name == "item_ids" else [text.decode() for text in texts]
            )
        values["segment_field"] = bytes(values.get("segment_field", b"")).decode()
        values["half_life"] = float(values["half_life"])
        values["similar_count"] = int(values["similar_count"])
        values["repeats"] = bool(values["repeats"])
        wanted = {name: values[name] for name in Catalogue.__struct_fields__}
        catalogue = Catalogue(**wanted)
        if problem := catalogue_problem(catalogue):
            raise RepositoryError(path, problem)
        return catalogue

    def _arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        found: dict[str, npt.NDArray[Any]] = {"format": np.asarray(_FORMAT)}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "segment_field":
                if value:
                    found[name] = np.frombuffer(value.encode(), np.uint8)
            elif name in _TEXTS:
                encoded = [
                    one if isinstance(one, bytes) else one.encode() for one in value
                ]
                joined = b"".join(one + b"\0" for one in encoded)
                found[name] = np.frombuffer(joined, np.uint8)
            else:
                found[name] = np.asarray(value)
        return found


def catalogue_problem(catalogue: Catalogue) -> str:
    """Describe the first part of a catalogue that does not fit; empty if all do."""
    size = catalogue.size
    if not size:
        return "has no items"
    for one in catalogue.item_ids:
        if problem := item_id_problem(one):
            return f"item {one[:80]!r} {problem}"
    if len(set(catalogue.item_ids)) < size:
        return "an item id appears twice"
    forms: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "categories": (np.int32, (size,)),
        "popularity": (np.float32, (size,)),
        "recent_popularity": (np.float32, (size,)),
        "vectors": (np.float32, (size, -1)),
        "neighbours": (np.int32, (size, -1)),
        "similarities": (np.float32, catalogue.neighbours.shape),
        "followers": (np.int32, (size, -1)),
        "follow_shares": (np.float32, catalogue.followers.shape),
        "factors": (np.float32, (size, -1)),
        "action_weights": (np.float32, (len(ACTIONS) + 1,)),
        "statics": (np.float32, (size, len(catalogue.static_names))),
        "popular": (np.int32, (len(catalogue.segments), -1)),
    }
    for name, (dtype, shape) in forms.items():
        values = getattr(catalogue, name)
        fits = len(values.shape) == len(shape) and all(
            wanted in (-1, there)
            for wanted, there in zip(shape, values.shape, strict=True)
        )
        if values.dtype != dtype or not fits:
            present = f"{values.dtype} {list(values.shape)}"
            return f"{name} is {present}, not {dtype.__name__} {list(shape)}"
        if values.dtype == np.float32 and not np.isfinite(values).all():
            return f"{name} has a value that is not finite"
    bounds = {
        "categories": len(catalogue.category_names),
        "neighbours": size,
        "followers": size,
        "popular": size,
    }
    for name, most in bounds.items():
        values = getattr(catalogue, name)
        if values.size and not (values.min() >= -1 and values.max() < most):
            return f"{name} has an index outside of -1 … {most - 1}"
    if catalogue.segments[:1] != [EVERYONE]:
        return f"the first segment is not {EVERYONE}"
    if len(set(catalogue.segments)) < len(catalogue.segments):
        return "a segment stands there twice"
    if not catalogue.half_life > 0:
        return f"half_life is {catalogue.half_life}, not above 0"
    if catalogue.similar_count < 0:
        return f"similar_count is {catalogue.similar_count}, below 0"
    return ""


def segment_field_problem(catalogue: Catalogue, fields: Iterable[FieldForm]) -> str:
    """
    Describe why no segment can be read from requests; empty if it can.

    Args:
        fields: Declared fields of a request.
    """
    name = catalogue.segment_field
    if not name or any(one.name == name and one.type == "category" for one in fields):
        return ""
    return f"has segments by {name}, which is no category that requests have"


def item_id_problem(item: bytes) -> str:
    """Describe why a text cannot be the id of an item; empty if it can."""
    if not 0 < len(item) <= MAX_ID_BYTES:
        return f"is not 1 to {MAX_ID_BYTES} bytes long"
    if ITEM_SEPARATOR.encode() in item or b"\0" in item:
        return f"has a {ITEM_SEPARATOR} or a zero byte in it"
    try:
        item.decode()
    except UnicodeDecodeError:
        return "is not UTF-8"
    return ""
