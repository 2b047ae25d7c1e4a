"""What of Ray's programs and tests can apply here: a rule over names, so that nobody has to judge.

A program or test does not apply if it, or what it uses of its own file, names one of NOT_HERE.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Collection, Iterator

from tests.ray_conformance.names_of_tune import is_refused, reason_in_tune
from tests.ray_conformance.port import dotted

# A name of Ray that starts like this, and the reason why what uses it does not apply.
NOT_HERE = {
    "ray.rllib": "RLlib",
    "ray.serve": "Serve",
    "ray.workflow": "workflows",
    "ray.train.rl": "RLlib",
    "ray.train.mosaic": "Mosaic",
    "ray.train.examples": "imports another example",
    "ray.cluster_utils": "a Ray cluster",
    "ray.remote": "actors and tasks",
    "ray.get": "actors and tasks",
    "ray.put": "actors and tasks",
    "ray.wait": "actors and tasks",
    "ray.kill": "actors and tasks",
    "ray.actor": "actors and tasks",
    "ray.util": "actors and tasks",
    "ray.is_initialized": "a Ray cluster",
    "ray.nodes": "a Ray cluster",
    "ray.cluster_resources": "a Ray cluster",
    "ray.available_resources": "a Ray cluster",
    "ray.get_runtime_context": "actors and tasks",
    "ray.runtime_context": "actors and tasks",
    "ray.runtime_env": "actors and tasks",
    "ray.exceptions": "actors and tasks",
    "ray.job_submission": "a Ray cluster",
    "ray.experimental": "private to Ray",
    "ray.widgets": "private to Ray",
    "ray.core": "private to Ray",
    "ray.tests": "private to Ray",
    "ray.dashboard": "private to Ray",
    "ray.air.execution": "private to Ray",
    "ray.air.util": "private to Ray",
    "ray.data.datasource": "data sources of one's own",
    "ray.data.context": "Ray Data's executor",
    "ray.data.DataContext": "Ray Data's executor",
    "ray.data.block": "Ray Data's executor",
}
# Names without the module, where a class or a fixture says it.
WORDS = {
    "as_placement_group_factory": "placement of actors",
    "RLTrainer": "RLlib",
    "RLPredictor": "RLlib",
    "MosaicTrainer": "Mosaic",
    "patch": "mocks what is private",
    "MagicMock": "mocks what is private",
    "monkeypatch": "mocks what is private",
    "DatasetConfig": "Ray's own deprecations",
    "DeprecationWarning": "Ray's own deprecations",
    "RayDeprecationWarning": "Ray's own deprecations",
    "FutureWarning": "Ray's own deprecations",
    "boto3": "cloud filesystems",
    "mock_s3_bucket_uri": "cloud filesystems",
}
# Public names by another way.
PUBLIC = ("ray.train._checkpoint", "ray.train.tests._huggingface_data")
GPU_FIXTURE = re.compile(r"ray_.*_(gpus?|neuron_cores?|hpus?)$")


class Program:
    """The statements of one file, and what each of them uses.

    ``with_refused``: names of Ray Tune for which hpctrain raises an error that names another way
    are no reason. ``rigged``: neither are these names, which rig.py has.
    """

    def __init__(
        self, source: str, *, with_refused: bool = False, rigged: Collection[str] = ()
    ) -> None:
        self.with_refused, self.rigged = with_refused, rigged
        self.tree = ast.parse(source)
        self.imports: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    # `import ray.train` binds ray.
                    whole = alias.name if alias.asname else alias.name.split(".")[0]
                    self.imports[alias.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        # Private attributes that the file itself gives to its objects.
        self.private = {
            one
            for node in ast.walk(self.tree)
            for one in (
                [node.name]
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                else [node.attr]
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                else []
            )
        }
        self.own = {name: node for node in self.tree.body for name in _bound(node)}

    def reason(self, node: ast.AST) -> str | None:
        """Return why the statement does not apply, with what it uses, or None."""
        for one in self._used(node, set()):
            if found := self._reason_of_one(one):
                return found
        return None

    def _reason_of_one(self, statement: ast.AST) -> str | None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and self._is_private(node.attr):
                return "private to Ray"
            if isinstance(node, ast.Call) and any(
                self._is_private(one.arg) for one in node.keywords if one.arg
            ):
                return "private to Ray"
            if isinstance(node, ast.Attribute) and node.attr == "address_info":
                return "a Ray cluster"
            name = dotted(node) if isinstance(node, ast.Attribute | ast.Name) else None
            if isinstance(node, ast.arg):
                name = node.arg
            if name is None:
                continue
            if found := self.reason_of_name(name):
                return found
        return None

    def _is_private(self, attribute: str) -> bool:
        """Return whether an attribute is private to an object that the file did not make."""
        one = attribute.startswith("_") and not attribute.startswith("__")
        return one and attribute not in self.private

    def reason_of_name(self, name: str) -> str | None:
        """Return why a dotted name of the file does not exist here."""
        head, _, rest = name.partition(".")
        if head in self.rigged:
            return None
        if GPU_FIXTURE.match(name):
            return "GPUs or several nodes"
        if (word := name.rpartition(".")[2]) in WORDS:
            return WORDS[word]
        if head in WORDS:
            return WORDS[head]
        whole = ".".join([self.imports.get(head, head), *([rest] if rest else [])])
        if head in self.imports and (package := absent_package(whole)):
            return f"needs {package}"
        if not whole.startswith("ray."):
            return None
        if whole.startswith(PUBLIC):
            return None
        if any(part.startswith("_") and not part.startswith("__") for part in whole.split(".")):
            return "private to Ray"
        if whole.startswith("ray.train.v2") and ".api." not in whole:
            return "private to Ray"
        if whole.startswith("ray.tune."):
            is_shown = self.with_refused and is_refused(whole)
            return None if is_shown else reason_in_tune(whole)
        for prefix, reason in NOT_HERE.items():
            if whole == prefix or whole.startswith(f"{prefix}."):
                return reason
        return None

    def _used(self, node: ast.AST, seen: set[ast.AST]) -> Iterator[ast.AST]:
        if node in seen:
            return
        seen.add(node)
        yield node
        for inner in ast.walk(node):
            name = inner.id if isinstance(inner, ast.Name) else None
            # A test's arguments are fixtures.
            name = inner.arg if isinstance(inner, ast.arg) else name
            if name in self.own and not isinstance(self.own[name], ast.Import | ast.ImportFrom):
                yield from self._used(self.own[name], seen)


def absent_package(name: str) -> str | None:
    """Return the package of a dotted name, if it is not installed here and is not Ray."""
    package = name.split(".")[0]
    if package in {"ray", "hpctrain", "None", "__future__"} or importlib.util.find_spec(package):
        return None
    return package


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def reason_of_script(source: str) -> str | None:
    """Return why a whole script does not apply, or None."""
    if re.search(r"assert torch.cuda.is_available\(\)|torch.cuda.(Event|synchronize)", source):
        return "GPUs"
    if re.search(r"lgb\.(train|cv)\(.*verbose_eval=", source, re.S):
        return "needs an older version of a package"
    # A script that hpctrain refuses counts as refused.
    program = Program(source, with_refused=True)
    reasons = [program.reason(node) for node in program.tree.body]
    return next((reason for reason in reasons if reason), None)
