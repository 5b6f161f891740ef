"""
Convert trained models to ONNX, and prove that they answer as before.

The library `tollgate` has to be installed as well, in the same version. No requirement
of a wheel can say so: at PyPI, its name is another project's.
"""

__version__ = "0.1.0"


def _require_library() -> None:
    """
    Check that `tollgate` is the library of this version.

    Raises:
        ImportError: It is missing, another version, or another project's package.
    """
    try:
        import tollgate
    except ModuleNotFoundError:
        found = "it is not installed"
    else:
        parts = getattr(tollgate, "PARTS", ())
        version = getattr(tollgate, "__version__", "")
        if "tollgate_converters" in parts and version == __version__:
            return
        where = f"in {getattr(tollgate, '__file__', None)}"
        if "tollgate_converters" in parts:
            found = f"found version {version} {where}"
        else:
            found = f"found another project's package {where}"
    raise ImportError(
        f"tollgate_converters {__version__} needs the library of Tollgate "
        f"{__version__}: {found}; install its wheel file with: "
        f"pip install ./dist/tollgate-{__version__}-py3-none-any.whl",
        name="converters",
    )


_require_library()
