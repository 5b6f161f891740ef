"""
The fastest service written by hand: each request alone, one worker per core.

    uvicorn loadtests.baseline.lean.app:app
"""

from __future__ import annotations

from loadtests.baseline.lean.service import service
from loadtests.baseline.lean.work import Work

work = Work()
app = service(work, decide=work.decide)
