"""
The fastest service written by hand: each request alone, one worker per core.

    uvicorn loadtests.baseline.lean.app:app
"""

from __future__ import annotations

from loadtests.baseline.lean.work import Purchase, Work
from loadtests.baseline.service import service

work = Work()
app = service(Purchase, decide=work.decide, begin=work.begin, end=work.end)
