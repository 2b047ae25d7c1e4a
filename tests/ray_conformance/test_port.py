"""The port of Ray's programs changes import lines and prefixes, and the rule of what applies."""

from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from tests.ray_conformance.applies import Program, reason_of_script
from tests.ray_conformance.port import blocks_of, port
from tests.ray_conformance.stand_ins import shrink
from tests.ray_conformance.tests_of_ray import _read, of_support

PROGRAM = """\
import ray
import ray.train as rt
from ray import train, tune
from ray.air import session, ScalingConfig as Scaling
from ray.train.torch import TorchTrainer
from ray.train.torch.torch_checkpoint import TorchCheckpoint
ray.init(num_cpus=4)
text = "ray.init() é"; ds = ray.data.from_items([1]); ray.train.report({})
ray.shutdown()
"""
PORTED = """\
import hpctrain, hpctrain.data
import hpctrain as rt
import hpctrain as train; pass
from hpctrain import session; from hpctrain import ScalingConfig as Scaling
from hpctrain.torch import TorchTrainer
from hpctrain.torch import TorchCheckpoint
None
text = "ray.init() é"; ds = hpctrain.data.from_items([1]); hpctrain.report({})
None
"""


def test_only_import_lines_and_prefixes_change() -> None:
    assert port(PROGRAM) == PORTED
    assert port(PORTED) == PORTED


def test_the_blocks_of_a_page_are_one_program() -> None:
    page = """Text.

    .. testcode::
        :hide:

        a = 1
    .. testcode::
        :skipif: True

        b = 2

    .. testcode::

        if a:
            c = 3
    More text."""
    lines = [line for line in blocks_of(page).splitlines() if line]
    assert lines == ["a = 1", "if a:", "    c = 3"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("from ray import tune\ntune.run(1)", "Tune"),
        ("from ray import tune\n", None),
        ("import ray\n@ray.remote\ndef f(): ...", "actors and tasks"),
        ("from ray.train._internal.session import x\nx()", "private to Ray"),
        ("import ray.train\nray.train.report({})._state", "private to Ray"),
        ("class A:\n    def __init__(self): self._a = 1\n    def b(self): return self._a", None),
        ("import ray.train\nray.train.report({})", None),
    ],
)
def test_what_applies_goes_by_names(program: str, reason: str | None) -> None:
    assert reason_of_script(program) == reason


def test_a_test_does_not_apply_if_what_it_uses_does_not() -> None:
    program = Program(
        "import ray\n"
        "def helper(): return ray.get(1)\n"
        "def test_one(): helper()\n"
        "def test_two(ray_start_4_cpus_2_gpus): ...\n"
        "def test_three(ray_start_4_cpus): ...\n"
    )
    reasons = [program.reason(node) for node in program.tree.body]
    assert reasons[2:] == ["actors and tasks", "GPUs or several nodes", None]


def test_cases_that_need_a_gpu_do_not_hide_those_that_do_not(tmp_path: Path) -> None:
    def case(name: str, failure: str = "") -> str:
        inner = f"<failure message={quoteattr(failure)}/>" if failure else ""
        return f"<testcase name={quoteattr(name)}>{inner}</testcase>"

    no_gpu = "hpctrain.errors.ConfigError: use_gpu=True, and torch sees no GPU here."
    cases = [
        case("test_both[False]"),
        case("test_both[True]", no_gpu),
        case("test_gpu", no_gpu),
        case("test_wrong[True]", no_gpu),
        case("test_wrong[False]", "AssertionError"),
        case("test_wrong[None]"),
    ]
    junit = tmp_path / "junit.xml"
    junit.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    assert _read(junit) == {
        "test_both": "passed",
        "test_gpu": "not applicable: needs a GPU",
        "test_wrong": "failed: AssertionError",
    }


def test_use_gpu_stays_beside_the_gpus_of_a_worker() -> None:
    alone = 'Scaling(use_gpu=True, resources_per_worker={"CPU": 2})'
    both = 'Scaling(\n    use_gpu=True,\n    resources_per_worker={"CPU": 1, "GPU": n},\n)'
    assert shrink(alone) == alone.replace("True", "False")
    assert shrink(both) == both
    assert shrink(both.replace('"', "'")) == both.replace('"', "'")


def test_what_asks_for_a_placement_group_is_tunes() -> None:
    program = Program("def test_group(config): config.as_placement_group_factory()\n")
    assert program.reason(program.tree.body[0]) == "Tune"


def test_one_private_name_in_a_helper_module_does_not_take_its_other_functions() -> None:
    helper = """\
import ray.cloudpickle as pickled
from ray.train import Checkpoint
from ray.train._internal.storage import Context

def written(folder) -> Checkpoint:
    pickled.dumps(1)
    return Checkpoint.from_directory(folder)

def inside() -> Context:
    return Context()
"""
    names: dict[str, object] = {}
    exec(port(of_support(helper)), names)
    assert callable(names["written"])
    assert "inside" not in names
