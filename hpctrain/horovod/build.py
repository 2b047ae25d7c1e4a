"""Horovod from its sources, for the torch and the MPI that are installed.

Horovod is nowhere offered as a wheel: its library belongs to one version of torch and one MPI. The
sources of its last release build unmodified; what they lack is said in one CMake toolchain file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.errors import ConfigError, HpctrainError, LaunchError
from hpctrain.own_files import name_beside

VERSION = "0.28.1"
_CMAKE_AT_LEAST = (3, 21)  # the first that reads CMAKE_TOOLCHAIN_FILE from the environment
_NEEDED = ("torch", "cffi", "cloudpickle", "packaging", "psutil", "pyyaml", "setuptools")
_SHOWN_LINES = 15

_TOOLCHAIN = """\
# Horovod asks for C++14, its Gloo for C++11; torch's headers need C++17. CMake puts its own -std=
# into <FLAGS>, and the compiler obeys the last one. GCC 13 no longer includes the two headers by
# itself.
set(CMAKE_CXX_COMPILE_OBJECT
    "<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -std=c++20 -g0 \
-include string -include stdexcept -o <OBJECT> -c <SOURCE>")
# The libraries of torch and of an MPI from a wheel, relative to the module: the wheel serves every
# environment.
set(CMAKE_BUILD_RPATH "$ORIGIN/../../torch/lib;$ORIGIN/../../../..")
"""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a Horovod is built for."""

    torch: str
    """Version of torch, with its local part: ``2.13.0+cpu``."""
    mpi: str | None
    """First line of the MPI library's version; None for a Horovod that has Gloo alone."""
    options: Mapping[str, str]
    """``HOROVOD_...`` variables of the environment: how Horovod's own build is told of GPUs."""

    @property
    def key(self) -> str:
        """Name of the folder in the cache: what differs in it cannot share a wheel."""
        recipe = hashlib.sha256(f"{_TOOLCHAIN}{sorted(self.options.items())}".encode())
        mpi = "gloo" if self.mpi is None else re.sub(r"[^a-z0-9.]+", "-", self.mpi.lower())
        return "-".join(
            (
                sys.implementation.cache_tag,
                platform.machine(),
                f"torch{self.torch}",
                mpi.replace("version-", "")[:40].strip("-"),
                recipe.hexdigest()[:8],
            )
        )

    def __str__(self) -> str:
        """Return it for people."""
        return f"torch {self.torch} and {self.mpi or 'Gloo alone'}"


def default_cache() -> Path:
    """Return where wheels are kept. Not collective."""
    base = environ.variable("XDG_CACHE_HOME") or "~/.cache"
    return environ.expand_path(base) / "hpctrain" / "horovod"


def find_target(*, with_mpi: bool) -> Target:
    """Return what is installed here. Not collective.

    Raises
    ------
    ConfigError
        If something is missing that the build needs.
    """
    versions = {name: _version_of(name) for name in _NEEDED}
    if missing := [name for name, version in versions.items() if version is None]:
        raise ConfigError(
            f"{sys.executable} has no {', '.join(missing)}, which Horovod needs. pip install "
            f"'hpctrain[horovod]', and then again: hpctrain install horovod"
        )
    options = {
        name: value
        for name, value in environ.environment().items()
        if name.startswith("HOROVOD_") and not name.startswith(("HOROVOD_WITH", "HOROVOD_CMAKE"))
    }
    return Target(
        torch=str(versions["torch"]), mpi=_mpi_library() if with_mpi else None, options=options
    )


