"""Turn a program for Ray Train into one for hpctrain: import lines, prefixes and nothing else.

``python -m tests.ray_conformance.port FILE`` writes the ported program to stdout.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from pathlib import Path

# A module of Ray and the one that takes its place; the longest name that fits is used.
MODULES = {
    "ray": "hpctrain",
    "ray.air": "hpctrain",
    "ray.air.checkpoint": "hpctrain",
    "ray.air.config": "hpctrain",
    "ray.air.constants": "hpctrain.constants",
    "ray.air.integrations.comet": "hpctrain.callbacks",
    "ray.air.integrations.keras": "hpctrain.tensorflow",
    "ray.air.integrations.mlflow": "hpctrain.callbacks",
    "ray.air.integrations.wandb": "hpctrain.callbacks",
    "ray.air.result": "hpctrain",
    "ray.air.session": "hpctrain.session",
    "ray.cloudpickle": "cloudpickle",
    "ray.data": "hpctrain.data",
    "ray.data.aggregate": "hpctrain.data.aggregate",
    "ray.data.Preprocessor": "hpctrain.preprocessors.Preprocessor",
    "ray.data.dataset": "hpctrain.data",
    "ray.data.iterator": "hpctrain.data",
    "ray.data.preprocessor": "hpctrain.preprocessors",
    "ray.data.preprocessors": "hpctrain.preprocessors",
    "ray.train": "hpctrain",
    "ray.train._checkpoint": "hpctrain",
    "ray.train.backend": "hpctrain.backend",
    "ray.train.base_trainer": "hpctrain",
    "ray.train.batch_predictor": "hpctrain.predict",
    "ray.train.collective": "hpctrain.collective",
    "ray.train.constants": "hpctrain.constants",
    "ray.train.data_parallel_trainer": "hpctrain",
    "ray.train.error": "hpctrain",
    "ray.train.horovod": "hpctrain.horovod",
    "ray.train.huggingface": "hpctrain.huggingface",
    "ray.train.huggingface.accelerate": "hpctrain.huggingface",
    "ray.train.huggingface.transformers": "hpctrain.huggingface",
    "ray.train.lightgbm": "hpctrain.lightgbm",
    "ray.train.lightgbm.v2": "hpctrain.lightgbm",
    "ray.train.lightning": "hpctrain.lightning",
    "ray.train.predictor": "hpctrain.predict",
    "ray.train.sklearn": "hpctrain.sklearn",
    "ray.train.tensorflow": "hpctrain.tensorflow",
    "ray.train.tensorflow.keras": "hpctrain.tensorflow",
    "ray.train.torch": "hpctrain.torch",
    "ray.train.torch.config": "hpctrain.torch",
    "ray.train.trainer": "hpctrain",
    "ray.train.v2": "hpctrain",
    "ray.train.v2.api": "hpctrain",
    "ray.train.v2.api.config": "hpctrain",
    "ray.train.v2.api.exceptions": "hpctrain",
    "ray.train.v2.api.data_parallel_trainer": "hpctrain",
    "ray.train.v2.lightgbm.lightgbm_trainer": "hpctrain.lightgbm",
    "ray.train.v2.tensorflow.tensorflow_trainer": "hpctrain.tensorflow",
    "ray.train.v2.torch.torch_trainer": "hpctrain.torch",
    "ray.train.v2.xgboost.xgboost_trainer": "hpctrain.xgboost",
    "ray.train.xgboost": "hpctrain.xgboost",
    "ray.train.xgboost.v2": "hpctrain.xgboost",
    **{
        f"ray.tune.logger{name}": "hpctrain.callbacks"
        for name in ("", ".comet", ".csv", ".json", ".mlflow", ".tensorboardx", ".wandb")
    },
    **{
        f"ray.{name}": f"hpctrain.{name}"
        for name in (
            *("tune", "tune.analysis", "tune.callback", "tune.error", "tune.execution"),
            *("tune.execution.placement_groups", "tune.experiment", "tune.experiment.trial"),
            *("tune.integration", "tune.integration.keras", "tune.integration.lightgbm"),
            *("tune.integration.pytorch_lightning", "tune.integration.ray_train"),
            *("tune.integration.xgboost", "tune.progress_reporter"),
            *("tune.registry", "tune.result_grid", "tune.schedulers"),
            *("tune.schedulers.async_hyperband", "tune.schedulers.hb_bohb"),
            *("tune.schedulers.hyperband", "tune.schedulers.median_stopping_rule"),
            *("tune.schedulers.pb2", "tune.schedulers.pbt"),
            *("tune.schedulers.resource_changing_scheduler", "tune.schedulers.trial_scheduler"),
            *("tune.search", "tune.search.ax", "tune.search.basic_variant"),
            *("tune.search.bayesopt", "tune.search.bohb", "tune.search.concurrency_limiter"),
            *("tune.search.hebo", "tune.search.hyperopt", "tune.search.nevergrad"),
            *("tune.search.optuna", "tune.search.repeater", "tune.search.sample"),
            *("tune.search.variant_generator", "tune.search.zoopt", "tune.stopper"),
            *("tune.syncer", "tune.trainable", "tune.tune_config", "tune.tuner", "tune.utils"),
        )
    },
}
# Names that `from ray.x import NAME` takes from another module here.
NAMES = {
    "BatchPredictor": "hpctrain.predict",
    "Predictor": "hpctrain.predict",
    "Preprocessor": "hpctrain.preprocessors",
}
DROPPED = {"ray.init", "ray.shutdown"}
# What is imported from here and not used goes; what uses it does not apply (applies.py).
NOT_IMPORTED = ("ray.cluster_utils", "ray.rllib", "ray.tests", "ray.util")


# Modules beside Ray's tests and Tune's examples lie beside the ported ones.
BESIDE = re.compile(r"ray\.(?:(?:train|air|tune)(?:\.v2)?\.tests|tune\.examples(?:\.\w+)*)\.(\w+)$")


def port(source: str) -> str:
    """Return the program with Ray's imports and prefixes replaced."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    text = source.encode()
    edits: list[tuple[int, int, str]] = []
    for node in ast.walk(ast.parse(source)):
        new = _replacement(node)
        if new is not None:
            assert isinstance(node, ast.stmt | ast.expr)
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = starts[node.lineno - 1] + node.col_offset
            edits.append((start, starts[node.end_lineno - 1] + node.end_col_offset, new))
    # An outer node holds its inner ones: a.b.c also has a.b.
    edits.sort(key=lambda edit: (edit[0], -edit[1]))
    ported, position = b"", 0
    for start, end, new in edits:
        if start >= position:
            ported += text[position:start] + new.encode()
            position = end
    return (ported + text[position:]).decode()


