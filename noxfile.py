"""The checks of hpctrain, one session each; ``bash tests/run.sh`` runs them all.

Nothing is installed: a session uses the programs beside the nox that runs it, so
``.venv/bin/nox -s types`` works without a network and without activating ``.venv``. But for
``tensorflow``, which has an environment of its own below ``.nox``.
"""

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["format", "lint", "types", "imports", "docstrings", "docs", "tests"]

# Debian's names; their Slurms are 22.05, 24.11 and whatever is the newest.
SUITES = ("bookworm", "trixie", "sid")


def run(session: nox.Session, program: str, *arguments: str) -> None:
    """Run a program of the environment that nox itself is in."""
    session.run(str(Path(sys.executable).with_name(program)), *arguments, external=True)


@nox.session
def format(session: nox.Session) -> None:
    """Check the layout of the code; ``nox -s format -- --fix`` mends it."""
    run(session, "ruff", "format", *([] if "--fix" in session.posargs else ["--check"]), ".")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the code with ruff; ``nox -s lint -- --fix`` mends what can be mended."""
    run(session, "ruff", "check", *session.posargs, ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types, ``mypy --strict``."""
    run(session, "mypy", "--strict", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """Check who imports whom; the contracts are in ``setup.cfg``."""
    run(session, "lint-imports", "--config", "setup.cfg", *session.posargs)


@nox.session
def docstrings(session: nox.Session) -> None:
    """Check the numpydoc form of the docstrings of the public API."""
    modules = session.posargs or sorted(str(path) for path in Path("hpctrain").rglob("*.py"))
    # Not session.run, which prints the whole list of modules, and twice if there is a finding.
    numpydoc = Path(sys.executable).with_name("numpydoc")
    if subprocess.run([numpydoc, "lint", *modules], check=False).returncode:
        session.error("docstrings to mend: see above")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; ``nox -s docs -- -t online`` also links to other projects."""
    # Pages of names that are gone would stay, and be warned about.
    for built in ("docs/_build", "docs/generated"):
        shutil.rmtree(built, ignore_errors=True)
    options = ["-n", "-W", "--keep-going", "-q", *session.posargs]
    run(session, "sphinx-build", *options, "docs", "docs/_build/html")
    session.log("docs/_build/html/index.html")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; ``nox -s tests -- -m mpi`` runs a part."""
    run(session, "pytest", *session.posargs)


@nox.session
def properties(session: nox.Session) -> None:
    """Run the tests that compare random examples with a reference, with 5000 examples of each."""
    os.environ.setdefault("HPCTRAIN_EXAMPLES", "5000")
    run(session, "pytest", "-m", "properties", "--timeout=3600", *session.posargs)


@nox.session
def resilience(session: nox.Session) -> None:
    """Run the tests that CI leaves out, marked ``long``; ``nox -s resilience -- -k kill``."""
    run(session, "pytest", "-m", "long", *session.posargs)


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def tensorflow(session: nox.Session) -> None:
    """Run the tests of TensorFlow, without torch; ``nox -s tensorflow -- -k fit`` runs a part."""
    if sys.version_info >= (3, 14) and os.environ.get("HPCTRAIN_REQUIRE_ALL") != "1":
        session.skip("TensorFlow is for Python 3.10 to 3.13; PYTHON=python3.13 names another one")
    home = Path(session.virtualenv.location)
    recipe = ("constraints.txt", "constraints-tensorflow.txt", "pyproject.toml", "setup.cfg")
    key = hashlib.sha256(b"".join(Path(name).read_bytes() for name in recipe)).hexdigest()
    stamp = home / "hpctrain.stamp"
    if not stamp.exists() or stamp.read_text() != key:
        constraints = home / "constraints.txt"
        constraints.write_text(tensorflow_constraints())
        install = ("--quiet", "--constraint", str(constraints))
        # The same as tensorflow, without half a gigabyte for GPUs, where it exists.
        x86, other = ('; platform_machine == "x86_64"', '; platform_machine != "x86_64"')
        session.install(*install, "setuptools", f"tensorflow-cpu{x86}", f"tensorflow{other}")
        # By its dependencies it wants the package that is called tensorflow.
        session.install(*install, "--no-deps", "tf_keras")
        session.install(*install, "--no-build-isolation", "-e", ".[local,data,examples]")
        session.install(*install, "pytest", "pytest-timeout")
        stamp.write_text(key)
    options = ["tests/tensorflow_trainer", "-o", f"cache_dir={home}/pytest_cache"]
    session.run("pytest", *options, *session.posargs)


@nox.session
def slurm_versions(session: nox.Session) -> None:
    """Test with the Slurms of other Debians: ``nox -s slurm_versions -- [SUITE...] [OPTION...]``.

    Without options the tests that are marked ``matrix``, whose results go to
    ``docs/tested-with.json``; options are pytest's: ``-- sid -m slurm`` runs all that need Slurm.
    What a test imports and cannot be installed there is then a reason to skip it, and named.
    """
    suites = list(itertools.takewhile(str.isalpha, session.posargs)) or list(SUITES)
    options = session.posargs[len(suites) :] if session.posargs else []
    if unknown := set(suites) - set(SUITES):
        session.error(f"unknown suites: {', '.join(sorted(unknown))}. Use some of {SUITES}.")
    # Files with other tests may import what is not there.
    marked = [str(p) for p in Path("tests").rglob("test_*.py") if "mark.matrix(" in p.read_text()]
    # CI has 8 minutes, with the root; on two idle cores the tests take 3.
    in_ci = os.environ.get("CI") == "true"
    matrix = ["-m", "matrix"]
    if in_ci:
        matrix = ["-m", "matrix and not matrix(ci=False)", "--session-timeout=400"]
    variables = [] if options else ["HPCTRAIN_REQUIRE_ALL=1"]
    failed = []
    for suite in suites:
        extent = ["--all"] if options else [] if in_ci else ["--torch"]
        enter = ["bash", "tests/slurm_versions/root.sh", *extent, suite]
        with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".xml") as junit:
            # That one follows the README, whose packages come from the environment of the checkout.
            left_out = "--ignore=tests/newcomer"
            pytest = ["pytest", "-p", "no:cacheprovider", left_out, f"--junitxml={junit.name}"]
            argv = [*enter, "env", *variables, *pytest, *(options or [*matrix, *marked])]
            done = subprocess.run(argv, check=False)
            if done.returncode:
                failed.append(suite)
            if not options and not in_ci:
                describe = [*enter, "python", "docs/tested_with.py", junit.name]
                if subprocess.run(describe, check=False).returncode:
                    failed.append(suite)
    if failed:
        session.error(f"not everything passed with the Slurm of {', '.join(dict.fromkeys(failed))}")


