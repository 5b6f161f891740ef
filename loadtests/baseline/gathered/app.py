"""
The `lean` service with batching: it decides all pending requests in one batch.

    uvicorn loadtests.baseline.gathered.app:app
"""

from __future__ import annotations

from loadtests.baseline.gatherer import Gatherer
from loadtests.baseline.lean.work import Purchase, Work
from loadtests.baseline.service import service

work = Work()
decide = Gatherer(work.decide).decide
app = service(Purchase, decide=decide, begin=work.begin, end=work.end)