def check_tools(target: Target) -> None:
    """Look for the programs that a build takes. Not collective.

    Raises
    ------
    ConfigError
        If one is missing or too old.
    """
    if not environ.variable("CXX") and _program("c++", "g++", "clang++") is None:
        raise ConfigError(
            "there is no C++ compiler: neither c++, g++ nor clang++ is on PATH. Load the site's "
            "compiler (module load gcc), or apt-get install g++ make; CXX names another one."
        )
    if _program("make", "gmake") is None:
        raise ConfigError(
            "there is no make on PATH, which Horovod is built with. Load the site's build tools, "
            "or apt-get install make."
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise ConfigError(
            f"{headers} has no Python.h, which Horovod is compiled with. Install what belongs to "
            f"{sys.executable}: apt-get install python3-dev, or the site's module of Python."
        )
    cmake = _program("cmake")
    again = "pip install 'hpctrain[horovod]' brings one."
    if cmake is None:
        raise ConfigError(f"there is no cmake on PATH, nor beside {sys.executable}. {again}")
    found = re.search(r"version (\d+)\.(\d+)", _output_of([str(cmake), "--version"]))
    if found is None or (int(found[1]), int(found[2])) < _CMAKE_AT_LEAST:
        raise ConfigError(
            f"{cmake} is {found[0] if found else 'no CMake'}; {'.'.join(map(str, _CMAKE_AT_LEAST))}"
            f" or newer is needed. {again}"
        )
    if target.mpi is not None and _program("mpicxx", "mpic++", "mpiCC", "CC") is None:
        raise ConfigError(
            f"the ranks use {target.mpi}, but there is no compiler of an MPI on PATH (mpicxx). "
            f"Load the site's MPI (module load ...), or build for Gloo alone: hpctrain install "
            f"horovod --without-mpi"
        )


def find_wheel(cache: Path, target: Target) -> Path | None:
    """Return the wheel that was built for a target, or None. Not collective."""
    return next((cache / target.key).glob(f"horovod-{VERSION}-*.whl"), None)


def build_wheel(
    cache: Path, target: Target, *, jobs: int, timeout_s: float, say: Callable[[str], None]
) -> Path:
    """Build Horovod, and put the wheel into the cache. Not collective.

    Builds of the same target at the same time do not disturb each other: the last one stays.

    Raises
    ------
    ConfigError
        If a program is missing, or the cache cannot be written to.
    LaunchError
        If the build fails, or takes too long.
    """
    check_tools(target)
    folder = cache / target.key
    log = folder / "build.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written to: {error.strerror}. --cache names another directory."
        ) from error
    say(f"building Horovod {VERSION} for {target}; it takes some minutes, and says how in {log}")
    with tempfile.TemporaryDirectory(prefix="hpctrain-horovod-") as work:
        toolchain = Path(work) / "toolchain.cmake"
        toolchain.write_text(_TOOLCHAIN, encoding="utf-8")
        variables = {
            **target.options,
            "CMAKE_TOOLCHAIN_FILE": str(toolchain),
            # CMake 4 refuses the "2.8.12" of the Gloo that comes with Horovod.
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
            "MAKEFLAGS": f"-j{jobs}",
            "HOROVOD_WITH_PYTORCH": "1",
            "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MPI" if target.mpi is None else "HOROVOD_WITH_MPI": "1",
        }
        built = Path(work) / "wheel"
        # pip's own cache knows neither torch's version nor which MPI it was built for.
        pip = ["wheel", "--no-cache-dir", "--no-build-isolation", "--use-pep517", "--no-deps"]
        _pip(
            [*pip, "--no-binary", "horovod", "--wheel-dir", str(built), f"horovod=={VERSION}"],
            what=f"building Horovod {VERSION} for {target}",
            variables=variables,
            log=log,
            timeout_s=timeout_s,
        )
        (wheel,) = built.glob("*.whl")
        try:
            # Beside it first: another process may look into the cache, on another file system.
            partly = name_beside(folder / wheel.name)
            shutil.copyfile(wheel, partly)
            partly.replace(folder / wheel.name)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be written to: {error.strerror}. --cache names another directory."
            ) from error
    return folder / wheel.name


