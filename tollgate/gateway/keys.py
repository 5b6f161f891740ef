"""
Read and write the API keys of callers: lines `KEY CALLER;` that nginx includes as is.

One caller may have several keys that are valid at the same time, so a key is replaced
without a gap. No message contains a key.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from tollgate.errors import InputError, os_errors
from tollgate.repository.atomic import lock_folder, replace_file

_LINE = re.compile(r"([a-z0-9]{32,128})\s+([a-z0-9][a-z0-9-]{0,62});\s*(?:#.*)?")
_CALLER = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_OWNER_ONLY = 0o600
_HEAD = (
    "# KEY CALLER; one a line. A caller may have several; delete a line to end one.\n"
)


def read_keys(path: Path) -> dict[str, str]:
    """
    Read and check a file of API keys.

    Returns:
        Key -> caller.

    Raises:
        InputError: The file cannot be read, other users may read it, or a line is not
            `KEY CALLER;`; the message names the line, without its content.
    """
    try:
        text = path.read_text()
        found_at = path.stat()
    except (OSError, UnicodeDecodeError) as exc:
        words = getattr(exc, "strerror", None) or "is not UTF-8"
        raise InputError(path, f"cannot be read: {words}") from exc
    # A secret that Kubernetes mounts is root's, and is read by the group of the pod.
    group = 0 if found_at.st_uid == os.geteuid() else stat.S_IRGRP
    if found_at.st_mode & 0o077 & ~group:
        raise InputError(path, f"others may read it; chmod 600 {path}")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            problem = "is not `KEY CALLER;`: a key is 32 to 128 of a-z and 0-9, a "
            problem += "caller up to 63 of a-z, 0-9 and -"
            raise InputError(path, problem, where=f"line {number}")
        if match[1] in found:
            raise InputError(path, "the same key again", where=f"line {number}")
        found[match[1]] = match[2]
    return found


def add_key(path: Path, caller: str) -> str:
    """
    Draw a key for a caller and add it to the file, which is created if missing.

    Returns:
        The key: 256 random bits as hexadecimal digits.

    Raises:
        InputError: The name is not valid, or the file is not valid or cannot be
            written.
    """
    if not _CALLER.fullmatch(caller):
        problem = f"{caller!r:.80} is not up to 63 of a-z, 0-9 and -"
        raise InputError("CALLER", problem)
    key = secrets.token_hex(32)
    with os_errors(InputError, path, "cannot be written"), lock_folder(path.parent):
        content = f"{_text(path)}{key} {caller};\n".encode()
        replace_file(path, content, mode=_OWNER_ONLY)
    return key


def _text(path: Path) -> str:
    """Read the content of a valid file of keys, with an end of line."""
    if not path.exists():
        return _HEAD
    read_keys(path)
    text = path.read_text()
    return text if not text or text.endswith("\n") else text + "\n"
