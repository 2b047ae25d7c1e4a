"""Random generators of a rank, seeded before the user's code, or by the import of their module."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from hpctrain.worker.seeding import mix
from tests.processes import run_python

DRAW = """
import random
{before}
from hpctrain.worker.seeding import seed_generators

seed_generators(*{words})
{after}
import numpy as np

print(random.random(), np.random.random())
"""


def drawn(*words: int, before: str = "", after: str = "") -> list[float]:
    code = DRAW.format(words=words, before=before, after=after)
    return [float(word) for word in run_python("-c", code, timeout_s=60).stdout.split()]


def test_numbers_depend_on_the_words_and_not_on_when_numpy_was_imported() -> None:
    pytest.importorskip("numpy")
    early, late = drawn(7, 1, 0, before="import numpy.random"), drawn(7, 1, 0)
    assert early == late
    other = drawn(7, 1, 1)
    assert not set(early) & set(other)


def test_seeds_of_the_user_come_later_and_count(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "own.py").write_text("import numpy, random\nnumpy.random.seed(3)\nrandom.seed(3)\n")
    after = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import own"
    assert drawn(1, after=after) == drawn(2, after=after)


def test_gpus_are_seeded_once_they_are_used_and_not_opened_before() -> None:
    pytest.importorskip("torch")
    # A torch without GPUs keeps what is to be done at the first use of one, too.
    code = (
        "import torch\nfrom hpctrain.worker.seeding import mix, seed_generators\n"
        "torch.backends.cuda.is_built = lambda: True\n"
        "asked = []\ntorch.cuda.manual_seed_all = asked.append\n"
        "seed_generators(5, 1)\nassert asked == [mix(5, 1)]\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    run_python("-c", code)


def test_torch_is_seeded_before_and_after_its_import_alike() -> None:
    pytest.importorskip("torch")
    code = (
        "from hpctrain.worker.seeding import mix, seed_generators\n"
        "{}seed_generators(5, 1)\nimport torch\n"
        "assert torch.initial_seed() == mix(5, 1)\n"
        "print(torch.rand(1).item(), torch.__spec__.loader.get_filename('torch') is not None)\n"
    )
    outputs = {run_python("-c", code.format(first)).stdout for first in ("", "import torch\n")}
    assert len(outputs) == 1


def test_a_module_of_the_user_that_has_the_name_is_imported_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("VALUE = 3\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from hpctrain.worker.seeding import seed_generators\n"
        "seed_generators(5)\nimport torch\nprint(torch.VALUE)\n"
    )
    assert run_python("-c", code, timeout_s=60).stdout == "3\n"


def test_an_import_that_fails_fails_as_always(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ValueError('mine')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from hpctrain.worker.seeding import seed_generators\n"
        "seed_generators(5)\n"
        "for _ in range(2):\n    try:\n        import torch\n"
        "    except ValueError as error:\n        print(error, 'torch' in sys.modules)\n"
    )
    assert run_python("-c", code, timeout_s=60).stdout == "mine False\n" * 2


def test_seeds_are_those_of_the_runs_before() -> None:
    assert [mix(5), mix(5, 1)] == [5588046532071376745, 6842472824278787000]


@pytest.mark.parametrize("error", [AttributeError, TypeError, ValueError])
def test_there_are_seeds_where_blake2_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(hashlib, "blake2b", Mock(side_effect=error))
    seeds = [mix(1, 2), mix(2, 1)]
    assert len(set(seeds)) == 2
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_has_63_bits_and_depends_on_every_word() -> None:
    seeds = [mix(1, 2), mix(2, 1), mix(12), mix(1, 2, 0)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sys.maxsize == 2**63 - 1
