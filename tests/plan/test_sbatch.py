from __future__ import annotations

from datetime import timedelta

import pytest

from hpctrain import ConfigError, ScalingConfig, SlurmConfig
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import NodeShape, node_range, place_workers
from hpctrain.plan.sbatch import directive_lines, make_directives
from hpctrain.plan.site import Site, load_site, site_names, site_srun_args

NODE = NodeShape(cpus=64, gpus=4)
GIB = 2**30
GPUS = {"num_workers": 8, "use_gpu": True}
CASES = {
    "cpu-only": ScalingConfig(num_workers=8, slurm=SlurmConfig(nodes=2)),
    "cpus-per-worker": ScalingConfig(num_workers=8, resources_per_worker={"CPU": 16}),
    "gpus-by-count": ScalingConfig(**GPUS),
    "gpus-two-a-worker": ScalingConfig(
        num_workers=4, use_gpu=True, resources_per_worker={"GPU": 2, "CPU": 8}
    ),
    "gpus-by-type": ScalingConfig(**GPUS, accelerator_type="a100"),
    "gpus-as-gres": ScalingConfig(**GPUS, slurm=SlurmConfig(gpu_request="gres")),
    "gpus-as-gres-by-type": ScalingConfig(
        **GPUS, accelerator_type="a100", slurm=SlurmConfig(gpu_request="gres")
    ),
    "gpus-per-task": ScalingConfig(**GPUS, slurm=SlurmConfig(gpu_request="gpus-per-task")),
    "gpus-in-total": ScalingConfig(**GPUS, slurm=SlurmConfig(gpu_request="gpus")),
    "gpus-in-total-on-one-node": ScalingConfig(
        num_workers=2, use_gpu=True, slurm=SlurmConfig(gpu_request="gpus")
    ),
    "memory-of-workers": ScalingConfig(
        num_workers=4, resources_per_worker={"memory": 1.5 * GIB}, slurm=SlurmConfig(nodes=2)
    ),
    "memory-of-nodes": ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, mem="120G")),
    "exclusive": ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, exclusive=True, mem="0")),
    "constraint-and-labels": ScalingConfig(
        num_workers=4,
        label_selector={"cpu": "milan", "net": "in(hdr,ndr)"},
        slurm=SlurmConfig(nodes=2, constraint="scratch|nvme"),
    ),
    "where-and-for-how-long": ScalingConfig(
        num_workers=4,
        slurm=SlurmConfig(
            nodes=4,
            partition="long",
            account="abc",
            qos="high",
            reservation="course day",
            time="1-12",
            sbatch_args=["--mail-type=END"],
        ),
    ),
    "skipped": ScalingConfig(
        num_workers=4,
        resources_per_worker={"memory": GIB},
        slurm=SlurmConfig(nodes=2, skip_directives=["--mem", "cpus-per-task"]),
    ),
    "elastic": ScalingConfig(num_workers=(6, 16), slurm=SlurmConfig(tasks_per_node=4)),
    "elastic-with-gpus-in-total": ScalingConfig(
        num_workers=(4, 16), use_gpu=True, slurm=SlurmConfig(gpu_request="gpus")
    ),
    "elastic-on-one-node": ScalingConfig(num_workers=(1, 4)),
    "elastic-with-a-spare-node": ScalingConfig(
        num_workers=(4, 8), slurm=SlurmConfig(nodes=4, spare_nodes=1)
    ),
    "spare-node": ScalingConfig(num_workers=8, slurm=SlurmConfig(nodes=2, spare_nodes=1)),
    "spare-node-and-gpus-in-total": ScalingConfig(
        **GPUS, slurm=SlurmConfig(gpu_request="gpus", spare_nodes=1)
    ),
    "unequal-nodes": ScalingConfig(
        num_workers=5,
        use_gpu=True,
        resources_per_worker={"memory": GIB},
        slurm=SlurmConfig(nodes=2, gpu_request="gpus"),
    ),
    "spread": ScalingConfig(num_workers=3, placement_strategy="SPREAD"),
    "strict-pack": ScalingConfig(num_workers=3, placement_strategy="STRICT_PACK"),
}


def directives(scaling: ScalingConfig, site: Site | None = None, node: NodeShape = NODE):
    placement = place_workers(scaling, node)
    return make_directives(scaling, placement, site or Site(), job_name="run")


@pytest.mark.parametrize("case", sorted(CASES))
def test_directives_of_a_request(golden, case: str):
    scaling = CASES[case]
    lines = directive_lines(directives(scaling))
    golden(f"directives/{case}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", site_names())
def test_eight_gpu_workers_at_a_site(golden, name: str):
    site = load_site(name)
    # Where the profile does not say how many GPUs a node has, the user says how many nodes.
    nodes = None if site.gpus_per_node else 2
    scaling = ScalingConfig(
        **GPUS, slurm=SlurmConfig(site=name, account="abc", time="2:00:00", nodes=nodes)
    )
    placement = place_workers(scaling, site.node_shape)
    asked = make_directives(scaling, placement, site, job_name="run")
    step = site_srun_args(site, placement, gpu_request=scaling.slurm.gpu_request)
    lines = [
        *directive_lines(asked),
        *site.setup,
        *(f"{name}={value}" for name, value in site.environment.items()),
        f"mpi {site.mpi}",
        *(f"srun {option}" for option in step),
    ]
    golden(f"sites/{name}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("time", "written"),
    [
        (45, "45:00"),
        (timedelta(hours=2, seconds=30), "120:30"),
        # Rounded up, and never to 60 seconds.
        (timedelta(seconds=119.7), "2:00"),
        ("2:00:00", "2:00:00"),
        ("1-12", "1-12"),
    ],
)
def test_time_limits(time, written: str):
    assert directives(ScalingConfig(slurm=SlurmConfig(time=time)))["time"] == written


