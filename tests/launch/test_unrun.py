"""Runs that a script does not begin, found without running any of it."""

from __future__ import annotations

import textwrap
import traceback
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.script import run_script
from hpctrain.launch.detach import Detached, leave
from hpctrain.launch.unrun import find_unrun

BEGIN = """
import hpctrain, time
from hpctrain import DataParallelTrainer, RunConfig
from hpctrain.predict import BatchPredictor

class Model:
    def fit(self, x): return self
    def predict(self, x): return x

def train():
    model = Model().fit(1)
    DataParallelTrainer(train).fit()

def make(name="a"):
    return DataParallelTrainer(train, run_config=RunConfig(name=name))

trainer = make()
"""


def unrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str) -> list[str]:
    """Run a script whose first fit() ends it; return what it does not begin, without the file."""

    def fit(request: Any) -> None:
        leave()

    monkeypatch.setattr("hpctrain.launch.fit.fit", fit)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(BEGIN + textwrap.dedent(rest))
    with pytest.raises(Detached) as left:
        run_script(script, [])
    return [call.split(": ", 1)[1] for call in find_unrun(traceback.walk_tb(left.tb))]


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("result = trainer.fit()\nprint(result.metrics)", id="a result is printed"),
        pytest.param("trainer.fit()\nModel().fit(1).predict(2)", id="another class's methods"),
        pytest.param("trainer.fit()\nmodel = Model()\nmodel.predict(1)", id="an object of it"),
        pytest.param("trainer.fit()\nprint(trainer)\ndef f(): trainer.fit()", id="not called"),
        pytest.param(
            "def main():\n    trainer.fit()\n\nif __name__ == '__main__':\n    main()\n    print()",
            id="a main function",
        ),
        pytest.param("if time:\n    trainer.fit()\nelse:\n    trainer.fit()", id="another branch"),
        pytest.param("for x in 1, 2:\n    print(x)\ntrainer.fit()", id="a loop before"),
        pytest.param("try:\n    trainer.fit()\nexcept ValueError:\n    trainer.fit()", id="except"),
    ],
)
def test_a_script_with_one_run_has_come_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    assert unrun(tmp_path, monkeypatch, rest) == []


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        pytest.param("trainer.fit()\nb = make('b')\nb.fit()", ["b.fit()"], id="a second"),
        pytest.param(
            "trainer.fit()\nmake('b').submit()\nDataParallelTrainer(train).fit()",
            ["make('b').submit()", "DataParallelTrainer(train).fit()"],
            id="two more",
        ),
        pytest.param(
            "best = trainer.fit().checkpoint\n"
            "BatchPredictor.from_checkpoint(best, Model).predict([1])",
            ["BatchPredictor.from_checkpoint(best, Model).predict([1])"],
            id="train then predict",
        ),
        pytest.param(
            "result = trainer.fit()\n"
            "predictor = BatchPredictor(result.checkpoint, Model)\n"
            "predictions = predictor.predict([1])",
            ["predictions = predictor.predict([1])"],
            id="a predictor with a name",
        ),
        pytest.param("for name in 'ab':\n    make(name).fit()", ["make(name).fit()"], id="a loop"),
        pytest.param(
            "results = [make(name).fit() for name in 'ab']",
            ["results = [make(name).fit() for name in 'ab']"],
            id="a comprehension",
        ),
        pytest.param(
            "trainers = [make('a'), make('b')]\nfor one in trainers:\n    one.fit()",
            ["one.fit()"],
            id="a list of trainers",
        ),
        pytest.param(
            "def one(name):\n    return make(name).fit()\n\n"
            "def main():\n    one('a')\n    one('b')\n\nmain()",
            ["return make(name).fit()"],
            id="a function that fits",
        ),
        pytest.param(
            "a, b = make('a').fit(), make('b').fit()",
            ["a, b = make('a').fit(), make('b').fit()"],
            id="one statement",
        ),
        pytest.param(
            "try:\n    trainer.fit()\nexcept ValueError:\n    pass\nelse:\n    make('b').fit()",
            ["make('b').fit()"],
            id="else",
        ),
        pytest.param(
            "if trainer.fit().metrics:\n    make('b').fit()", ["make('b').fit()"], id="a condition"
        ),
    ],
)
def test_runs_that_come_later_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str, expected: list[str]
) -> None:
    assert unrun(tmp_path, monkeypatch, rest) == expected


def test_the_line_and_the_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "later.py").write_text(
        "import hpctrain\n\ndef go(trainer):\n    hpctrain.DataParallelTrainer(print).fit()\n"
    )
    script = tmp_path / "train.py"
    script.write_text(BEGIN + "from later import go\ntrainer.fit()\ngo(trainer)\ntrainer.fit()\n")
    monkeypatch.setattr("hpctrain.launch.fit.fit", lambda request: leave())
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Detached) as left:
        run_script(script, [])
    assert find_unrun(traceback.walk_tb(left.tb)) == [
        "later.py:4: hpctrain.DataParallelTrainer(print).fit()",
        f"train.py:{script.read_text().count(chr(10))}: trainer.fit()",
    ]
