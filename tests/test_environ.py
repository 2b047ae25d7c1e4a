from __future__ import annotations

import os

import pytest

from hpctrain import environ
from hpctrain.errors import ConfigError
from tests.environments import HYDRA, LAPTOP, OPENMPI, PMI2, PMIX, STEP


@pytest.mark.parametrize("launcher", [PMI2, PMIX, HYDRA, OPENMPI])
def test_a_child_of_a_rank_does_not_see_what_made_its_parent_one(launcher: dict[str, str]):
    kept = {"OMPI_MCA_btl": "self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "PRTE_MCA_oversubscribe": "1"}
    assert environ.without_launcher_variables(STEP | launcher | kept) == STEP | kept


def test_scrubbing_deletes_from_this_process_what_made_it_a_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", dict(LAPTOP | HYDRA | OPENMPI))
    environ.scrub_launcher_variables()
    assert os.environ == LAPTOP | {"PRTE_MCA_oversubscribe": "1"}


def test_exporting_keeps_what_the_user_has_set_if_asked_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "2"})
    environ.export({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}, keep_existing=True)
    assert environ.environment() == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "4"}
    environ.export({"OMP_NUM_THREADS": "4"})
    assert environ.variable("OMP_NUM_THREADS") == "4"
    assert environ.variable("NO_SUCH_VARIABLE") is None


def test_requests_of_the_command_line_reach_every_fit_and_its_children(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(os, "environ", {})
    assert environ.requested_launcher() is None
    assert not environ.detach_requested()
    assert not environ.dry_run_requested()
    assert not environ.in_rank()
    environ.request_launcher("local")
    environ.request_detach()
    environ.request_dry_run()
    assert environ.requested_launcher() == "local"
    assert environ.detach_requested()
    assert environ.dry_run_requested()


def test_steps_get_what_a_job_with_export_none_has():
    job = {"PATH": "/usr/bin", "SLURM_EXPORT_ENV": "NONE", "SRUN_EXPORT_ENV": "A"}
    assert environ.without_export_variables(job) == {"PATH": "/usr/bin"}


@pytest.mark.parametrize(("value", "wanted"), [(None, True), ("", True), ("1", True), ("0", False)])
def test_ranks_are_forked_unless_that_is_turned_off(
    value: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HPCTRAIN_FORK_SERVER", raising=False)
    if value is not None:
        monkeypatch.setenv("HPCTRAIN_FORK_SERVER", value)
    assert environ.wants_fork_server() is wanted


def test_why_a_rank_was_not_forked_is_taken_away_with_the_variable(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("HPCTRAIN_NOT_FORKED", "no room")
    assert [environ.take_not_forked() for _ in range(2)] == ["no room", ""]
    assert "HPCTRAIN_NOT_FORKED" not in environ.environment()


@pytest.mark.parametrize("value", ["no", "off", "false", "O", "00", " 0"])
def test_a_fork_server_that_is_neither_on_nor_off_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HPCTRAIN_FORK_SERVER", value)
    with pytest.raises(ConfigError, match=r"HPCTRAIN_FORK_SERVER=.* set it to 0"):
        environ.wants_fork_server()


@pytest.mark.parametrize(("value", "fanout"), [(None, 32), ("", 32), ("2", 2), ("20000", 20000)])
def test_a_hub_has_32_connections_unless_another_number_is_asked_for(
    value: str | None, fanout: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HPCTRAIN_HUB_FANOUT", raising=False)
    if value is not None:
        monkeypatch.setenv("HPCTRAIN_HUB_FANOUT", value)
    assert environ.hub_fanout() == fanout


@pytest.mark.parametrize("value", ["0", "1", "-2", "many", "2.5", "\u0662"])
def test_a_hub_without_a_tree_to_build_is_refused(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HPCTRAIN_HUB_FANOUT", value)
    with pytest.raises(ConfigError, match=r"HPCTRAIN_HUB_FANOUT=.* 2 or more"):
        environ.hub_fanout()


@pytest.mark.parametrize("text", ["partition=gpu", '["gpu"]', "7", "{", "null"])
def test_overrides_of_the_slurm_config_are_a_json_object(
    monkeypatch: pytest.MonkeyPatch, text: str
):
    monkeypatch.setattr(os, "environ", {"HPCTRAIN_SLURM": text})
    with pytest.raises(ConfigError, match=r"HPCTRAIN_SLURM=.*JSON object"):
        environ.slurm_overrides()


def test_options_override_the_variable_field_by_field(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", {"HPCTRAIN_SLURM": '{"partition": "gpu", "qos": "long"}'})
    environ.request_slurm_overrides({"partition": "cpu"})
    assert environ.slurm_overrides() == {"partition": "cpu", "qos": "long"}
