"""Run nginx as a child process: test its configuration, start, reload and stop it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import msgspec

from tollgate.errors import InputError, ServerError, SetupError
from tollgate.gateway.keys import read_keys
from tollgate.gateway.template import (
    SUSPENSIONS_FOLDER,
    TEMPLATE,
    Gateway,
    render,
)
from tollgate.server.processes.child import Child
from tollgate.server.processes.state_lock import FolderLock

LOG_FILE = "nginx.log"
REQUESTS_FILE = "requests.log"
_LOCK_FILE = "gateway.lock"
_CONFIGURATION = "nginx.conf"
_START_S = 10.0
_GRACE_S = 12.0  # for requests in flight; the configuration gives them 10
_FOREGROUND = "daemon off;"
# The path that nginx.conf loads; Debian and the official image install it here.
NJS_MODULE = Path("/usr/lib/nginx/modules/ngx_http_js_module.so")


def find_nginx() -> Path:
    """
    Find the nginx of this machine; Debian installs it in a folder on root's PATH only.

    Raises:
        SetupError: There is none.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
    found = shutil.which("nginx", path=path)
    if found is None:
        raise SetupError("no nginx on PATH", remedy="apt-get install nginx")
    return Path(found)


class Nginx:
    """
    Run a gateway until it is stopped.

    Raises:
        InputError: The keys or a value are not valid, or an address is in use.
        SetupError: There is no nginx, it lacks its JavaScript module, or a gateway
            already runs in that folder.
        ServerError: nginx refuses the configuration, or does not start.
    """

    def __init__(self, gateway: Gateway, *, template: Path = TEMPLATE) -> None:
        self._binary = find_nginx()
        if not NJS_MODULE.exists():
            problem = f"no {NJS_MODULE}, nginx's JavaScript module"
            raise SetupError(problem, remedy="apt-get install libnginx-mod-http-js")
        self._gateway = gateway
        self._check_keys()
        render(gateway, template=template)
        # Do not change files that another gateway in this folder would reload.
        self._lock = FolderLock(gateway.state, name=_LOCK_FILE)
        try:
            self._suspensions = _open_folder(gateway.state / SUSPENSIONS_FOLDER)
        except BaseException:
            self._lock.release()
            raise
        try:
            # nginx's processes run as a user who may have no access along the path to
            # the state folder; they inherit an open folder.
            reachable = msgspec.structs.replace(
                gateway, suspensions=Path(f"/proc/self/fd/{self._suspensions}")
            )
            self._child = self._start(render(reachable, template=template))
        except BaseException:
            os.close(self._suspensions)
            self._lock.release()
            raise

    def _start(self, text: str) -> Child:
        (self._gateway.state / _CONFIGURATION).write_text(text)
        for place in (self._gateway.listen, self._gateway.health_listen):
            if _listens(place):
                raise InputError(place, "something else listens there")
        self._seen = self._digest()
        self._test_configuration()
        child = Child(
            self._command("-g", _FOREGROUND),
            name="nginx",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            log=self.log,
            keep_fds=(self._lock.fd, self._suspensions),
        )
        self._wait(child)
        return child

    @property
    def log(self) -> Path:
        """File of nginx's messages and, by default, of refused requests."""
        return self._gateway.state / LOG_FILE

    @property
    def workers(self) -> frozenset[int]:
        """Process ids of its workers; old workers end when their requests are done."""
        pid = self._child.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        return frozenset(int(one) for one in children.read_text().split())

    @property
    def pid(self) -> int:
        """Process id of its master process; the workers descend from it."""
        return self._child.pid

    def alive(self) -> bool:
        """Return whether it runs."""
        return self._child.alive()

    def reload_if_changed(self) -> bool:
        """
        Reload keys and certificates if a file changed; return whether one did.

        Raises:
            TollgateError: The files are not valid; nginx goes on with those it has.
        """
        digest = self._digest()
        if digest == self._seen:
            return False
        self._seen = digest
        self._check_keys()
        self._test_configuration()
        self._child.signal(signal.SIGHUP)
        return True

    def stop(self) -> None:
        """Wait for requests in flight, then stop nginx; call it once."""
        self._child.signal(signal.SIGQUIT)
        self._child.wait(_GRACE_S)
        self._child.stop(grace_s=1.0)
        os.close(self._suspensions)
        self._lock.release()

    def _check_keys(self) -> None:
        if self._gateway.keys is not None:
            read_keys(self._gateway.keys)

    def _command(self, *more: str) -> list[str]:
        state = self._gateway.state.absolute()
        configuration = str(state / _CONFIGURATION)
        # -e: the log before the configuration is read; Debian's default needs root.
        return [
            *(str(self._binary), "-p", f"{state}/", "-c", configuration),
            *("-e", "stderr", *more),
        ]

    def _test_configuration(self) -> None:
        done = subprocess.run(
            self._command("-t", "-q", "-g", _FOREGROUND),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            words = done.stderr.strip()[-1000:]
            raise ServerError("nginx", "refuses its configuration", log=words)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for path in self._gateway.files:
            try:
                digest.update(hashlib.sha256(path.read_bytes()).digest())
            except OSError:
                digest.update(b"absent")
        return digest.hexdigest()

    def _wait(self, child: Child) -> None:
        """Wait until both ports listen; the second port belongs to this gateway too."""
        until = time.monotonic() + _START_S
        places = [self._gateway.listen, self._gateway.health_listen]
        while places:
            if not child.alive() or time.monotonic() > until:
                words = self.log.read_text(errors="replace").strip()[-1000:]
                child.stop(grace_s=1.0)
                raise ServerError("nginx", "does not start", log=words)
            if _listens(places[0]):
                places.pop(0)
            else:
                time.sleep(0.02)


def _open_folder(folder: Path) -> int:
    folder.mkdir(mode=0o700, exist_ok=True)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _listens(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
