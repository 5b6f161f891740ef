"""
Build each loop in this folder; CONTRIBUTING.md, "Compiled loops", says how and why.

    python setup.py build_ext --inplace    # here, for the checkout
    python -m pip wheel .                  # a wheel for another machine
"""

from glob import glob
from pathlib import Path

from setuptools import Extension, setup

PACKAGE = "tollgate._compiled"

setup(
    packages=[],
    package_dir={PACKAGE: "."},
    ext_modules=[
        Extension(
            f"{PACKAGE}.{Path(source).stem}",
            [source],
            # The bits of NumPy: no multiplication and addition in one step, and
            # integers that wrap around.
            extra_compile_args=["-O3", "-g0", "-ffp-contract=off", "-fwrapv"],
        )
        for source in sorted(glob("*.pyx"))
    ],
)
