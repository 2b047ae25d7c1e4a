"""Check the model file of XGBoost or LightGBM in a separate process.

``python -m hpctrain.gbdt.model_check FRAMEWORK PATH`` ends with 0 if the file is sound, otherwise
with a line on its output that says why not, or with a signal. A file that its library loads may
still make a prediction access invalid memory, so this also checks the trees.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CPU_S = 20
_MIB_PER_CPU_S = 1
_MEMORY = 8 * 2**30
_MEMORY_PER_BYTE = 64
# Optional packages that the libraries import; reading a model needs none of them.
_NEEDLESS = ("sklearn", "pandas", "pyarrow", "matplotlib", "dask", "polars", "graphviz")
_PARAMETER = re.compile(rb"\[\w+: .*\]|")
# Lists of LightGBM's trees with an entry for each leaf, or for each split.
_LISTS = (b"leaf_value", b"leaf_weight", b"leaf_count", b"internal_", b"split_gain")


def main() -> int:
    """Return the exit status. Not collective."""
    from hpctrain.gbdt.model_file import COMPLAINT, first_line

    framework, path = sys.argv[1], Path(sys.argv[2])
    limit(path.stat().st_size)
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(_NEEDLESS))
    check = _CHECKS[framework]
    try:
        check(path)
    except Exception as error:
        # The libraries print too, so the message gets a line and a prefix of its own.
        sys.stdout.write(f"\n{COMPLAINT}{framework} cannot read it: {first_line(error)}\n")
        return 1
    return 0


def limit(size: int) -> None:
    """Bound the time and the memory of this process, for a file of `size` bytes. Not collective."""
    # A file can make a library loop forever. The limit is CPU time: the machine may be shared.
    seconds = _CPU_S + size // (_MIB_PER_CPU_S * 2**20)
    limits = {
        resource.RLIMIT_AS: _MEMORY + _MEMORY_PER_BYTE * size,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, wanted in limits.items():
        _, hard = resource.getrlimit(kind)
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (soft, hard))


def check_lightgbm(path: Path) -> None:
    """Raise if a file of LightGBM is damaged. Not collective."""
    import lightgbm

    # Check the text first: some texts make LightGBM loop forever.
    check_lightgbm_text(path.read_bytes())
    booster = lightgbm.Booster(model_file=str(path))
    booster.feature_name()
    booster.predict(_rows(booster.num_feature()), num_threads=1)


def check_lightgbm_text(content: bytes) -> None:
    """Raise if the trees of LightGBM's text are damaged. Not collective."""
    if b"\0" in content:
        raise ValueError("the text has a NUL byte")
    head, _, _ = content.partition(b"\nTree=")
    header = _pairs(head)
    features = int(header[b"max_feature_idx"]) + 1
    groups, classes = int(header[b"num_tree_per_iteration"]), int(header[b"num_class"])
    if not 0 < groups <= classes:
        raise ValueError(f"{groups} trees per iteration for {classes} classes")
    start, count = len(head) + 1, 0
    trees, _, _ = content[start:].partition(b"\nend of trees")
    # Files of LightGBM before 2.1.1 have no tree_sizes.
    found = [len(b"Tree=" + tree) + 1 for tree in (b"\n" + trees).split(b"\nTree=")[1:]]
    sizes = _numbers(header[b"tree_sizes"]) if b"tree_sizes" in header else found
    for count, size in enumerate(sizes, 1):
        tree = content[start : start + size]
        if not tree.startswith(b"Tree=%d\n" % (count - 1)) or b"\nTree=" in tree:
            raise ValueError(f"tree {count - 1} is not at the place given by tree_sizes")
        try:
            _check_lightgbm_tree(_pairs(tree), features)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"tree {count - 1}: {error}") from error
        start += size
    if b"tree_sizes" in header and found and not content.startswith(b"end of trees", start):
        raise ValueError("the trees do not end at the place given by tree_sizes")
    if count != len(found):
        raise ValueError(f"tree_sizes has {count} trees, but the file {len(found)}")
    _, parameters, rest = content.partition(b"\nparameters:\n")
    lines, end, _ = rest.partition(b"\nend of parameters\n")
    if parameters and not (end and all(map(_PARAMETER.fullmatch, lines.splitlines()))):
        raise ValueError("its parameters are not [name: value]")
    if count % groups:
        raise ValueError(f"{count} trees are not a multiple of {groups} per iteration")


