"""
A proxy in front of a server that makes its network worse on demand.

    python -m loadtests.servers.proxy LISTEN SERVER

Both are a path, which is a unix socket, or host:port.

It runs as a separate process, so that it shares no interpreter with the load, and
takes one order per line on its standard input, each answered with `ok`:

    pass        hand everything on at once
    slow 0.05   hold every piece of an answer back for so many seconds
    cut         hand on half of the next answer, then break the connection; likewise
                with every connection after it
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tollgate.server.processes.socket_path import short_socket_path

_CHUNK_BYTES = 1 << 16


class Proxy:
    """
    The proxy, as a child process.

    Args:
        server: Unix socket of the server, or "host:port".
        listen: Unix socket of the proxy, which must not exist, or "host:port".

    Attributes:
        url: "unix://…" or "host:port", for the caller of the server; that of a unix
            socket is valid inside the context.
    """

    def __init__(self, server: Path | str, *, listen: Path | str) -> None:
        self._server = server
        self._listen = listen
        self.url = "" if isinstance(listen, Path) else listen
        self._stack = contextlib.ExitStack()
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Proxy:
        listen = self._listen
        if isinstance(listen, Path):
            listen = self._stack.enter_context(short_socket_path(listen))
            self.url = f"unix://{listen}"
        command = [
            sys.executable,
            "-m",
            "loadtests.servers.proxy",
            listen,
            self._server,
        ]
        self._child = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[2],
        )
        try:
            self.order("pass")
        except (OSError, RuntimeError):
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        assert self._child is not None
        self._child.kill()
        self._child.communicate()
        self._stack.close()

    def order(self, text: str) -> None:
        """Change the behavior of the proxy; returns when the change has effect."""
        assert self._child is not None
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{text}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline().strip()
        if answer != "ok":
            raise RuntimeError(f"the proxy answered {answer!r} to {text!r}")


class _Line:
    """The present treatment of answers."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.cut = False

    def take(self, order: str) -> None:
        """Apply an order."""
        word, _, value = order.partition(" ")
        if word not in ("pass", "slow", "cut"):
            raise ValueError(f"{order!r} is none of pass, slow SECONDS, cut")
        self.delay_s = float(value) if word == "slow" else 0.0
        self.cut = word == "cut"


async def _serve(listen: str, far: str) -> None:
    line = _Line()

    async def connected(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await _connect(far)
        except OSError:
            writer.close()
            return
        with _closing(writer), _closing(far_writer):
            ways = (
                asyncio.ensure_future(_hand_on(reader, far_writer)),
                asyncio.ensure_future(_answer(far_reader, writer, line)),
            )
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    if host_port := _host_port(listen):
        server = await asyncio.start_server(connected, *host_port)
    else:
        server = await asyncio.start_unix_server(connected, listen)
    async with server:
        await _obey(line)


async def _connect(
    address: str,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if host_port := _host_port(address):
        return await asyncio.open_connection(*host_port)
    return await asyncio.open_unix_connection(address)


def _host_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host and "/" not in address else None


async def _obey(line: _Line) -> None:
    """Apply orders until standard input ends."""
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    while text := (await orders.readline()).decode():
        line.take(text.strip())
        print("ok", flush=True)


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_CHUNK_BYTES):
        writer.write(piece)
        await writer.drain()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line
) -> None:
    pieces: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
    clock = asyncio.get_running_loop().time

    async def write() -> None:
        # In a separate task: a delayed piece does not delay the reading of later ones.
        while (entry := await pieces.get()) is not None:
            due_s, piece = entry
            await asyncio.sleep(max(0.0, due_s - clock()))
            writer.write(piece)
            await writer.drain()

    writing = asyncio.ensure_future(write())
    try:
        while piece := await reader.read(_CHUNK_BYTES):
            if line.cut:
                pieces.put_nowait((clock(), piece[: len(piece) // 2]))
                break
            pieces.put_nowait((clock() + line.delay_s, piece))
        pieces.put_nowait(None)
        await writing
    finally:
        writing.cancel()


@contextlib.contextmanager
def _closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
