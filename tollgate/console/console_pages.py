"""
Answer the console's requests: one page, its files, JSON for polls, and documents.

JSON is cached for a second, however many browsers poll, and a poll reads no journal.
Every answer forbids scripts, styles and frames of other origins.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from tollgate import __version__
from tollgate.console.decision_lookup import BusyError, DecisionLookup
from tollgate.console.live_figures import SAMPLE_EVERY_S, LiveFigures
from tollgate.console.product_records import ProductRecords
from tollgate.console.sign_in import SignIn
from tollgate.errors import InputError, ServerError, TollgateError
from tollgate.supervisor.admin_port import AdminRequest, AdminResponse
from tollgate.supervisor.supervisor import Supervisor
from tollgate.templating import render
from tollgate.worker import Worker, stuck_loops

log = logging.getLogger(__name__)

CACHED_S = 1.0
ROOT = "/console"
SIGN_IN, SIGN_OUT = f"{ROOT}/sign-in", f"{ROOT}/sign-out"
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
# Cards and reports have their styles and pictures inside; nothing in them may run.
_DOCUMENT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; sandbox; "
    "frame-ancestors 'none'"
)
_STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "uplot.css": "text/css; charset=utf-8",
    "uplot.js": "text/javascript; charset=utf-8",
}
_KINDS = {
    ".html": _HTML,
    ".json": _JSON,
    ".png": "image/png",
}
_DOCUMENT = re.compile(rf"{ROOT}/files/([\w.-]+)/([0-9]{{1,18}})/([\w.-]+)")


class ConsoleSources(msgspec.Struct, frozen=True):
    """
    Everything that the console reads.

    Attributes:
        supervisor: The server's supervisor.
        metrics_url: Address of Triton's metrics page.
        repository: The model repository, a folder.
        state: The state folder.
        stream_url: Returns the Redis with decisions that are not sealed yet; empty for
            none.
    """

    supervisor: Supervisor
    metrics_url: str
    repository: Path
    state: Path
    stream_url: Callable[[], str]


class Console:
    """
    Answer requests below `/console`.

    Args:
        sign_in: Decides which requests are admitted.
    """

    def __init__(self, sources: ConsoleSources, *, sign_in: SignIn) -> None:
        self._supervisor = sources.supervisor
        self._sign_in = sign_in
        self._records = ProductRecords(sources.repository, sources.state)
        self._products = [one.name for one in sources.supervisor.products]
        self._figures = LiveFigures(
            sources.metrics_url,
            words={one: self._records.words(one) for one in self._products},
        )
        self._lookup = DecisionLookup(
            sources.state,
            repository=sources.repository,
            stream_url=sources.stream_url,
        )
        self._static = {name: _static_file(name) for name in _STATIC}
        self._cached: dict[str, tuple[float, bytes]] = {}
        self._caching = threading.Lock()
        self._worker = Worker(
            "console", self._sample, pause_s=SAMPLE_EVERY_S, at_once=True, gentle=True
        )

    def __enter__(self) -> Console:
        """Start to sample the metrics page."""
        self._worker.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop sampling, and end a look-up that is running."""
        self._lookup.close()
        self._worker.stop()

    def respond(self, request: AdminRequest) -> AdminResponse:
        """Answer a request; unknown paths and other methods are refused."""
        path = urlsplit(request.target).path
        if path.startswith(f"{ROOT}/static/"):
            return self._static_page(path.rpartition("/")[2])
        if self._sign_in.required and path in (SIGN_IN, SIGN_OUT):
            return self._change_sign_in(path, request)
        if request.method != "GET":
            return _refused(405, "only GET is answered here")
        if not self._sign_in.admits(request.headers):
            return self._not_admitted(path)
        if path in (ROOT, f"{ROOT}/"):
            return self._page()
        if path.startswith(f"{ROOT}/data/"):
            return self._data(path.removeprefix(f"{ROOT}/data/"), request.target)
        if path.startswith(f"{ROOT}/files/"):
            return self._document(path)
        return _refused(404, "not found")

    def _sample(self) -> None:
        """Sample the page; one that does not answer is a state that the page shows."""
        for product in self._products:
            self._figures.set_words(product, self._records.words(product))
        try:
            self._figures.sample()
        except ServerError:
            return

    # Pages and files.

    def _page(self) -> AdminResponse:
        values = {
            "products": self._products,
            "root": ROOT,
            "version": __version__,
            "static": {name: digest for name, (digest, _) in self._static.items()},
            "signed_in": self._sign_in.required,
        }
        page = render("tollgate/console/templates/console.html.j2", values)
        self._lookup.start()
        return _response(200, _HTML, page.encode())

    def _static_page(self, name: str) -> AdminResponse:
        if name not in self._static:
            return _refused(404, "not found")
        headers = {"Cache-Control": "public, max-age=86400"}  # addresses have a digest
        return _response(200, _STATIC[name], self._static[name][1], headers=headers)

    def _document(self, path: str) -> AdminResponse:
        content: bytes | None = None
        if path == f"{ROOT}/files/monitor.html":
            content = self._records.monitor_report()
        elif found := _DOCUMENT.fullmatch(path):
            content = self._records.document(found[1], int(found[2]), name=found[3])
        if content is None:
            return _refused(404, "there is no such document")
        kind = _KINDS[Path(path).suffix]
        headers = {"Content-Security-Policy": _DOCUMENT_POLICY}
        return _response(200, kind, content, headers=headers)

    # Signing in.

    def _not_admitted(self, path: str) -> AdminResponse:
        if not self._sign_in.required:
            problem = "this host name is not of this machine: open 127.0.0.1, or set a "
            return _refused(403, problem + "secret for the console")
        if path in (ROOT, f"{ROOT}/"):
            return self._sign_in_page("", status=401)
        return _refused(401, "sign in first")

    def _change_sign_in(self, path: str, request: AdminRequest) -> AdminResponse:
        if request.method != "POST":
            return self._sign_in_page("")
        if path == SIGN_OUT:
            return _redirect(self._sign_in.no_cookie())
        wait_s = self._sign_in.wait_s(request.address)
        if wait_s > 0:
            problem = f"too many wrong secrets; wait {wait_s:.0f} s"
            headers = {"Retry-After": str(int(wait_s) + 1)}
            return self._sign_in_page(problem, status=429, headers=headers)
        form = parse_qs(request.body.decode("utf-8", "replace"))
        secret = form.get("secret", [""])[0].strip()
        if not self._sign_in.check(secret, address=request.address):
            log.warning("%s sent a wrong secret to the console", request.address)
            return self._sign_in_page("This is not the secret.", status=403)
        log.info("%s signed in to the console", request.address)
        return _redirect(self._sign_in.cookie())

    def _sign_in_page(
        self, problem: str, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> AdminResponse:
        values = {
            "problem": problem,
            "sign_in": SIGN_IN,
            "root": ROOT,
            "static": {name: digest for name, (digest, _) in self._static.items()},
        }
        page = render("tollgate/console/templates/sign_in.html.j2", values)
        return _response(status, _HTML, page.encode(), headers=headers)

    # Data for polls.

    def _data(self, name: str, target: str) -> AdminResponse:
        query = {key: one[-1] for key, one in parse_qs(urlsplit(target).query).items()}
        if name == "overview":
            return _response(200, _JSON, self._once("overview", self._overview))
        product = query.get("product", "")
        if product not in self._products:
            return _refused(404, f"this server has no product {product!r}")
        if name == "live":
            body = self._once(f"live {product}", lambda: self._live(product))
            return _response(200, _JSON, body)
        if name == "points":
            return self._points(product, query.get("after", ""))
        if name == "records":
            body = self._once(f"records {product}", lambda: self._read_records(product))
            return _response(200, _JSON, body)
        if name == "decision":
            return self._decision(product, query.get("id", ""))
        return _refused(404, "not found")

    def _once(self, key: str, make: Callable[[], dict[str, Any]]) -> bytes:
        """Return the JSON of this second; one caller at a time computes it."""
        with self._caching:
            made_s, body = self._cached.get(key, (0.0, b""))
            if time.monotonic() - made_s >= CACHED_S or not body:
                body = msgspec.json.encode(make())
                self._cached[key] = (time.monotonic(), body)
            return body

    def _overview(self) -> dict[str, Any]:
        self._sample()
        draining = self._supervisor.draining
        products = []
        for one in self._supervisor.products:
            found = self._figures.figures(one.name)
            status = one.reconciler.status
            whole = found.latencies[-1]
            products.append(
                {
                    "name": one.name,
                    "ready": one.ready and not draining,
                    "problem": "draining" if draining else one.problem,
                    "release": one.release or status.running,
                    "desired": status.desired,
                    "state": status.state,
                    "doing": status.doing,
                    "since": status.since,
                    "canary": status.canary,
                    "unreachable": status.unreachable,
                    "rate": found.rate,
                    "p50_ms": whole.p50_ms,
                    "p99_ms": whole.p99_ms,
                    "failed": found.failed,
                    "degraded": found.degraded,
                    "breaker": found.breaker,
                }
            )
        return {
            "time_s": time.time(),
            "sampled_s": self._figures.sampled_s,
            "problem": self._figures.problem,
            "products": products,
            "stuck_loops": stuck_loops(),
            "faults": self._records.faults(),
        }

    def _live(self, product: str) -> dict[str, Any]:
        self._sample()
        return {
            "figures": self._figures.figures(product),
            "words": self._records.words(product),
            "target_ms": self._records.slo(product).latency_target_ms,
        }

    def _points(self, product: str, after: str) -> AdminResponse:
        try:
            after_s = float(after or 0)
        except ValueError:
            return _refused(400, "after is not a number of seconds")
        points = self._figures.points(product, after_s=after_s)
        body = {"words": self._records.words(product), "points": points}
        return _response(200, _JSON, msgspec.json.encode(body))

    def _read_records(self, product: str) -> dict[str, Any]:
        problem = ""
        try:
            trials = self._records.trials(product, now_s=time.time())
        except TollgateError as error:
            trials, problem = [], str(error)
        return {
            "history": self._records.history(product),
            "documents": self._records.documents(product),
            "trials": trials,
            "trials_problem": problem,
            "drift": self._records.drift(product),
        }

    def _decision(self, product: str, decision: str) -> AdminResponse:
        try:
            body = self._lookup.explain(product, decision)
        except BusyError as error:
            return _refused(429, str(error))
        except InputError as error:
            return _refused(404, str(error))
        return _response(200, _JSON, body)


def _static_file(name: str) -> tuple[str, bytes]:
    """Read a file of the package: its short digest and its content."""
    content = (resources.files("tollgate.console") / "static" / name).read_bytes()
    return hashlib.sha256(content).hexdigest()[:12], content


def _redirect(cookie: str) -> AdminResponse:
    headers = {"Location": ROOT, "Set-Cookie": cookie}
    return _response(303, _JSON, b"", headers=headers)


def _refused(status: int, problem: str) -> AdminResponse:
    body = msgspec.json.encode({"problem": problem})
    return _response(status, _JSON, body)


def _response(
    status: int, kind: str, body: bytes, *, headers: dict[str, str] | None = None
) -> AdminResponse:
    common = {
        "Content-Security-Policy": _POLICY,
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return AdminResponse(status, kind, body, headers=common | (headers or {}))
