"""What is read of Slurm's lines about a cluster."""

from __future__ import annotations

import pytest

from hpctrain.slurm.cluster_output import NodeGroup, count_gpus


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("craynetwork:4,gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:2(IDX:0,2),gpu:v100:1", 3),
        ("vgpu:8", 0),
        ("my-gpu:8,gpu:2", 2),
    ],
)
def test_only_the_resource_gpu_is_one(gres: str, gpus: int):
    group = NodeGroup(count=1, state="idle", cpus=8, mem_mib=1000, gres=gres)
    assert (count_gpus(gres), group.gpus(None)) == (gpus, gpus)
