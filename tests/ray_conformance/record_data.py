"""Write down what a real Ray answers to the cases of ``data_cases.py``.

::

    python -m venv /tmp/ray && /tmp/ray/bin/pip install 'ray[data]==2.60.0' pillow
    /tmp/ray/bin/python tests/ray_conformance/record_data.py [CASE ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import ray
from data_cases import CASES, IN_ANY_ORDER, answer, in_order
from ray.data.grouped_data import GroupedData

NAMES = Path(__file__).with_name("data_names.json")
ANSWERS = Path(__file__).with_name("data_answers.json")


def names() -> dict[str, list[str]]:
    """Return what is public in Ray Data."""
    owners = {"ray.data": ray.data, "Dataset": ray.data.Dataset, "GroupedData": GroupedData}
    return {
        owner: [
            name
            for name in dir(found)
            if not name.startswith("_")
            and not isinstance(getattr(found, name), ModuleType)
            and getattr(getattr(found, name), "__module__", "ray").startswith("ray")
        ]
        for owner, found in owners.items()
    }


def main() -> None:
    ray.init(num_cpus=2, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    # Otherwise the order of rows is not promised.
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    before = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    answers = {"recorded with": f"Ray {ray.__version__}"}
    for name, function in CASES.items():
        if name in before and sys.argv[1:] and name not in sys.argv:
            answers[name] = before[name]
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = answer(function, ray.data, Path(folder))
            answers[name] = in_order(found) if name.startswith(IN_ANY_ORDER) else found
    ANSWERS.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
    NAMES.write_text(json.dumps(names(), indent=1) + "\n")


if __name__ == "__main__":
    main()
