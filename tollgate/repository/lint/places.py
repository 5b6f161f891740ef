"""Find the line of the file that a finding points to."""

from __future__ import annotations

import re
from pathlib import Path

from tollgate.repository.findings import Finding
from tollgate.repository.lint.locator import Node, line_of, read_tree

_LINE = re.compile(r"line (\d+)(?:: )?")


class Places:
    """Read each file that findings name once, to find their lines."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._trees: dict[str, Node] = {}

    def where(self, finding: Finding) -> str:
        """Return the position inside the file, without its line number."""
        return _LINE.sub("", finding.where, count=1)

    def line(self, finding: Finding) -> int:
        """Find the line, from 1; 0 for the file as a whole."""
        if finding.line:
            return finding.line
        if line := _LINE.match(finding.where):
            return int(line[1])
        kind = Path(finding.file).suffix
        if kind == ".pbtxt" and self._text(finding.file):
            return line_of(self._tree(finding.file), finding.at or finding.where)
        if kind in (".json", ".yaml") and finding.where:
            return self._key_line(finding)
        return 0

    def _text(self, file: str) -> str:
        if file not in self._texts:
            path = Path(file)
            readable = path.is_file()
            self._texts[file] = path.read_text("utf-8", "replace") if readable else ""
        return self._texts[file]

    def _tree(self, file: str) -> Node:
        if file not in self._trees:
            self._trees[file] = read_tree(self._text(file))
        return self._trees[file]

    def _key_line(self, finding: Finding) -> int:
        """Find the first line with the last key of `where`, in JSON or YAML."""
        key = re.escape(finding.where.rpartition(": ")[2].partition("[")[0])
        pattern = re.compile(rf"""^\s*(?:-\s+)?["']?{key}["']?\s*:""", re.MULTILINE)
        text = self._text(finding.file)
        found = pattern.search(text)
        return text.count("\n", 0, found.end()) + 1 if found else 0
