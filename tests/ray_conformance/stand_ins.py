"""Small local data in place of what Ray's programs download, and sizes for two CPUs."""

from __future__ import annotations

import atexit
import functools
import gzip
import re
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np

# What is changed in every program, besides import lines and prefixes.
EDITS = {
    r"\[55000, 5000\]": "[800, 224]",
    # Beside GPUs of a worker it stays: False would contradict them.
    r'use_gpu=True(?!,\s*resources_per_worker=\{[^}]*["\']GPU["\'])': "use_gpu=False",
    r'("use_gpu",) ?[\[(](?:True, False|False, True),?[\])]': r"\1 [False]",
    r"num_workers=([5-9]|\d\d+)\b": "num_workers=2",
    r"s3://anonymous@\w+-example-data/([\w.]+)": r"@FOLDER@/data/\1",
    r"example://(iris\.csv|breast_cancer\.csv)": r"@FOLDER@/data/\1",
    r"/tmp/data\b": "@FOLDER@/data",
    # Weights that torchvision would download.
    r"(detection\.\w+)\(pretrained=True\)": r"\1(weights=None, weights_backbone=None)",
    r"/mnt/(cluster|shared)_storage[\w/]*": "@FOLDER@/storage",
    r"https://s3.amazonaws.com/\S+?/([\w.]+\.csv)": r"@FOLDER@/data/\1",
}


def shrink(program: str) -> str:
    """Return the program with local data and with sizes for two CPUs."""
    for old, new in EDITS.items():
        program = re.sub(old, new, program)
    return program


def lay_out(folder: Path) -> None:
    """Write the data into ``folder/data``, and images where torchvision looks for them."""
    shutil.copytree(_laid_out(), folder, symlinks=True, dirs_exist_ok=True)


@functools.cache
def _laid_out() -> Path:
    kept = tempfile.TemporaryDirectory(prefix="ray-conformance-data-")
    atexit.register(kept.cleanup)
    folder = Path(kept.name)
    (folder / "storage").mkdir()
    data = folder / "data"
    data.mkdir()
    _write_breast_cancer(data / "breast_cancer.csv")
    _write_regression(data / "regression.csv")
    _write_iris(data)
    home = folder / "home"
    home.mkdir()
    (home / "data").symlink_to(Path("../data"))
    for name in ("FashionMNIST", "MNIST"):
        for root in (data, folder, folder / "files", folder / "tmp"):
            _write_images(root / name / "raw")
    (data / "sms_spam_collection_subset.txt").write_text("ham\thello\nspam\twin now\n" * 50)
    return folder


def _write_breast_cancer(path: Path) -> None:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True).frame
    data.to_csv(path, index=False)


def _write_regression(path: Path) -> None:
    from sklearn.datasets import make_regression

    x, y = make_regression(n_samples=1000, n_features=100, random_state=0)
    names = [f"x{index:03}" for index in range(100)]
    table = np.column_stack([x, y])
    np.savetxt(path, table, delimiter=",", header=",".join([*names, "y"]), comments="")


def _write_iris(data: Path) -> None:
    from sklearn.datasets import load_iris

    frame = load_iris(as_frame=True).frame
    names = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"]
    frame = frame.rename(columns={"target": "target"})[[*names, "target"]]
    frame.to_csv(data / "iris.csv", index=False)
    frame.columns = ["sepal.length", "sepal.width", "petal.length", "petal.width", "variety"]
    frame.to_parquet(data / "iris.parquet")


def _write_images(raw: Path) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", 1024), ("t10k", 64)):
        pixels = random.integers(0, 256, (count, 28, 28), dtype=np.uint8).tobytes()
        labels = random.integers(0, 10, count, dtype=np.uint8).tobytes()
        images_header = struct.pack(">IIII", 2051, count, 28, 28)
        labels_header = struct.pack(">II", 2049, count)
        for name, content in (
            (f"{part}-images-idx3-ubyte", images_header + pixels),
            (f"{part}-labels-idx1-ubyte", labels_header + labels),
        ):
            (raw / name).write_bytes(content)
            (raw / f"{name}.gz").write_bytes(gzip.compress(content))
