"""
A test server for the tests of applications that call Tollgate.

    with TestServer() as server:
        server.answer("t-1", Answer(decision="decline", score=0.97))
        ...

It speaks the contract over real gRPC, in this process and without Triton, and follows a
script: answers, faults, delays. It needs the extra `client`.
"""

from tollgate.testing.script import Answer, Asked, RankedAnswer
from tollgate.testing.server import TestServer

__all__ = ["Answer", "Asked", "RankedAnswer", "TestServer"]