def _replacement(node: ast.AST) -> str | None:
    """Return what stands here for an import, a dotted name of Ray, or a call that is dropped."""
    if isinstance(node, ast.Call):
        return "None" if dotted(node.func) in DROPPED else None
    if isinstance(node, ast.Import):
        return _imports(node)
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return _imports_from(node)
    if isinstance(node, ast.Attribute) and (name := dotted(node)) and name.startswith("ray."):
        ours = module_of(name)
        return None if ours == name else ours
    return None


def _imports(node: ast.Import) -> str | None:
    if not any(alias.name.split(".")[0] == "ray" for alias in node.names):
        return None
    parts = ["pass"] if node.names[0].name.startswith(NOT_IMPORTED) else []
    for alias in node.names:
        if alias.name.startswith(NOT_IMPORTED):
            continue
        ours = module_of(alias.name)
        # Ray's packages are there after `import ray`.
        also = ", hpctrain.data" if alias.name == "ray" else ""
        parts.append(f"import {ours}{f' as {alias.asname}' if alias.asname else also}")
    return "; ".join(parts)


def _imports_from(node: ast.ImportFrom) -> str | None:
    module = node.module or ""
    if module.split(".")[0] != "ray":
        return None
    parts = []
    for alias in node.names:
        whole = f"{module}.{alias.name}"
        bound = f" as {alias.asname}" if alias.asname else ""
        if whole.startswith(NOT_IMPORTED):
            parts.append("pass")
        elif whole in MODULES:
            ours = MODULES[whole]
            parent, _, last = ours.rpartition(".")
            name = alias.asname or alias.name
            kept = "" if last == name else f" as {name}"
            parts.append(f"from {parent} import {last}{kept}" if parent else f"import {ours}{kept}")
        else:
            beside = BESIDE.match(module)
            # A module of Ray that is not listed is private to its package.
            parent = NAMES.get(alias.name, module_of(module, inside=False))
            parent = beside[1] if beside else parent
            parts.append(f"from {parent} import {alias.name}{bound}")
    return "; ".join(parts)


def module_of(name: str, *, inside: bool = True) -> str:
    """Return the dotted name with its longest listed module replaced; with the rest, if inside."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (ours := MODULES.get(".".join(parts[:length]))) is not None:
            return ".".join([ours, *(parts[length:] if inside else [])])
    return name


def dotted(node: ast.AST) -> str | None:
    """Return ``a.b.c`` of a name or attribute, or None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else None


def blocks_of_module(module: str) -> str:
    """Return the blocks of a module's docstrings, after what it imports of ``typing``.

    doctest gives a docstring the names of its module.
    """
    imports = [
        ast.unparse(node)
        for node in ast.parse(module).body
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
    ]
    return "\n".join([*imports, blocks_of(module)])


def blocks_of(page: str) -> str:
    """Return the ``testcode`` blocks of a page or a docstring, one after the other."""
    found: list[str] = []
    lines = page.expandtabs().splitlines()
    for number, line in enumerate(lines, start=1):
        if not (match := re.match(r"( *)\.\. testcode::", line)):
            continue
        depth = len(match[1])
        block = list(
            itertools.takewhile(
                lambda one, depth=depth: not one.strip() or len(one) - len(one.lstrip()) > depth,
                lines[number:],
            )
        )
        options = [one.strip() for one in block if one.strip().startswith(":")]
        code = [one for one in block if not one.strip().startswith(":")]
        if not any(one.startswith(":skipif:") for one in options):
            indent = min((len(one) - len(one.lstrip()) for one in code if one.strip()), default=0)
            found.append("\n".join(one[indent:] for one in code))
    return "\n".join(found) + "\n"


if __name__ == "__main__":
    sys.stdout.write(port(Path(sys.argv[1]).read_text()))
