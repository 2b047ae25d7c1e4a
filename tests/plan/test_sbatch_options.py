from __future__ import annotations

import pytest

from hpctrain import ConfigError, SlurmConfig
from hpctrain.plan.sbatch_options import (
    check_site_directives,
    check_srun_args,
    hidden_variables,
    merge_directives,
    parse_sbatch_args,
    read_sbatch_variables,
)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--nodes=3", r"SlurmConfig\(nodes=...\)"),
        ("-N3", r"SlurmConfig\(nodes=...\)"),
        ("-n", r"ScalingConfig\(num_workers=...\)"),
        ("--ntasks-per-node=2", r"SlurmConfig\(tasks_per_node=...\)"),
        ("--tasks-per-node=2", r"SlurmConfig\(tasks_per_node=...\)"),
        ("--ntasks-per-socket=2", r"SlurmConfig\(tasks_per_node=...\)"),
        ("-c4", r"resources_per_worker={'CPU': ...}"),
        ("--tres-per-task=gres/gpu:1", r"resources_per_worker={'CPU': ..., 'GPU': ...}"),
        ("--gpus=2", r"use_gpu=True and resources_per_worker={'GPU': ...}"),
        ("--gres=nvme:1,gpu:2", r"use_gpu=True and resources_per_worker={'GPU': ...}"),
        ("--job-name=x", r"RunConfig\(name=...\)"),
        ("--output=%j.out", r"RunConfig\(storage_path=...\)"),
        ("--array=0-3", "one run for each value"),
        ("-k", r"num_workers=\(fewest, most\), or SlurmConfig\(spare_nodes=...\),"),
        ("--signal=B:USR1@60", r"SlurmConfig\(stop_notice_s=...\)"),
        ("--signal USR1@60", r"SlurmConfig\(stop_notice_s=...\)"),
        ("--open-mode=truncate", "the log that hpctrain appends to"),
        ("--wait", r"fit\(\), or 'hpctrain submit --wait',"),
        ("-HW", r"fit\(\), or 'hpctrain submit --wait',"),
        ("--parsable", "'hpctrain submit', which prints the job id,"),
        ("-Q", r"RunConfig\(verbose=0\)"),
        ("--test-only", "HPCTRAIN_DRY_RUN=1"),
        ("--wrap=true", r"SlurmConfig\(setup=...\)"),
        ("-M other", "a login node of that cluster, or SLURM_CLUSTERS,"),
        ("--uid=1000", "a login as that user"),
        ("--partition=gpu", r"SlurmConfig\(partition=...\)"),
        ("-t10", r"SlurmConfig\(time=...\)"),
        ("--mem=8G", r"SlurmConfig\(mem=...\)"),
        # sbatch takes the beginning of a name for the name.
        ("--sig=USR1@60", r"SlurmConfig\(stop_notice_s=...\)"),
    ],
)
def test_sbatch_options_that_contradict_the_plan_are_refused(option: str, instead: str):
    with pytest.raises(ConfigError, match=f"sbatch_args.*Use {instead} instead"):
        parse_sbatch_args([option])


@pytest.mark.parametrize(
    "option",
    [
        "--mpi=pmix",
        "-n4",
        "--cpus-per-task=2",
        "--nodes 2",
        "--tasks-per-node=2",
        # srun takes joined letters one by one, and the beginning of a name for the name.
        "-vn4",
        "-luN2",
        "--ntasks-per-nod=2",
    ],
)
def test_srun_options_that_contradict_the_plan_are_refused(option: str):
    with pytest.raises(ConfigError, match=r"srun_args.*instead"):
        check_srun_args([option])


@pytest.mark.parametrize(
    "option", ["--export=NONE", "--export=A,B=1", "--export NONE", "--exp=NONE", "--export"]
)
def test_an_option_that_keeps_the_environment_from_ranks_is_refused(option: str):
    with pytest.raises(ConfigError, match=r"Use --export=ALL,NAME=value"):
        check_srun_args([option])
    check_srun_args(["--export=ALL,A=1", "--export A=1,ALL", "--exp=ALL"])


@pytest.mark.parametrize(
    ("options", "parsed"),
    [
        (["--depend=afterok:5"], {"dependency": "afterok:5"}),
        (["--beg now+1hour", "--hol"], {"begin": "now+1hour", "hold": None}),
        (["--mem-per-g=60G", "--mem-per-c=2G"], {"mem-per-cpu": "2G"}),
        (["--gres-f=disable-binding"], {"gres-flags": "disable-binding"}),
        # sbatch refuses what could be two: exclude, exclusive.
        (["--excl=node1"], {"excl": "node1"}),
        (["--gres=nvme:1"], {"gres": "nvme:1"}),
        (["--extra=green=1"], {"extra": "green=1"}),
    ],
)
def test_a_prefix_of_one_option_alone_is_that_option(
    options: list[str], parsed: dict[str, str | None]
):
    assert parse_sbatch_args(options) == parsed


def test_other_options_are_passed_on():
    options = [
        "--mail-type=END",
        "-x",
        "-w node1",
        "-Hv",
        "--comment=a b",
        "--nice=-5",
        "-d singleton",
    ]
    assert parse_sbatch_args(options) == {
        "mail-type": "END",
        "exclude": None,
        "nodelist": "node1",
        "hold": None,
        "verbose": None,
        "comment": "a b",
        "nice": "-5",
        "dependency": "singleton",
    }
    check_srun_args(["--cpu-bind=none", "-l", "-wn4", "-vK1", "closest"])


