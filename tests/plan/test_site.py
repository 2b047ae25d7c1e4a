from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from hpctrain import ConfigError, ScalingConfig
from hpctrain.plan.resources import NodeShape, place_workers
from hpctrain.plan.site import Site, known_shape, load_site, site_names, site_srun_args


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_profile_of_the_users_own_is_a_file(tmp_path: Path):
    site = load_site(
        write(tmp_path, 'gpus_per_node = 4\nsetup = ["module load x"]\n[directives]\nqos = "long"')
    )
    assert site == Site(
        name="mine", gpus_per_node=4, setup=("module load x",), directives={"qos": "long"}
    )


def test_no_profile_knows_nothing():
    assert load_site(None) == Site()


@pytest.mark.parametrize("name", site_names())
def test_a_shipped_profile_says_its_source_when_it_was_checked_and_how_sure_it_is(name: str):
    site = load_site(name)
    text = (files("hpctrain.slurm_templates") / "sites" / f"{name}.toml").read_text("utf-8")
    header = re.fullmatch(
        r"# [^\n]+\n"
        r"# Source: (?P<source>[^\n]+)\.\n"
        r"# Checked: (?P<checked>not checked(?: at the centre)?|\d{4}-\d\d-\d\d[^\n]*)\.\n"
        r"# Certainty: (?P<certainty>none|[ABC], [^\n]+)\.\n"
        r"(?s:.*)",
        text,
    )
    assert header is not None, text[:400]
    assert site.description
    if name == "generic":
        assert (site.grade, header["certainty"]) == ("", "none")
        return
    assert re.search(r"; read by \d{4}-\d\d-\d\d$", header["source"])
    assert header["certainty"][0] == site.grade
    assert ("verify before" in header["certainty"]) == (site.grade == "C")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partition = gpu", "is not TOML"),
        ('partition = "gpu"', r"has the keys \['partition'\].*belong below \[directives\]"),
        ('name = "x"', r"has the keys \['name'\]"),
        ('gpus_per_node = "4"', r"gpus_per_node = '4'. It is a number"),
        ("gpus_per_node = true", "It is a number"),
        ("gpus_per_node = 0", "gpus_per_node = 0. It is a number of at least 1, or left out"),
        ('setup = "module load x"', "setup = 'module load x'. It is a list of texts"),
        ("srun_args = [1]", "It is a list of texts"),
        ("[directives]\nnodes = 2", r"directives = {'nodes': 2}. It is a table of texts"),
        ("mpi = 1", "It is a text"),
        ('srun_args = ["--ntasks=4"]', r"toml: srun_args holds '--ntasks=4'.*num_workers"),
        ('gpu_srun_args = ["-vc4"]', r"toml: gpu_srun_args holds '-vc4'.*'CPU'"),
        ('full_node_srun_args = ["--export=A"]', r"toml: full_node_srun_args holds '--export=A'"),
        ('gpu_request = "auto"', "gpu_request='auto'. Use one of gpus-per-node, gpus-per-task"),
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        load_site(write(tmp_path, text))
    assert "mine.toml" in str(caught.value)


def test_a_profile_in_another_encoding_is_refused(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_bytes('description = "Jülich"'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine.toml is not UTF-8: byte 0xfc at 16. Save it as"):
        load_site(str(path))


def test_a_profile_may_begin_with_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text("gpus_per_node = 4", encoding="utf-8-sig")
    assert load_site(str(path)) == Site(name="mine", gpus_per_node=4)


def test_an_unknown_profile_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"known profiles are .*frontier.*perlmutter"):
        load_site("summit")


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"'mine.toml'\): there is no such file. Give its full"):
        load_site("mine.toml")


def test_what_the_profile_says_of_a_node_wins_over_what_slurm_says():
    site = Site(cpus_per_node=56, cpus_per_gpu=7)
    assert known_shape(site, NodeShape(cpus=128, gpus=8)) == NodeShape(
        cpus=56, gpus=8, cpus_per_gpu=7
    )


def test_binding_masks_are_for_whole_nodes_only():
    site = load_site("lumi-g")
    for num_workers, bound in ((16, True), (4, False)):
        scaling = ScalingConfig(num_workers=num_workers, use_gpu=True)
        options = site_srun_args(site, place_workers(scaling, site.node_shape), gpu_request="auto")
        assert any("mask_cpu" in option for option in options) is bound


def test_options_for_gpus_are_for_gpus_only():
    site = Site(srun_args=("-l",), gpu_srun_args=("--gpu-bind=closest",), cpus_per_node=8)
    placement = place_workers(ScalingConfig(num_workers=4), site.node_shape)
    assert site_srun_args(site, placement, gpu_request="gpus-per-task") == ("-l",)


def test_gpus_by_task_are_said_to_srun_too():
    site = Site(gpus_per_node=4)
    placement = place_workers(ScalingConfig(num_workers=4, use_gpu=True), site.node_shape)
    assert site_srun_args(site, placement, gpu_request="gpus-per-task") == ("--gpus-per-task=1",)
    assert site_srun_args(site, placement, gpu_request="auto") == ()
