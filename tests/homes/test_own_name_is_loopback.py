"""Nodes whose own name stands for a loopback address there, as Debian's installer sets it up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster, best_mode
from tests.processes import run_python

SCRIPT = """
import socket, sys
import numpy as np
from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.lightgbm import LightGBMConfig, LightGBMTrainer
from hpctrain.torch import TorchTrainer
from hpctrain.xgboost import XGBoostTrainer

def own_address():
    return socket.gethostbyname(socket.gethostname())

def xgboost_on_all_ranks():
    import xgboost
    from xgboost import collective
    x = np.arange(40.0).reshape(20, 2)
    xgboost.train({}, xgboost.QuantileDMatrix(x, x[:, 0]), 2)
    return own_address(), collective.get_world_size()

def lightgbm_on_all_ranks():
    import lightgbm
    from hpctrain.lightgbm import get_network_params
    x = np.arange(400.0).reshape(200, 2)
    params = {"verbose": -1, **get_network_params()}
    lightgbm.train(params, lightgbm.Dataset(x, x[:, 0], params=params), 2)
    return own_address(), params["num_machines"]

def torch_on_all_ranks():
    import torch
    one = torch.ones(1)
    torch.distributed.all_reduce(one)
    return own_address(), int(one)

if __name__ == "__main__":
    storage, library = sys.argv[1:]
    settings = {
        "scaling_config": ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2)),
        "run_config": RunConfig(storage_path=storage, name="run"),
    }
    if library == "xgboost":
        trainer = XGBoostTrainer(xgboost_on_all_ranks, **settings)
    elif library == "lightgbm":
        network = LightGBMConfig(network="sockets")
        trainer = LightGBMTrainer(lightgbm_on_all_ranks, lightgbm_config=network, **settings)
    else:
        trainer = TorchTrainer(torch_on_all_ranks, **settings)
    trainer.fit()
"""


@pytest.fixture(scope="module")
def debian(
    virtual_slurm: VirtualCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VirtualCluster]:
    if best_mode() == "flat":
        pytest.skip("an /etc/hosts of its own for each node needs root")
    common = virtual_slurm.layout.hosts.read_text().splitlines()
    for node in virtual_slurm.node_names:
        others = [line for line in common if node not in line.split()]
        path = tmp_path_factory.mktemp(node) / "hosts"
        path.write_text("\n".join([f"127.0.1.1 {node}", *others, ""]))
        virtual_slurm.run_on(node, ["mount", "--bind", str(path), "/etc/hosts"])
    yield virtual_slurm
    for node in virtual_slurm.node_names:
        virtual_slurm.run_on(node, ["umount", "/etc/hosts"])


@pytest.mark.slurm
@pytest.mark.parametrize("library", ["xgboost", "lightgbm", "torch"])
def test_ranks_of_two_nodes_find_each_other(
    debian: VirtualCluster, tmp_path: Path, library: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run_python(script, tmp_path, library, environ=debian.environ)
    result = Result.from_path(tmp_path / "run")
    assert len(result.nodes) == 2
    assert result.return_value == ("127.0.1.1", 4)
