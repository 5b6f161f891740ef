"""
The arguments that a tritonserver is started with, out of whatever file holds them.

A shell script, a Dockerfile, a compose file, the values of a chart, a systemd unit or a
plain list: in all of them an option is a word that begins with two dashes, and its
value follows after "=", a space, or as the next entry of a list. One server per file.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

import msgspec

from tollgate.errors import InputError

# Options of tritonserver that a rule looks at, from its --help (2.51).
OPTIONS = frozenset(
    [
        *("model-repository", "model-store", "model-control-mode", "load-model"),
        *("repository-poll-secs", "strict-readiness", "exit-on-error"),
        *("allow-http", "http-address", "http-port", "http-restricted-api"),
        *("allow-grpc", "grpc-address", "grpc-port", "grpc-restricted-protocol"),
        *("allow-metrics", "metrics-config", "cache-config", "backend-config"),
    ]
)
_FALSE = ("false", "0")
_COMMENT = re.compile(r"^[ \t]*(?:#|//|;).*$|[ \t]#[ \t].*$", re.MULTILINE)
_OPTION = re.compile(
    r"""--(?P<name>[a-z][a-z0-9-]*)
        (?: = | ["']? (?: \s | \\\n | , | -(?=\s) )+ (?=["']?[^\s"'-]) )
        (?P<quote>["']?)(?P<value>[^\s"']*)""",
    re.VERBOSE,
)
# "tritonserver:26.07-py3", or a chart's `repository:` with its `tag:` soon after it.
_IMAGE = re.compile(
    r"tritonserver(?::|[\"']?[ \t]*\n(?:.*\n){0,3}?\s*tag:\s*[\"']?)(\d\d\.\d\d)\b"
)
_SERVER = re.compile(r"\btritonserver\b")


class Option(msgspec.Struct, frozen=True):
    """One option as it was given: its value, and where."""

    value: str
    line: int


class StartLine(msgspec.Struct, frozen=True):
    """
    How one tritonserver is started.

    Attributes:
        file: Where that is written.
        line: Where the server is named, for what is not told.
        options: By name without dashes; several values where it is repeated.
        release: Of the image, year and month; empty when no image is named.
        release_line: Where.
    """

    file: str
    line: int
    options: dict[str, tuple[Option, ...]]
    release: str = ""
    release_line: int = 0

    def last(self, name: str) -> Option | None:
        """Show the last value of an option, which counts; None when it is not told."""
        given = self.options.get(name, ())
        return given[-1] if given else None

    def line_of(self, name: str) -> int:
        """Tell the line of an option, or of the server when it is not told."""
        option = self.last(name)
        return option.line if option else self.line

    def told(self, name: str, default: str) -> str:
        """Tell the value that counts."""
        option = self.last(name)
        return option.value if option else default

    def is_on(self, name: str, *, default: bool) -> bool:
        """Tell a boolean option."""
        option = self.last(name)
        return default if option is None else option.value.lower() not in _FALSE

    def restricts(self, name: str, protocol: str) -> bool:
        """Tell whether an option that closes protocols closes one of them."""
        return any(
            protocol in option.value.partition(":")[0].split(",")
            for option in self.options.get(name, ())
        )

    def open_to(self, kind: str) -> bool:
        """Tell whether a protocol, "http" or "grpc", is on beyond this machine."""
        if not self.is_on(f"allow-{kind}", default=True):
            return False
        return not _is_loopback(self.told(f"{kind}-address", "0.0.0.0"))


def read_start_line(path: Path) -> StartLine:
    """
    Read a file that starts a tritonserver.

    Raises:
        InputError: It cannot be read, or has nothing of a tritonserver in it.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InputError(path, "is not UTF-8 text") from exc
    return parse_start_line(text, file=str(path))


def parse_start_line(text: str, *, file: str) -> StartLine:
    """
    Find the options of tritonserver in a text.

    Raises:
        InputError: There is nothing of a tritonserver in it.
    """
    # Blanked, not cut, so that lines stay where they are.
    text = _COMMENT.sub(lambda match: " " * len(match[0]), text)
    options: dict[str, tuple[Option, ...]] = {}
    for match in _OPTION.finditer(text):
        if match["name"] in OPTIONS:
            value = match["value"]
            if not match["quote"]:
                value = value.rstrip(",]\\")
            found = Option(value=value, line=_line(text, match.start()))
            options[match["name"]] = (*options.get(match["name"], ()), found)
    server = _SERVER.search(text)
    if not options and not server:
        raise InputError(file, "has no tritonserver and none of its options in it")
    image = _IMAGE.search(text)
    firsts = [given[0].line for given in options.values()]
    return StartLine(
        file=file,
        line=_line(text, server.start()) if server else min(firsts),
        options=options,
        release=image[1] if image else "",
        release_line=_line(text, image.start(1)) if image else 0,
    )


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ip_address(address.removeprefix("ipv6:").strip("[]")).is_loopback
    except ValueError:
        return False
