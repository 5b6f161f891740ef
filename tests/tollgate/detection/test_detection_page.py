"""The code of docs/detection.md runs as it is written."""

import re
from pathlib import Path

from tests.support.detection.readings import machine_readings

PAGE = Path(__file__).parents[3] / "docs" / "detection.md"


def test_the_code_of_the_page_finds_the_simulated_anomalies():
    """It has one block of Python, which gets a table of readings."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    table = machine_readings(rows=3_000, sensors=2)
    values = {"table": table}
    exec(code, values)  # the page is ours
    own = table.filter(values["one"])["in_window"].to_numpy()
    assert own[values["onsets"]].any()
    assert len(values["graph"]) > 1_000
