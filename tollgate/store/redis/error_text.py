"""Describe an error of Redis without the data of the command that caused it."""

from __future__ import annotations

import re

# redis-py puts the command before an error of a pipeline, and Redis puts the arguments
# after an unknown command: keys and events, so ids and amounts.
_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
_ARGUMENTS = re.compile(r",? with args beginning with.*", re.DOTALL)
_REPLY = re.compile(r"(Protocol Error).*", re.DOTALL | re.IGNORECASE)


def describe_error(error: BaseException) -> str:
    """
    Describe an error in one line that is safe to log.

    Args:
        error: An error of redis-py or of the operating system.
    """
    text = _PIPELINE.sub("", str(error))
    text = _ARGUMENTS.sub("", text)
    return " ".join(_REPLY.sub(r"\1", text).split())
