"""The port of Ray's programs changes import lines and prefixes, and the rule of what applies."""

import ast
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

from tests.ray_conformance.applies import Program, reason_of_script
from tests.ray_conformance.measure import attempt
from tests.ray_conformance.names_of_tune import RIGS
from tests.ray_conformance.port import blocks_of, port
from tests.ray_conformance.stand_ins import shrink
from tests.ray_conformance.tests_of_ray import _kept, _read, guarded, of_support

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
import hpctrain as train; from hpctrain import tune
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
        ("from ray import tune\n", None),
        ("from ray import tune\ntune.Tuner(f, tune_config=tune.TuneConfig())", None),
        ("from ray.tune.execution.tune_controller import C\nC()", "Trial and the controller"),
        ("from ray.tune.impl.placeholder import x\nx()", "private to Ray"),
        ("from ray.tune.search.sample import uniform\nuniform(0, 1)", None),
        ("from ray.tune.trainable import with_parameters as w\nw(f, x=1)", None),
        ("from ray.tune.trainable import wrap_function as w\nw(f)", "class Trainable"),
        ("import ray\n@ray.remote\ndef f(): ...", "actors and tasks"),
        ("from ray.train._internal.session import x\nx()", "private to Ray"),
        ("import ray.train\nray.train.report({})._state", "private to Ray"),
        ("class A:\n    def __init__(self): self._a = 1\n    def b(self): return self._a", None),
        ("import ray.train\nray.train.report({})", None),
    ],
)
def test_what_applies_goes_by_names(program: str, reason: str | None) -> None:
    found = reason_of_script(program)
    assert found == reason or (reason and found.startswith(reason))


def test_a_name_that_hpctrain_refuses_counts_as_refused_and_in_a_test_with_its_reason() -> None:
    program = "from ray import tune\ntune.run(f)\n"
    assert reason_of_script(program) is None
    assert Program(program).reason(Program(program).tree.body[1]) == (
        "tune.run, which was there before Tuner"
    )


def test_a_method_that_does_not_apply_takes_the_tests_that_call_it() -> None:
    program = Program(
        "from ray.tune import Stopper\n"
        "class TestAll:\n"
        "    def setUp(self): self.x = 1\n"
        "    def make(self): return Stopper()\n"
        "    def make_two(self): return self.make(), self.make()\n"
        "    def test_one(self): self.make_two()\n"
        "    def test_two(self): assert self.x\n"
        "class TestNone:\n"
        "    def setUp(self): self.x = Stopper()\n"
        "    def test_three(self): ...\n"
    )
    functions: dict[str, str] = {}
    kept = _kept(program, functions)
    assert functions == dict.fromkeys(["test_one", "test_three"], "not applicable: stoppers")
    assert ast.unparse(kept[1]).count("def ") == 2


def test_the_rig_calls_a_scheduler_as_ray_tunes_controller_does() -> None:
    text = (
        "from ray.tune.experiment import Trial\n"
        "from ray.tune.schedulers import ASHAScheduler, AsyncHyperBandScheduler\n"
        "from ray.tune.utils.mock_trainable import MOCK_TRAINABLE_NAME\n"
        "rule = AsyncHyperBandScheduler(metric='a', mode='max', max_t=3)\n"
        "trial = Trial(MOCK_TRAINABLE_NAME)\n"
        "rule.on_trial_add(None, trial)\n"
        "decided = rule.on_trial_result(None, trial, {'a': 1, 'training_iteration': 3})\n"
    )
    program = Program(text, rigged=RIGS["test_trial_scheduler"])
    assert [program.reason(one) for one in program.tree.body] == [None] * 7
    names: dict[str, Any] = {}
    exec(port(guarded(program.tree.body, program)), names)
    assert names["decided"] == "STOP"
    assert names["ASHAScheduler"].__module__ == "hpctrain.tune.schedulers.asha"


def test_an_example_that_imports_another_one_finds_it_beside(tmp_path: Path) -> None:
    program = "from ray.tune.examples.inner.other import x\nassert x == 3\n"
    assert reason_of_script(program) is None
    assert attempt(port(program), 60, "", {"other": "x = 3\n"}) == ("ok", "")


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


def test_what_asks_for_a_placement_group_places_actors() -> None:
    program = Program("def test_group(config): config.as_placement_group_factory()\n")
    assert program.reason(program.tree.body[0]) == "placement of actors"


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
