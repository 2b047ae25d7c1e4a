from __future__ import annotations

import pytest

from hpctrain.checkpoint_uri import split_uri
from hpctrain.errors import ConfigError


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/a/run?1#2/c", "/a/run?1#2/c"),
        ("file:///a/c", "/a/c"),
        ("file:/a/c", "/a/c"),
        ("file://localhost/a/c", "/a/c"),
        ("file:///a/run#1/c", "/a/run#1/c"),
        ("file:///a/run%231%3F%20/c", "/a/run#1? /c"),
    ],
)
def test_the_path_of_a_file_is_kept_whole(uri: str, path: str):
    assert split_uri(uri, "from_uri") == ("file", path)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("file://models/ckpt", "'models' is a host.* use three slashes"),
        ("file:///a/run?1/c", r"'\?' begins a query.* %3F"),
        ("s3://bucket/c", "a directory that all nodes see"),
    ],
)
def test_what_does_not_name_a_file_is_refused(uri: str, message: str):
    with pytest.raises(ConfigError, match=message):
        split_uri(uri, "from_uri")
