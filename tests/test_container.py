from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpctrain import ConfigError, Container, SlurmConfig
from hpctrain.container import can_mount


def test_mounts_are_at_their_own_paths_unless_another_one_is_given():
    container = Container(
        image=Path("/images/torch.sif"), mounts=["/data", Path("/a b"), "/x:/y:rw", "/z:ro"]
    )
    assert container.image == "/images/torch.sif"
    assert container.mounts == ("/data:/data", "/a b:/a b", "/x:/y", "/z:/z:ro")


def test_a_container_prints_what_is_no_default():
    assert repr(Container(image="a.sif")) == "Container(image='a.sif')"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Container needs image: give image=."),
        ({"image": ""}, "Container(image=''): one non-empty line is needed"),
        ({"image": "a\nb"}, "one non-empty line is needed, the image as its runtime knows it."),
        ({"image": "~/a.sif"}, "Container(image='~/a.sif'): no shell reads it. Give the whole"),
        ({"image": "$HOME/a.sif"}, "no shell reads it"),
        ({"image": "--nv"}, "no shell reads it"),
        ({"image": 3}, "Container(image=...) holds 3 of type int. A str or PathLike is needed."),
        ({"runtime": "docker"}, "is 'docker'. One of 'apptainer', 'singularity', 'pyxis',"),
        ({"python": ""}, "Container(python=''): one non-empty line is needed"),
        ({"mounts": "/data"}, "Container(mounts='/data') is a string. It is a list of mounts"),
        ({"mounts": ["data"]}, "Container(mounts=['data']): a mount is '/path', '/path:/path/ins"),
        ({"mounts": ["$DATA:/data"]}, "No shell expands them."),
        ({"mounts": ["/a,/b"]}, "whole paths without commas"),
        ({"mounts": ["/a:/b:ro:rw"]}, "a mount is '/path'"),
        ({"mounts": ["/a:b"]}, "a mount is '/path'"),
        ({"mounts": ["ro"]}, "a mount is '/path'"),
        ({"mounts": ["/a:/b", "/c:/b"]}, "'/a:/b' and '/c:/b' have one place inside. Leave one"),
        ({"mounts": ["/a", "/a:/a:ro"]}, "'/a:/a' and '/a:/a:ro' have one place inside"),
        ({"mounts": ["/a:ro"], "runtime": "shifter"}, "cannot make it read-only there. Leave"),
        ({"options": "--nv"}, "Container(options='--nv') is a string. It is a list of words"),
        ({"options": [""]}, "one word of the command line"),
        ({"imgae": "x"}, "Container has no field 'imgae'. Did you mean 'image'?"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_the_rule(fields, message: str):
    fields = fields if not fields else {"image": "a.sif", **fields}
    with pytest.raises(ConfigError, match=re.escape(message)):
        Container(**fields)


def test_an_image_alone_does_not_say_what_opens_it():
    message = (
        "SlurmConfig(container='torch.sif'): say which runtime opens the image, as in "
        "Container(image='torch.sif', runtime='apptainer')."
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        SlurmConfig(container="torch.sif")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"of type dict\. A Container is needed"):
        SlurmConfig(container={"image": "torch.sif"})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/a:b", "/a,b", "/a\nb"])
def test_no_option_of_a_runtime_can_name_some_paths(path: str):
    assert not can_mount(path)
