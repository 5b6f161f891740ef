"""
The strongest service by hand, which decides in one go what waits at the same time.

    uvicorn loadtests.baseline.gathered.app:app
"""

from __future__ import annotations

from loadtests.baseline.gathered.gatherer import Gatherer
from loadtests.baseline.lean.service import service
from loadtests.baseline.lean.work import Work

work = Work()
app = service(work, decide=Gatherer(work.decide).decide)