@nox.session(venv_backend="virtualenv", reuse_venv=True)
def ray(session: nox.Session) -> None:
    """Ask a real Ray, and compare with what hpctrain answers.

    Ray has an environment of its own; its answers replace those in tests/ray_conformance.
    """
    session.install("--quiet", "--constraint", "constraints.txt", "torch")
    packages = ("pandas", "pyarrow", "pillow", "scikit-learn", "xgboost-cpu", "lightgbm")
    session.install("--quiet", "--constraint", "constraints.txt", "ray[train,data]", *packages)
    # Ray gives workers 30 seconds to start.
    patience = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
    for script in ("train_cases.py", "record_data.py"):
        session.run("python", f"tests/ray_conformance/{script}", *session.posargs, env=patience)
    run(session, "pytest", "tests/ray_conformance")


# What needs neither Slurm, MPI nor torch.
PARTS = ["-p", "no:cacheprovider", "-m", "not slurm and not mpi and not gpu"]
PARTS += [f"tests/{name}" for name in ("control", "execute", "launch", "plan", "rundir", "slurm")]


@nox.session
def pythons(session: nox.Session) -> None:
    """Check the types for every Python, and test parts with the Pythons of other Debians.

    Debian has none that is older than 3.11, nor 3.12: ``nox -s python``.
    """
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        run(session, "mypy", "--strict", f"--python-version={version}")
    for suite in SUITES:
        enter = ["bash", "tests/slurm_versions/root.sh", suite]
        session.run(*enter, "pytest", *PARTS, *session.posargs, external=True)


@nox.session(venv_backend="virtualenv", reuse_venv=True, python=["3.10", "3.12"])
def python(session: nox.Session) -> None:
    """Test parts, and data, with Pythons that no Debian has; what is not on PATH is skipped.

    Those of pyenv are where ``PYENV_VERSION=3.11:3.10:3.12`` names them.
    """
    install = ("--quiet", "--constraint", "constraints.txt")
    session.install(*install, "setuptools")
    session.install(*install, "--no-build-isolation", "-e", ".[local,data,lightgbm,sklearn]")
    session.install(*install, "pytest", "pytest-timeout")
    files = [*Path("tests/data").glob("test_*.py"), *Path("tests/preprocessors").glob("test_*.py")]
    without_torch = [str(path) for path in files if "torch" not in path.read_text().lower()]
    session.run("pytest", *PARTS, *without_torch, *session.posargs)


def tensorflow_constraints() -> str:
    """Return the versions of constraints.txt, where constraints-tensorflow.txt has no others."""
    own = Path("constraints-tensorflow.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in own}
    shared = Path("constraints.txt").read_text().splitlines()
    return "\n".join([*own, *(line for line in shared if line.partition("==")[0] not in names)])
