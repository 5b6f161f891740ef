"""Tests of adding up processes."""

from __future__ import annotations

import os
import subprocess
import sys

from tollgate.load.process_usage import descendants, use_of


def test_children_of_children_count() -> None:
    """Triton's steps are its children; their memory is the product's."""
    code = "import subprocess; subprocess.run(['sh', '-c', 'read wait'])"
    with subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True); {code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        while len(found := descendants([child.pid])) < 2:
            assert child.poll() is None
        assert found[0] == child.pid
        assert child.pid in descendants([os.getpid()])
        use = use_of([child.pid])
        assert use.processes == 2
        assert 0 < use.pss_mb <= use.rss_mb
        child.stdin.close()
    assert use_of([child.pid]).processes == 0
