"""What a failed import shows of the interpreter that the ranks run in, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EXTRAS = {
    "torch": ("torch", "safetensors"),
    "pandas": ("pandas",),
    "data": ("h5py", "hdf5plugin", "pyarrow"),
    "xgboost": ("xgboost",),
    "lightgbm": ("lightgbm",),
    "huggingface": ("accelerate", "transformers"),
    "jax": ("jax", "orbax"),
    "sklearn": ("joblib", "sklearn", "skops"),
    "lightning": ("lightning",),
    "serve": ("fastapi", "uvicorn"),
    "tensorflow": ("tensorflow", "tf_keras"),
}
EXTRA_OF = {module: extra for extra, modules in _EXTRAS.items() for module in modules}
"""The extra of hpctrain that brings a module, by its name for ``import``."""


def failed_import(error: BaseException) -> ImportError | None:
    """Return the import that an exception is about; None if there is none.

    Not collective. That is the exception itself, or what it was raised from. A shared library that
    cannot be opened does not count: those of drivers belong to a node, which may have lost one.
    """
    for found in (error, error.__cause__):
        if isinstance(found, ImportError) and "shared object file" not in str(found):
            return found
    return None


def missing_module(error: ImportError) -> str:
    """Return the full name of the module that is not there; empty if it is not about one.

    Not collective.
    """
    return (error.name or "") if isinstance(error, ModuleNotFoundError) else ""


def advise_on_import(error: ImportError) -> str:
    """Return what to type, for the interpreter that this process runs in. Not collective."""
    python = sys.executable
    module = missing_module(error)
    package = module.partition(".")[0]
    if not module:
        return (
            f"What {python} finds does not fit together, or lacks a part. Look with {python} -m "
            f"pip check, and mend it there, or load another module in SlurmConfig(setup=[...])."
        )
    if package == "horovod":
        return f"{python} has no {module}: {python} -m hpctrain.cli install horovod."
    if package in EXTRA_OF:
        return f"{python} has no {module}: {python} -m pip install 'hpctrain[{EXTRA_OF[package]}]'."
    return (
        f"{python} has no {module}. Of a package: {python} -m pip install {package} (some have "
        f"another name there), or the site's `module load` in SlurmConfig(setup=[...]). A file of "
        f"your own: put it beside the script."
    )


def is_found_here(module: str, path: Sequence[str]) -> bool:
    """Return whether this process could import a module. Not collective; nothing is imported.

    Parameters
    ----------
    module
        Its full name.
    path
        Where to look, beside this process's own path.
    """
    import importlib

    importlib.invalidate_caches()
    places: Sequence[str] | None = [*path, *sys.path]
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        if places is None:
            return False
        # Not importlib.util.find_spec: it believes sys.modules, and imports packages.
        found = (finder.find_spec(name, places) for finder in sys.meta_path)
        try:
            spec = next((spec for spec in found if spec is not None), None)
        except ImportError:  # a finder may refuse a module in so many words
            return False
        if spec is None:
            return False
        places = spec.submodule_search_locations
    return True