@pytest.mark.parametrize("option", ["--no-requeue", "--requeue", "--export=NONE", "--chdir=/tmp"])
def test_options_that_the_run_lives_with_are_passed_on(option: str):
    assert len(parse_sbatch_args([option])) == 1


def test_two_options_in_one_entry_are_refused():
    with pytest.raises(ConfigError, match=r"'--hold --signal=USR1@60', which is two options"):
        parse_sbatch_args(["--hold --signal=USR1@60"])


@pytest.mark.parametrize("option", ["-Z", "--comment=a\n#SBATCH --hold", "-"])
def test_what_is_no_option_is_refused(option: str):
    with pytest.raises(ConfigError, match="which sbatch does not know"):
        parse_sbatch_args([option])


def test_a_site_profile_cannot_contradict_the_plan():
    with pytest.raises(ConfigError, match=r"here.toml: \[directives\] holds 'signal'.*stop_notice"):
        check_site_directives({"partition": "gpu", "signal": "USR1@60"}, origin="here.toml")
    check_site_directives(
        {
            "partition": "gpu",
            "time": "10",
            "mem": "0",
            "gres": "nvme:1",
            "image": "a",
            "extra": "b",
        },
        origin="it",
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tasks-per-node", "4", "sets --ntasks-per-node itself. Use SlurmConfig.tasks_per_node"),
        ("ntasks-per-nod", "4", "sets --ntasks-per-node itself"),
        ("cluster", "other", "sets --clusters itself"),
        ("gres", "gpu:4", "sets --gres itself. Use use_gpu=True"),
        ("N", "4", "sbatch's long options in full, without dashes before them"),
        ("parti", "gpu", "long options in full"),
        ("excl", "", "long options in full"),
        ("--partition", "gpu", "without dashes before them"),
        ("nodes ", "4", "long options in full"),
        ("partition=gpu", "", "long options in full"),
    ],
)
def test_a_site_profile_cannot_contradict_the_plan_under_another_name(
    name: str, value: str, message: str
):
    with pytest.raises(ConfigError, match=rf"\[directives\] holds '{name}'.*{message}"):
        check_site_directives({name: value}, origin="here.toml")


def test_directives_among_shell_lines_are_refused():
    with pytest.raises(ConfigError, match=r"'#SBATCH --hold', which sbatch does not read there"):
        SlurmConfig(setup=["module load a\n#SBATCH --hold"])


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"SBATCH_PARTITION": "gpu", "SBATCH_TIMELIMIT": "10"}, {"partition": "gpu", "time": "10"}),
        ({"SBATCH_EXPORT": "NONE"}, {"export": "NONE"}),
        ({"SBATCH_NO_REQUEUE": "0"}, {"no-requeue": None}),
        ({"SBATCH_MEM_PER_NODE": "4G", "SBATCH_GRES": "nvme:1"}, {"mem": "4G", "gres": "nvme:1"}),
        ({"SBATCH_REQ_SWITCH": "1", "SBATCH_WAIT4SWITCH": "60"}, {"switches": "1@60"}),
        ({"SBATCH_EXCLUSIVE": "user"}, {"exclusive": "user"}),
        ({"SBATCH_DEBUG": "1", "SLURM_NTASKS": "4", "SBATCHES": "3"}, {}),
    ],
)
def test_what_the_environment_asks_of_sbatch_is_taken_over(variables, options):
    assert read_sbatch_variables(variables) == (options, ())


@pytest.mark.parametrize(
    ("variable", "value", "instead"),
    [
        ("SBATCH_SIGNAL", "USR1@60", "SlurmConfig(stop_notice_s=...)"),
        ("SBATCH_ARRAY_INX", "0-3", "one run for each value"),
        ("SBATCH_WAIT", "1", "fit(), or 'hpctrain submit --wait'"),
        ("SBATCH_OPEN_MODE", "truncate", "the log that hpctrain appends to"),
        ("SBATCH_OUTPUT", "%j.out", "RunConfig(storage_path=...)"),
        ("SBATCH_JOB_NAME", "mine", "RunConfig(name=...)"),
        ("SBATCH_GRES", "gpu:2", "use_gpu=True and resources_per_worker={'GPU': ...}"),
    ],
)
def test_what_contradicts_the_plan_is_not_taken_over_and_named(variable, value, instead):
    options, refused = read_sbatch_variables({variable: value})
    assert options == {}
    assert refused == (f"{variable}={value} is ignored: use {instead}",)
    assert hidden_variables({variable: value}) == (variable,)


def test_another_cluster_in_the_environment_is_refused():
    with pytest.raises(ConfigError, match="SBATCH_CLUSTERS=b is in the environment"):
        read_sbatch_variables({"SBATCH_CLUSTERS": "b"})


def test_variables_of_a_job_are_hidden_inside_of_it_only():
    variables = {"SLURM_MEM_PER_CPU": "1", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/"}
    assert hidden_variables(variables) == ()
    inside = {**variables, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    assert hidden_variables(inside) == ("SLURM_MEM_PER_CPU", "SLURM_JOB_ID", "SLURMD_NODENAME")


def test_the_later_of_two_that_exclude_each_other_stays():
    site = {"mem-per-gpu": "60G", "requeue": None, "hint": "nomultithread"}
    assert merge_directives(site, {"no-requeue": None, "mem": "0"}) == {
        "hint": "nomultithread",
        "no-requeue": None,
        "mem": "0",
    }
