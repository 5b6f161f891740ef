"""What Redis has against something, without the data it was asked about."""

from __future__ import annotations

import re

# redis-py puts the command before an error of a pipeline, and Redis the arguments
# behind a command that it does not know: keys and events, so ids and amounts.
_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
_ARGUMENTS = re.compile(r",? with args beginning with.*", re.DOTALL)
_REPLY = re.compile(r"(Protocol Error).*", re.DOTALL | re.IGNORECASE)


def words_of(error: BaseException) -> str:
    """
    Say in one line what went wrong, fit for a log.

    Args:
        error: One of redis-py's, or of the operating system's.
    """
    text = _PIPELINE.sub("", str(error))
    text = _ARGUMENTS.sub("", text)
    return " ".join(_REPLY.sub(r"\1", text).split())