def check_xgboost(path: Path) -> None:
    """Raise if a file of XGBoost is damaged. Not collective."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1}, model_file=str(path))
    if (best := booster.attr("best_iteration")) is not None:
        int(best)
    check_xgboost_model(json.loads(bytes(booster.save_raw("json"))))
    # Linear models do not support inplace_predict().
    rows = xgboost.DMatrix(_rows(booster.num_features()), nthread=1)
    booster.predict(rows, validate_features=False)


def check_xgboost_model(content: Mapping[str, Any]) -> None:
    """Raise if the trees of XGBoost's JSON are damaged. Not collective."""
    learner = content["learner"]
    features = int(learner["learner_model_param"]["num_feature"])
    names = learner.get("feature_names") or ()
    if names and len(names) != features:
        raise ValueError(f"{len(names)} names for {features} features")
    booster = learner["gradient_booster"]
    # DART has it one level below; linear models have no trees.
    model = booster.get("gbtree", booster)["model"]
    for number, tree in enumerate(model.get("trees", ())):
        try:
            _check_xgboost_tree(tree, features)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"tree {number}: {error}") from error


def _check_xgboost_tree(tree: Mapping[str, Any], features: int) -> None:
    names = ("left_children", "right_children", "split_indices", "split_conditions")
    left, right, split, thresholds = (tree[name] for name in names)
    if not 0 < len(left) == len(right) == len(split) == len(thresholds):
        raise ValueError("its lists have different lengths")
    seen, nodes = {0}, [0]
    while nodes:
        node = nodes.pop()
        if left[node] == -1:
            # A leaf. With several targets, right_children holds the index of its values.
            continue
        if not 0 <= split[node] < features:
            raise ValueError(f"it splits by feature {split[node]} of {features}")
        for child in (left[node], right[node]):
            if child in seen or not 0 < child < len(left):
                raise ValueError("its nodes do not form a tree")
            seen.add(child)
            nodes.append(child)


def _check_lightgbm_tree(tree: Mapping[bytes, bytes], features: int) -> None:
    leaves, categories = int(tree[b"num_leaves"]), int(tree[b"num_cat"])
    for name, text in tree.items():
        values = [*map(_number, text.split())]
        # A tree without a split has some empty lists.
        expected = leaves - (name.startswith((b"internal_", b"split_gain")))
        if name.startswith(_LISTS) and len(values) != expected and (values or leaves > 1):
            raise ValueError(f"{len(values)} values of {name.decode()} for {leaves} leaves")
    if not 0 < leaves == len(tree[b"leaf_value"].split()):
        raise ValueError(f"it has {leaves} leaves, but another number of leaf values")
    if leaves == 1:
        return
    names = (b"left_child", b"right_child", b"split_feature", b"decision_type")
    left, right, split, kinds = ([*_numbers(tree[name])] for name in names)
    thresholds = [*map(_number, tree[b"threshold"].split())]
    if {len(part) for part in (left, right, split, kinds, thresholds)} != {leaves - 1}:
        raise ValueError(f"its lists have different lengths for {leaves} leaves")
    if sorted((*left, *right)) != [*range(-leaves, 0), *range(1, leaves - 1)]:
        raise ValueError("its nodes do not form a tree")
    if not all(0 <= feature < features for feature in split):
        raise ValueError(f"it splits by a feature that is not one of the {features}")
    if categories:
        bounds = [*_numbers(tree[b"cat_boundaries"])]
        size = len([*_numbers(tree[b"cat_threshold"])])
        if [0, *bounds[1:-1], size] != sorted(bounds) or len(bounds) != categories + 1:
            raise ValueError("its categories do not match cat_boundaries")
    # The threshold of a split by categories is the index of its set.
    sets = [value for value, kind in zip(thresholds, kinds, strict=True) if kind & 1]
    if not all(0 <= number < categories for number in sets):
        raise ValueError(f"it has {categories} sets of categories, but splits by others")
    if tree.get(b"is_linear", b"0") != b"0":
        counts, used = [*_numbers(tree[b"num_features"])], [*_numbers(tree[b"leaf_features"])]
        if (len(counts), sum(counts)) != (leaves, len(used)) or min(counts) < 0:
            raise ValueError("the features of its leaves do not match num_features")
        if not all(0 <= feature < features for feature in used):
            raise ValueError(f"a leaf uses a feature that is not one of the {features}")


def _rows(features: int) -> Any:
    import numpy as np

    return np.repeat(np.array([[0.0], [np.nan], [1e6], [-1e6]]), features, axis=1)


def _pairs(text: bytes) -> dict[bytes, bytes]:
    return dict(line.split(b"=", 1) for line in text.splitlines() if b"=" in line)


def _number(text: bytes) -> float:
    if b"_" in text:
        # float() accepts underscores.
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def _numbers(text: bytes) -> Iterator[int]:
    return map(int, text.split())


_CHECKS = {"lightgbm": check_lightgbm, "xgboost": check_xgboost}

if __name__ == "__main__":
    sys.exit(main())
