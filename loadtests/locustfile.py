"""
Users of a running server, with Locust's page or without: `make locust`, or

    locust -f loadtests/locustfile.py --headless --scenario ramp --seconds 30 --rate 200

docs/loadtests.md says what its figures are, and what they are not.
"""

from __future__ import annotations

import logging
import shlex
import sys
from typing import Any

import gevent
from grpc.experimental.gevent import init_gevent
from locust import LoadTestShape, User, events, task

from loadtests.crowd.crowd import BY_HAND, Crowd, names
from tollgate.errors import TollgateError
from tollgate.load.results import ANSWERED

init_gevent()  # before the first channel: gRPC then waits as greenlets do

_TICK_S = 1.0  # interval at which Locust calls a shape
_SAYS = logging.getLogger("tollgate")
_crowd: Crowd | None = None


@events.init_command_line_parser.add_listener
def _add_options(parser: Any) -> None:
    add = parser.add_argument
    rate_help = "Requests/s at the busiest; 0: the scenario's"
    scenario_help = "How many users there are; by hand: as many as you say"
    add("--scenario", choices=names(), default=BY_HAND, help=scenario_help)
    add(
        "--rate",
        type=float,
        default=0.0,
        help=rate_help,
    )
    add("--seconds", type=float, default=0.0, help="Length of a scenario; 0: its own")
    add("--rows", type=int, default=0, help="In each request; 0: the scenario's")
    mix_help = "PRODUCT[:ROWS][=WEIGHT],…; empty: fraud"
    add("--mix", default="", help=mix_help)
    pace_help = "Requests/s of each user, at random; 0: as soon as there is an answer"
    add("--per-user", type=float, default=2.0, help=pace_help)
    # Files and folders are options of the command line only, not of the page.
    hidden = {"include_in_web_ui": False}
    raw_help = "File for loadtests.pages; needs a scenario"
    add("--raw", default="", help=raw_help, **hidden)
    state_help = "State folder of the server, where --host is empty"
    add("--state", default=".tollgate", help=state_help, **hidden)
    repository_help = "Repository that the server of --host serves"
    add("--repository", default="model_repository", help=repository_help, **hidden)


@events.init.add_listener
def _check(environment: Any, **_: Any) -> None:
    """Exit at once with one line, if the options are not valid or no server runs."""
    try:
        Crowd(environment.parsed_options, host=environment.host or "").close()
    except TollgateError as error:
        print(f"locust: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


class Scenes(LoadTestShape):
    """The number of users that the scenario requires, or that Locust's user set."""

    use_common_options = True

    def reset_time(self) -> None:
        """Restart with the present options of the page."""
        global _crowd
        super().reset_time()
        environment = self.runner.environment
        self._warm = False
        try:
            _crowd = Crowd(environment.parsed_options, host=environment.host or "")
        except TollgateError as error:
            _SAYS.error("%s", error)
            _crowd = None

    def tick(self) -> tuple[int, float] | None:
        """Return users and users started per second; None ends the run."""
        options = self.runner.environment.parsed_options
        if _crowd is None:
            return None
        if not _crowd.shaped:
            over = options.run_time and self.get_run_time() > int(options.run_time)
            return None if over else (options.num_users or 1, options.spawn_rate or 1)
        at_s = _crowd.since_s() if _crowd.recorder.requests else 0.0
        if not self._warm and at_s >= _crowd.scenario.warm_up_s:
            self._warm = True
            self.runner.stats.reset_all()
        if at_s >= _crowd.scenario.seconds:
            return None
        users = _crowd.users(at_s + _TICK_S / 2)
        return users, max(1, abs(users - self.get_current_user_count()))


@events.test_start.add_listener
def _begin(environment: Any, **_: Any) -> None:
    if _crowd is not None:
        _crowd.begin()


@events.test_stop.add_listener
def _end(environment: Any, **_: Any) -> None:
    global _crowd
    if _crowd is None:
        return
    _SAYS.info("%s", _crowd.end(command=shlex.join(["locust", *sys.argv[1:]])))
    _crowd.close()
    _crowd = None


class Caller(User):
    """Requests a decision of the mix, waits for the answer, then for its next time."""

    def on_start(self) -> None:
        """Start at a random time."""
        assert _crowd is not None
        self._pace = _crowd.pace()
        gevent.sleep(self._pace.wait_s())

    def wait_time(self) -> float:
        """Return the wait of the pace."""
        return self._pace.wait_s()

    @task
    def ask(self) -> None:
        """Send one request, and report its result to Locust."""
        assert _crowd is not None
        one = _crowd.ask()
        self.environment.events.request.fire(
            request_type="gRPC",
            name=one.name,
            response_time=one.took_ms,
            response_length=0,
            exception=None if one.kind == ANSWERED else one.kind,
            context={},
        )
