"""
Find the command-line arguments of tritonserver in the file that holds them.

In a shell script, a Dockerfile, a compose file, the values of a chart, a systemd unit
or a plain list, an option is a word that begins with two dashes, and its value follows
after "=", a space, or as the next entry of a list. One server per file.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

import msgspec

from tollgate.errors import InputError

# Options of tritonserver that a rule checks, from its --help (2.51).
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
    """One option as it was given: its value, file and line."""

    value: str
    line: int


class ServerCommandLine(msgspec.Struct, frozen=True):
    """
    The command line of one tritonserver.

    Attributes:
        file: File that contains it.
        line: Line that names the server, for options that are not given.
        options: Options by name without dashes; several values if one is repeated.
        release: Release of the image, year and month; empty if no image is named.
        release_line: Line that names the release.
    """

    file: str
    line: int
    options: dict[str, tuple[Option, ...]]
    release: str = ""
    release_line: int = 0

    def last(self, name: str) -> Option | None:
        """Return the last value of an option, which counts; None if it is not given."""
        given = self.options.get(name, ())
        return given[-1] if given else None

    def line_of(self, name: str) -> int:
        """Return the line of an option, or of the server if it is not given."""
        option = self.last(name)
        return option.line if option else self.line

    def value_of(self, name: str, default: str) -> str:
        """Return the value that counts."""
        option = self.last(name)
        return option.value if option else default

    def is_on(self, name: str, *, default: bool) -> bool:
        """Return the value of a boolean option."""
        option = self.last(name)
        return default if option is None else option.value.lower() not in _FALSE

    def restricts(self, name: str, protocol: str) -> bool:
        """Return whether an option that closes protocols closes one of them."""
        return any(
            protocol in option.value.partition(":")[0].split(",")
            for option in self.options.get(name, ())
        )

    def open_to(self, kind: str) -> bool:
        """Return whether other machines can reach a protocol, "http" or "grpc"."""
        if not self.is_on(f"allow-{kind}", default=True):
            return False
        return not _is_loopback(self.value_of(f"{kind}-address", "0.0.0.0"))


def read_server_command_line(path: Path) -> ServerCommandLine:
    """
    Read a file that starts a tritonserver.

    Raises:
        InputError: It cannot be read, or does not mention a tritonserver.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InputError(path, "is not UTF-8 text") from exc
    return parse_server_command_line(text, file=str(path))


def parse_server_command_line(text: str, *, file: str) -> ServerCommandLine:
    """
    Find the options of tritonserver in a text.

    Raises:
        InputError: It does not mention a tritonserver.
    """
    # Replaced by spaces, not removed, so that line numbers stay the same.
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
    return ServerCommandLine(
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
