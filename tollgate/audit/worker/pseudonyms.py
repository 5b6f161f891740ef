"""
Store the keys of the journal's subjects, and compute pseudonyms with them.

Each subject (a customer, a terminal) has a random key, stored apart from the records.
The pseudonym of a subject is an HMAC of its id under that key. Without the key nobody
can compute the pseudonym again, even by trying all ids. To erase a person is to delete
the key; the records stay as they were sealed.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tollgate.errors import JournalError

KEY_BYTES = 32
FILE = "subjects.sqlite"
PSEUDONYM_BYTES = 16
TRANSACTION = "transaction"
_TOKEN_BYTES = 16
_BUSY_S = 30.0
_AT_ONCE = 500  # parameters per SELECT

_TABLES = """
CREATE TABLE IF NOT EXISTS secret (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB);
CREATE TABLE IF NOT EXISTS subject (
    entity TEXT, token BLOB, key BLOB, PRIMARY KEY (entity, token)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS erased (entity TEXT, day TEXT, subjects INTEGER);
"""


class Subjects:
    """
    Keys of one journal's subjects.

    The file holds no id in plain text: a subject is found by an HMAC of its id under a
    secret of the file.

    Args:
        folder: Folder of the file; created if missing, with access for this user only.

    Raises:
        JournalError: The file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        with self._mapped():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # SQLite creates its other files, such as the rollback journal, with the
            # same permissions.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None
            )
            # Deleted keys are overwritten, and committed data is on disk.
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_TABLES)
            self._db.execute(
                "INSERT OR IGNORE INTO secret VALUES (1, ?)",
                (secrets.token_bytes(KEY_BYTES),),
            )
            (self._secret,) = self._db.execute("SELECT value FROM secret").fetchone()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def keys(self, entity: str, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """
        Look up keys by id, and create (on disk) those of subjects that have none.

        Raises:
            JournalError: The file cannot be read or written.
        """
        tokens = {self._token(entity, one): one for one in ids}
        with self._transaction():
            found = self._found(entity, tokens)
            new = [
                (entity, token, secrets.token_bytes(KEY_BYTES))
                for token, one in tokens.items()
                if one not in found
            ]
            self._db.executemany("INSERT INTO subject VALUES (?, ?, ?)", new)
        return found | {tokens[token]: key for _, token, key in new}

    def known(self, entity: str, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Look up keys; subjects without a key are left out."""
        with self._mapped():
            return self._found(entity, {self._token(entity, one): one for one in ids})

    def all_keys(self, entity: str) -> Iterator[bytes]:
        """Yield the key of every subject of an entity, in no particular order."""
        with self._mapped():
            rows = self._db.execute(
                "SELECT key FROM subject WHERE entity = ?", (entity,)
            )
            for (key,) in rows:
                yield key

    def erase(self, entity: str, one: bytes, *, day: str) -> bool:
        """
        Delete a subject's key permanently; return whether there was one.

        The deletion is recorded with its day, without the subject.
        """
        with self._transaction():
            gone = self._db.execute(
                "DELETE FROM subject WHERE entity = ? AND token = ?",
                (entity, self._token(entity, one)),
            ).rowcount
            if gone:
                self._db.execute("INSERT INTO erased VALUES (?, ?, 1)", (entity, day))
        return bool(gone)

    def erased(self) -> int:
        """Return the number of erased subjects."""
        with self._mapped():
            row = self._db.execute("SELECT count(*) FROM erased").fetchone()
        return int(row[0])

    def _token(self, entity: str, one: bytes) -> bytes:
        message = entity.encode() + b"\x00" + one
        return hmac.digest(self._secret, message, "sha256")[:_TOKEN_BYTES]

    def _found(self, entity: str, tokens: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        wanted = list(tokens)
        found: dict[bytes, bytes] = {}
        for at in range(0, len(wanted), _AT_ONCE):
            part = wanted[at : at + _AT_ONCE]
            marks = ",".join("?" * len(part))
            rows = self._db.execute(
                "SELECT token, key FROM subject WHERE entity = ? "
                f"AND token IN ({marks})",
                (entity, *part),
            )
            found.update((tokens[token], key) for token, key in rows)
        return found

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._mapped():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise JournalError(self._path, f"cannot be used: {exc}") from exc
        except OSError as exc:
            raise JournalError(self._path, f"cannot be used: {exc.strerror}") from exc


def pseudonym(key: bytes, entity: str, one: bytes) -> str:
    """
    Compute a pseudonym: 32 hexadecimal digits.

    Args:
        key: Key of the subject; for a transaction, the key of its first entity's
            subject, or the transaction's own key if there are no entities.
        entity: Name of the entity, or TRANSACTION.
        one: Id to replace.
    """
    message = entity.encode() + b"\x00" + one
    return hmac.digest(key, message, "sha256")[:PSEUDONYM_BYTES].hex()