def test_what_the_user_says_wins_over_the_site():
    site = Site(directives={"partition": "gpu", "qos": "normal", "constraint": "gpu"})
    slurm = SlurmConfig(partition="debug", constraint="gpu&hbm80g")
    asked = directives(ScalingConfig(slurm=slurm), site)
    assert (asked["partition"], asked["qos"]) == ("debug", "normal")
    assert asked["constraint"] == "gpu&hbm80g"


def test_labels_are_added_to_the_constraint_of_the_site():
    site = Site(directives={"constraint": "gpu"})
    asked = directives(ScalingConfig(label_selector={"net": "ndr"}), site)
    assert asked["constraint"] == "gpu&ndr"


def test_brackets_of_a_constraint_stay_as_they_are():
    slurm = SlurmConfig(constraint="[rack1|rack2]")
    asked = directives(ScalingConfig(label_selector={"net": "ndr"}, slurm=slurm))
    assert asked["constraint"] == "[rack1|rack2]&ndr"


@pytest.mark.parametrize("value", ["!milan", "!in(milan,rome)", "in()", "a b"])
def test_a_label_that_slurm_cannot_express_is_refused(value: str):
    with pytest.raises(ConfigError, match=r"a value is a feature, or 'in\(one,another\)'"):
        directives(ScalingConfig(label_selector={"cpu": value}))


@pytest.mark.parametrize(
    ("account", "written"), [("abc", "abc@v100"), ("abc@a100", "abc@a100"), (None, None)]
)
def test_the_account_gets_the_suffix_of_the_site_once(account, written):
    site = Site(account_suffix="@v100")
    asked = directives(ScalingConfig(slurm=SlurmConfig(account=account)), site)
    assert asked.get("account") == written


def test_memory_of_the_user_replaces_memory_of_the_site():
    site = Site(directives={"mem-per-gpu": "60G"})
    asked = directives(ScalingConfig(**GPUS, slurm=SlurmConfig(mem="100G")), site)
    assert "mem-per-gpu" not in asked
    assert asked["mem"] == "100G"


def test_memory_by_gpu_is_not_asked_for_without_gpus():
    assert "mem-per-gpu" not in directives(ScalingConfig(), Site(directives={"mem-per-gpu": "60G"}))


def test_a_switch_of_a_site_has_no_value():
    asked = directives(ScalingConfig(), Site(directives={"exclusive": ""}))
    assert "#SBATCH --exclusive" in directive_lines(asked)


@pytest.mark.parametrize("mem", ["10", "10000K", "7G", "8191M"])
def test_too_little_memory_for_the_workers_is_refused(mem: str):
    scaling = ScalingConfig(
        num_workers=4,
        resources_per_worker={"memory": 2 * GIB},
        slurm=SlurmConfig(nodes=1, mem=mem),
    )
    with pytest.raises(ConfigError, match=r"its 4 workers need 8192 MiB .* set mem='8192M'"):
        directives(scaling)


@pytest.mark.parametrize("mem", ["8G", "8GB", "8192M", "1T", "0"])
def test_enough_memory_for_the_workers_is_accepted(mem: str):
    scaling = ScalingConfig(
        num_workers=4,
        resources_per_worker={"memory": 2 * GIB},
        slurm=SlurmConfig(nodes=1, mem=mem),
    )
    assert directives(scaling)["mem"] == mem


@pytest.mark.parametrize("mem", ["8 G", "lots", "1.5G", "-1"])
def test_memory_that_slurm_does_not_read_is_refused(mem: str):
    with pytest.raises(ConfigError, match="Slurm reads a whole number and K, M, G or T"):
        directives(ScalingConfig(slurm=SlurmConfig(mem=mem)))


@pytest.mark.parametrize("name", ["nodes", "--job-name", "signal", "--open-mode"])
def test_what_a_run_needs_cannot_be_left_out(name: str):
    with pytest.raises(ConfigError, match="Leave out only other options"):
        directives(ScalingConfig(slurm=SlurmConfig(skip_directives=[name])))


def test_values_with_blanks_are_quoted():
    assert directive_lines({"reservation": "course day #2"}) == [
        "#SBATCH --reservation='course day #2'"
    ]


def test_a_plan_refuses_further_options_that_contradict_it():
    with pytest.raises(ConfigError, match=r"holds '--mpi=pmix'"):
        LaunchPlan(
            launcher="allocation",
            placement=(placement := place_workers(ScalingConfig(), NODE)),
            job_nodes=node_range(ScalingConfig(), placement),
            threads_per_task=1,
            mpi="auto",
            directives={},
            first_job_directives={},
            setup=(),
            srun_args=("--mpi=pmix",),
            environment={},
        )
