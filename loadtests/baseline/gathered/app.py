"""
The `lean` service with batching: it decides all pending requests in one batch.

    uvicorn loadtests.baseline.gathered.app:app
"""

from __future__ import annotations

from loadtests.baseline.gatherer import Gatherer
from loadtests.baseline.lean.service import service
from loadtests.baseline.lean.work import Work

work = Work()
app = service(work, decide=Gatherer(work.decide).decide)
