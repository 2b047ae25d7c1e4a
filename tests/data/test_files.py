from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.data.files import find_files
from hpctrain.errors import ConfigError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "top.csv",
        "notes.txt",
        "year=2025/part.10.csv",
        "year=2025/part.2.csv",
        "year=2026/month=1/part.0.csv",
        "_delta_log/1.csv",
        ".hidden/1.csv",
        "_temporary/0/1.csv",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        pytest.param(
            "year=*",
            ["year=2025/part.2.csv", "year=2025/part.10.csv", "year=2026/month=1/part.0.csv"],
            id="directories alone",
        ),
        pytest.param(
            "*",
            [
                "notes.txt",
                "top.csv",
                "year=2025/part.2.csv",
                "year=2025/part.10.csv",
                "year=2026/month=1/part.0.csv",
            ],
            id="files and directories",
        ),
        pytest.param(
            "year*/**",
            ["year=2025/part.2.csv", "year=2025/part.10.csv", "year=2026/month=1/part.0.csv"],
            id="directories and the files in them",
        ),
        pytest.param("_t*/*/*.csv", ["_temporary/0/1.csv"], id="what is named is read"),
    ],
)
def test_a_directory_that_a_pattern_matches_stands_for_its_files(
    tree: Path, pattern: str, names: list[str]
) -> None:
    assert find_files(tree / pattern, [".csv"]) == [str(tree / name) for name in names]


@pytest.mark.parametrize("below", [".", "day*"])
def test_names_that_differ_in_leading_zeros_alone_have_one_order(
    tmp_path: Path, below: str
) -> None:
    names = sorted(f"day{'0' * zeros}1.csv" for zeros in range(9))
    for name in reversed(names):
        (tmp_path / name).touch()
    assert find_files(tmp_path / below, [".csv"]) == [str(tmp_path / name) for name in names]


def test_a_pattern_that_matches_directories_without_files_says_what_is_missing(tree: Path) -> None:
    with pytest.raises(ConfigError, match=r"matches no file, nor a directory .* end with \.h5"):
        find_files(tree / "year=*", [".h5"])


def test_a_directory_that_may_not_be_listed_is_named_with_what_to_do(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:  # root may list everything
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("hpctrain.data.files.scandir", refuse)
    for path in (tree / "year=2025", tree / "year=*"):
        with pytest.raises(ConfigError, match=r"year=202\d may not be listed: Permission"):
            find_files(path, [".csv"])
