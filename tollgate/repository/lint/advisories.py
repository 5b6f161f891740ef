"""
List published vulnerabilities of Triton, with the release that fixes each.

The table is small: it holds those whose fix a source could be found for. A release that
is not named here is not proven safe; NVIDIA's bulletins are the authority.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from tollgate.errors import InputError

_BULLETIN = "nvidia.custhelp.com/app/answers/detail/a_id/"
_RELEASE = re.compile(r"\d\d\.(?:0[1-9]|1[0-2])")
_VERSION = re.compile(r"2\.(\d+)(?:\.(\d+))?")

HTTP = "http"
SHARED_MEMORY = "shared memory"
NETWORK = "network"


class Advisory(msgspec.Struct, frozen=True):
    """
    One group of vulnerabilities with the same precondition and the same fix.

    Attributes:
        names: CVE numbers.
        fixed: First release that is known to have the fix, year and month.
        way: Interface that must be open for it: HTTP, SHARED_MEMORY or NETWORK (any
            protocol).
        harm: Description of the possible harm.
        source: Source for fix and harm.
    """

    names: tuple[str, ...]
    fixed: str
    way: str
    harm: str
    source: str


ADVISORIES = (
    Advisory(
        names=("CVE-2025-23310", "CVE-2025-23311"),
        fixed="25.07",
        way=HTTP,
        harm="a chunked HTTP request overflows the stack: a crash, or code execution",
        source=_BULLETIN + "5687",
    ),
    Advisory(
        names=("CVE-2025-23319", "CVE-2025-23320", "CVE-2025-23334"),
        fixed="25.07",
        way=SHARED_MEMORY,
        harm="an error names the Python backend's shared memory, which can then be "
        "registered and written: code execution",
        source=_BULLETIN
        + "5687, github.com/triton-inference-server/pytriton/issues/108",
    ),
    Advisory(
        names=("CVE-2026-24206", "CVE-2026-24207"),
        fixed="26.04",
        way=NETWORK,
        harm="authentication is bypassed: models can be loaded, code executed",
        source=_BULLETIN + "5828; 26.04 by github.com/cms-sw/cmssw/pull/51027",
    ),
    Advisory(
        names=("CVE-2026-24208", "CVE-2026-24209"),
        fixed="26.04",
        way=NETWORK,
        harm="a path leads out of its folder: the server fails",
        source=_BULLETIN + "5828; 26.04 by github.com/cms-sw/cmssw/pull/51027",
    ),
)

# Triton's own version numbers: 2.51 is 24.10, and each month has the next minor one;
# but 25.07 is 2.59.1, a patch of 25.06 (server pull requests 6971 and 8844, pytriton
# issue 108).
_FIRST_MINOR, _FIRST_MONTH = 51, 24 * 12 + 9
_PATCHED_MINOR = 59


def release_of(text: str) -> str:
    """
    Parse a release of Triton: "26.07", or its version "2.51.0".

    Raises:
        InputError: It is neither.
    """
    if _RELEASE.fullmatch(text):
        return text
    version = _VERSION.fullmatch(text)
    if version is None or int(version[1]) < _FIRST_MINOR:
        problem = f"{text!r} is no release such as 26.07, nor a version from 2.51 on"
        raise InputError("target", problem)
    minor, patch = int(version[1]), int(version[2] or 0)
    later = minor > _PATCHED_MINOR or (minor == _PATCHED_MINOR and patch > 0)
    year, month = divmod(_FIRST_MONTH + minor - _FIRST_MINOR + later, 12)
    return f"{year}.{month + 1:02}"


def known_for(release: str) -> Iterator[Advisory]:
    """Yield the vulnerabilities without a known fix in a release (year, month)."""
    for advisory in ADVISORIES:
        if release < advisory.fixed:
            yield advisory