def install_wheel(wheel: Path) -> None:
    """Install a wheel into the environment of this interpreter. Not collective.

    Raises
    ------
    LaunchError
        If pip fails.
    """
    descriptor, log = tempfile.mkstemp(prefix="hpctrain-horovod-", suffix=".log")
    os.close(descriptor)
    _pip(
        # The same version may be there, for another torch.
        ["install", "--no-deps", "--force-reinstall", str(wheel)],
        what=f"installing {wheel}",
        variables={},
        log=Path(log),
        timeout_s=timeouts.HOROVOD_INSTALL_S,
    )
    # Not where pip fails: the error names it.
    os.unlink(log)


def check_installed(target: Target) -> str:
    """Let one rank of the installed Horovod add numbers up; return what is built in.

    Not collective. In a process of its own: a Horovod of another MPI ends it.

    Raises
    ------
    LaunchError
        If it does not load, or does not work.
    """
    argv = [sys.executable, "-m", "hpctrain.horovod.self_check"]
    if target.mpi is not None:
        argv.append("mpi")
    try:
        done = _run(argv, timeout_s=timeouts.HOROVOD_CHECK_S)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"the Horovod that was installed does not start within "
            f"{timeouts.describe(timeouts.HOROVOD_CHECK_S)}. "
            f"hpctrain install horovod --rebuild builds it anew."
        ) from error
    if done.returncode:
        raise LaunchError(
            f"the Horovod that was installed does not work with {target}:\n"
            f"{_last_lines(done.stdout + done.stderr)}\nIf its MPI is not the one of mpi4py, put "
            f"that one's mpicxx first on PATH; then: hpctrain install horovod --rebuild"
        )
    return done.stdout.strip().splitlines()[-1]


def _mpi_library() -> str:
    """Return the first line of what mpi4py's library says of itself."""
    # In a process of its own: on some login nodes it ends the process.
    code = "from hpctrain.worker import mpi; print(mpi.library_version_before_start())"
    try:
        said = _output_of([sys.executable, "-c", code])
    except HpctrainError as error:
        raise ConfigError(
            f"mpi4py finds no MPI library that it can load: {error} Load the site's MPI (module "
            f"load ...), or pip install 'hpctrain[local]'; or build for Gloo alone: hpctrain "
            f"install horovod --without-mpi"
        ) from error
    return re.sub(r"\s+", " ", said.strip().splitlines()[-1])


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _program(*names: str) -> Path | None:
    """Return the first of these programs on the build's PATH."""
    path = _clean_environment({})["PATH"]
    found = (shutil.which(name, path=path) for name in names)
    return next((Path(program) for program in found if program), None)


def _clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a build, in which this interpreter's programs come first.

    So CMake finds the MPI, and the cmake, that are installed beside it.
    """
    inherited = environ.without_launcher_variables(environ.environment())
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join((beside, inherited.get("PATH") or os.defpath))
    return {**inherited, "PATH": path, **variables}


def _output_of(argv: Sequence[str]) -> str:
    try:
        done = _run(argv, timeout_s=timeouts.HOROVOD_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{argv[0]} cannot be asked: {error}") from error
    if done.returncode:
        raise LaunchError(_last_lines(done.stderr) or f"{argv[0]} ended with {done.returncode}.")
    return done.stdout


def _run(argv: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env=_clean_environment({}), capture_output=True, text=True, timeout=timeout_s
    )


def _pip(
    arguments: Sequence[str],
    *,
    what: str,
    variables: Mapping[str, str],
    log: Path,
    timeout_s: float,
) -> None:
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            argv,
            env=_clean_environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # So that make and its compilers end with it.
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise LaunchError(
                f"{what} was stopped after {timeouts.describe(timeout_s)}. Last lines of {log}:\n"
                f"{_last_lines(_read(log))}\n--timeout sets how long it may take, --jobs how many "
                f"compilers run at a time."
            ) from error
    if status:
        raise LaunchError(
            f"{what} failed. Last lines of {log}:\n{_last_lines(_read(log))}\nThe first error in "
            f"the log says why; then again: hpctrain install horovod"
        )


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _last_lines(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-_SHOWN_LINES:])
