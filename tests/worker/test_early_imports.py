"""A rank that has its node to itself imports before it joins, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from types import MappingProxyType

import pytest

from hpctrain.backend import OF_EVERY_RANK, OF_FIRST_CHECKPOINT
from hpctrain.worker.early_imports import with_imports
from tests.waiting import wait_until

PROGRAM = """
import gc, sys
from hpctrain.worker.early_imports import import_early

import_early(sys.argv)
print([name for name in ("wave", "sndhdr", "own") if name in sys.modules])
print(len([word for word in sys.argv if word.startswith("--import-first=")]), gc.isenabled())
"""


TRAINING = """
import os
print(os.environ["HPCTRAIN_NOT_FORKED"])
try:
    import half
except BaseException as error:
    print(repr(error))
"""


BEFORE_TRAINING = """
# What a rank imports until it calls the training function.
import hpctrain.worker.main, hpctrain.worker.linked_training, hpctrain.worker.train
import hpctrain.worker.seeding, hpctrain.rundir.trust
print(*sys.modules)
"""


def run(
    tmp_path: Path,
    modules: Sequence[str],
    *,
    own: str = "",
    library: Mapping[str, str] = MappingProxyType({}),
    training: str = "",
) -> list[str]:
    (tmp_path / "rank.py").write_text(PROGRAM + training)
    packages = tmp_path / "site-packages"
    for name, content in library.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(content)
    place = tmp_path / "own"
    place.mkdir()
    (place / "own.py").touch()
    if own:
        (place / own).touch()
    asked = json.dumps({"modules": [*modules], "own_places": [str(place)]})
    done = subprocess.run(
        with_imports([sys.executable, "-m", "rank", "1"], asked),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(place), str(packages)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_rank_alone_imports_what_libraries_have_and_leaves_the_users_own(tmp_path: Path) -> None:
    assert run(tmp_path, ["wave", "own", "not_installed"]) == ["['wave']", "1 True"]


def test_a_module_that_a_library_lacks_is_left_to_the_training(tmp_path: Path) -> None:
    assert run(tmp_path, ["json.no_such_module", "wave"]) == ["['wave']", "1 True"]


@pytest.mark.parametrize("end", ["raise RuntimeError('no licence')", "raise SystemExit(3)"])
def test_an_import_that_fails_fails_in_the_training_in_the_same_way(
    tmp_path: Path, end: str
) -> None:
    # With what a first try leaves it would be another error.
    first = "import sys\nassert 'half.part' not in sys.modules, 'half of it is there'\n"
    library = {"half/__init__.py": f"{first}import half.part\n{end}", "half/part.py": ""}
    assert run(tmp_path, ["wave", "half"], library=library, training=TRAINING) == [
        "[]",
        "0 True",
        f"the import of half fails: {end.removeprefix('raise ')}",
        end.removeprefix("raise "),
    ]


def test_no_import_initialises_mpi(tmp_path: Path) -> None:
    library = {"asks.py": "from mpi4py import MPI\nprint(MPI.Is_initialized())"}
    assert run(tmp_path, ["asks"], library=library) == ["False", "[]", "1 True"]


def test_a_rank_alone_leaves_what_its_first_checkpoint_needs_for_then(tmp_path: Path) -> None:
    _, _, line = run(tmp_path, OF_EVERY_RANK, training=BEFORE_TRAINING)
    loaded = set(line.split())
    assert loaded >= {"cloudpickle", *OF_EVERY_RANK} - {*OF_FIRST_CHECKPOINT}
    # xxhash and hpctrain.bulk.copy are most of what these modules load.
    unneeded = {*OF_FIRST_CHECKPOINT, "hpctrain.rundir.staging", "hpctrain.bulk.copy", "xxhash"}
    assert loaded & unneeded == set()
    # What describes how Python was built.
    assert [name for name in loaded if "sysconfig" in name] == []


def test_an_import_that_does_not_end_says_where_it_is(tmp_path: Path) -> None:
    answers, errors = tmp_path / "answers", tmp_path / "errors"
    os.mkfifo(answers)
    library = tmp_path / "site-packages/waits.py"
    library.parent.mkdir()
    library.write_text(f"print(open({str(answers)!r}).read())")
    (tmp_path / "rank.py").write_text(
        f"from hpctrain import timeouts\ntimeouts.EARLY_IMPORTS_S = 0.2\n{PROGRAM}"
    )
    asked = json.dumps({"modules": ["waits"], "own_places": []})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(library.parent)])}
    command = with_imports([sys.executable, "rank.py"], asked)
    with errors.open("w") as printed:
        rank = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=printed, text=True
        )
    try:
        # Without a writer it waits, as for a filesystem that does not answer.
        where = f'File "{library}", line 1 in <module>'
        wait_until(lambda: where in errors.read_text(), "its stack", process=rank)
        answers.write_text("at last")
        output, _ = rank.communicate(timeout=60.0)
    finally:
        rank.kill()
        rank.wait()
    assert output.splitlines() == ["at last", "[]", "1 True"]


def test_a_rank_begins_once_more_where_a_file_of_the_users_has_the_name_of_a_library(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, ["wave"], own="wave.py") == ["[]", "0 True"]


def test_a_rank_without_such_a_word_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "rank.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["[]", "0 True"], done.stderr
