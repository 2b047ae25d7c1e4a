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
    """
    suites = list(itertools.takewhile(str.isalpha, session.posargs)) or list(SUITES)
    options = session.posargs[len(suites) :] if session.posargs else []
    if unknown := set(suites) - set(SUITES):
        session.error(f"unknown suites: {', '.join(sorted(unknown))}. Use some of {SUITES}.")
    # Files with other tests may import what is not there.
    marked = [str(p) for p in Path("tests").rglob("test_*.py") if "mark.matrix(" in p.read_text()]
    failed = []
    for suite in suites:
        enter = ["bash", "tests/slurm_versions/root.sh", suite]
        with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".xml") as junit:
            pytest = ["pytest", "-p", "no:cacheprovider", f"--junitxml={junit.name}"]
            # CI has 8 minutes, with the root; on two idle cores the tests take 3.
            selected = options or ["-m", "matrix", "--session-timeout=400", *marked]
            done = subprocess.run(
                [*enter, "env", "HPCTRAIN_REQUIRE_ALL=1", *pytest, *selected], check=False
            )
            if done.returncode:
                failed.append(suite)
            if not options:
                describe = [*enter, "python", "docs/tested_with.py", junit.name]
                if subprocess.run(describe, check=False).returncode:
                    failed.append(suite)
    if failed:
        session.error(f"not everything passed with the Slurm of {', '.join(dict.fromkeys(failed))}")


@nox.session
def pythons(session: nox.Session) -> None:
    """Test with the Pythons of other Debians what needs neither Slurm, MPI nor torch.

    Debian has none that is older than 3.11, nor 3.12: for these the types are checked, as for all.
    """
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        run(session, "mypy", "--strict", f"--python-version={version}")
    folders = [
        f"tests/{name}" for name in ("control", "execute", "launch", "plan", "rundir", "slurm")
    ]
    options = ["-p", "no:cacheprovider", "-m", "not slurm and not mpi and not gpu and not slow"]
    for suite in SUITES:
        enter = ["bash", "tests/slurm_versions/root.sh", suite]
        session.run(*enter, "pytest", *options, *folders, *session.posargs, external=True)


def tensorflow_constraints() -> str:
    """Return the versions of constraints.txt, where constraints-tensorflow.txt has no others."""
    own = Path("constraints-tensorflow.txt").read_text().splitlines()
    names = {line.partition("==")[0] for line in own}
    shared = Path("constraints.txt").read_text().splitlines()
    return "\n".join([*own, *(line for line in shared if line.partition("==")[0] not in names)])
