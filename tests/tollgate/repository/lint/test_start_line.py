"""A server's arguments are read out of the files that people start it with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.repository.lint.start_line import (
    parse_server_command_line,
    read_server_command_line,
)

SHELL = """\
#!/bin/sh
# tritonserver --model-control-mode=poll was here once
exec tritonserver --model-repository=/models \\
    --model-control-mode explicit \\
    --grpc-restricted-protocol=model-repository,shared-memory:admin="$SECRET" \\
    --load-model=a --load-model=b  # two
"""
DOCKERFILE = """\
FROM nvcr.io/nvidia/tritonserver:25.06-py3
CMD ["tritonserver", "--model-repository=/models", "--model-control-mode", \\
     "explicit", "--allow-http=false"]
"""
COMPOSE = """\
services:
  triton:
    image: nvcr.io/nvidia/tritonserver:26.07-py3
    command:
      - tritonserver
      - --model-control-mode
      - explicit
      # - --allow-http=true
      - "--allow-http=false"
      - '--grpc-address=127.0.0.1'
"""
VALUES = """\
image:
  repository: nvcr.io/nvidia/tritonserver
  tag: "24.10-py3"
server:
  args: [--model-control-mode=explicit, --allow-http=false]
"""
UNIT = """\
[Service]
; --allow-http=true
ExecStart=/opt/bin/tritonserver --model-control-mode=explicit --allow-http=0
"""
# name: (text, line of --model-control-mode, line of --allow-http, release, its line)
FILES = {
    "shell": (SHELL, 4, None, "", 0),
    "dockerfile": (DOCKERFILE, 2, 3, "25.06", 1),
    "compose": (COMPOSE, 6, 9, "26.07", 3),
    "chart": (VALUES, 5, 5, "24.10", 3),
    "unit": (UNIT, 3, 3, "", 0),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_is_understood(name: str) -> None:
    """Value and line of each option; what is commented out does not count."""
    text, mode_line, http_line, release, release_line = FILES[name]
    line = parse_server_command_line(text, file=name)
    mode = line.last("model-control-mode")
    assert mode is not None
    assert (mode.value, mode.line) == ("explicit", mode_line)
    http = line.last("allow-http")
    assert (http.line if http else None) == http_line
    assert line.is_on("allow-http", default=True) == (http_line is None)
    assert (line.release, line.release_line) == (release, release_line)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("image: tritonserver:24.10-py3-sdk", "24.10"),
        ("image: my.registry/tritonserver:26.07-trtllm-python-py3", "26.07"),
        ("repository: x/tritonserver\npullPolicy: Always\ntag: 25.10-py3", "25.10"),
        ("image: tritonserver:latest\ntag: 99.99", ""),
        ("image: tritonserver@sha256:2510", ""),
        ("repository: tritonserver\n\n\n\n\n\nredis:\n  tag: 99.99", ""),
    ],
)
def test_the_release_is_that_of_the_servers_image(text: str, release: str) -> None:
    """Not of another one in the same file, and not guessed."""
    assert parse_server_command_line(text, file="x").release == release


def test_an_option_may_come_more_than_once() -> None:
    """All values are kept; the last one counts."""
    line = parse_server_command_line(SHELL, file="run.sh")
    assert [one.value for one in line.options["load-model"]] == ["a", "b"]
    assert line.value_of("load-model", "") == "b"


def test_what_is_restricted_is_read_before_the_colon() -> None:
    """The key may have the name of a protocol and restricts nothing by that."""
    line = parse_server_command_line(SHELL, file="run.sh")
    assert line.restricts("grpc-restricted-protocol", "shared-memory")
    assert not line.restricts("grpc-restricted-protocol", "model-config")
    assert not line.restricts("grpc-restricted-protocol", "admin")
    assert not line.restricts("http-restricted-api", "shared-memory")


@pytest.mark.parametrize(
    ("arguments", "is_open"),
    [
        ("", True),
        ("--grpc-address=0.0.0.0", True),
        ("--grpc-address=10.1.2.3", True),
        ("--grpc-address=localhost", False),
        ("--grpc-address=127.0.0.1", False),
        ("--grpc-address=::1", False),
        ("--allow-grpc=false", False),
        ("--allow-grpc=false --allow-grpc=true", True),
    ],
)
def test_open_is_what_another_machine_reaches(arguments: str, is_open: bool) -> None:
    """Triton listens everywhere unless told; loopback is not open."""
    line = parse_server_command_line(f"tritonserver {arguments}", file="x")
    assert line.open_to("grpc") is is_open


def test_options_of_others_are_no_options_of_the_server() -> None:
    """A compose file may start more than Triton."""
    text = "redis-server --appendonly yes\ntritonserver --allow-http=false\n"
    assert parse_server_command_line(text, file="x").options.keys() == {"allow-http"}


@pytest.mark.parametrize("text", ["", "redis-server --appendonly yes", "hello"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """Silence would look like soundness."""
    path = tmp_path / "other.sh"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.sh: has no tritonserver"):
        read_server_command_line(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or no text at all."""
    with pytest.raises(InputError, match=r"none: cannot be read: No such file"):
        read_server_command_line(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="binary: is not UTF-8 text"):
        read_server_command_line(tmp_path / "binary")
