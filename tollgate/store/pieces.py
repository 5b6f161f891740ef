"""Split calls and commands of many keys by key, and join their replies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tollgate.errors import InputError
from tollgate.store.address import SOURCE
from tollgate.store.connection import Command
from tollgate.store.events import ARGUMENTS, Call
from tollgate.store.redis import Answer, Mode, eval_command

_MANY = b"MGET"
# Commands that are sent with calls, or without any.
_ONE = (b"GET", b"SET", b"DEL", b"SMISMEMBER", b"XADD", b"XLEN")


def split_call(call: Call, mode: Mode) -> list[Command]:
    """Build one command per key of a call."""
    arguments = np.frombuffer(call.arguments, ARGUMENTS)
    size = arguments["events"].astype(np.int64) * arguments["entry_bytes"]
    edges = itertools.pairwise([0, *size.cumsum().tolist()])
    width = ARGUMENTS.itemsize
    return [
        eval_command(
            [key],
            mode,
            arguments=call.arguments[at * width : (at + 1) * width],
            events=call.events[start:stop],
        )
        for at, (key, (start, stop)) in enumerate(zip(call.keys, edges, strict=True))
    ]


def join_answers(call: Call, mode: Mode, replies: Sequence[Any]) -> Answer:
    """
    Join the replies for a call's keys.

    Args:
        call: The call.
        mode: Its mode.
        replies: Per key its reply; an exception for one that is lost, which becomes an
            empty value, and status bytes 0.
    """
    events = np.frombuffer(call.arguments, ARGUMENTS)["events"].tolist()
    values, statuses = [], []
    for count, reply in zip(events, replies, strict=True):
        lost = isinstance(reply, Exception)
        statuses.append(bytes(count) if lost else reply[-1])
        values.append(b"" if lost else reply[0])
    return values if mode is not Mode.WRITE_ONLY else [], b"".join(statuses)


def split_command(command: Command) -> list[Command]:
    """
    Build one command per key.

    Raises:
        InputError: The command concerns all keys of the store, which no single node
            has.
    """
    name, *keys = command
    if name == _MANY:
        return [(b"GET", key) for key in keys]
    if name not in _ONE:
        raise InputError(SOURCE, f"is a cluster's, which cannot {name.decode()}")
    return [command]


def join_replies(command: Command, replies: Iterator[Any]) -> Any:
    """Take a command's replies and join them; lost ones are exceptions."""
    if command[0] != _MANY:
        return next(replies)
    return list(itertools.islice(replies, len(command) - 1))
