"""
Write the files that the package and the chart both hold: `make dashboards`.

Grafana's SDK makes the dashboards of the package; then the chart gets copies of them
and of the gateway's two files, since a chart holds no file from outside its folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tollgate.gateway.template import INSPECTION, TEMPLATE
from tollgate.observability.dashboards import FOLDER, dashboard_files

CHART_FILES = Path(__file__).resolve().parent.parent / "helm" / "tollgate" / "files"


def main() -> None:
    """Write them all."""
    for name, text in dashboard_files().items():
        (FOLDER / name).write_text(text)
        shutil.copyfile(FOLDER / name, CHART_FILES / "dashboards" / name)
    for path in (TEMPLATE, INSPECTION):
        shutil.copyfile(path, CHART_FILES / "gateway" / path.name)
    print(f"written: {FOLDER}, {CHART_FILES}")


if __name__ == "__main__":
    main()
