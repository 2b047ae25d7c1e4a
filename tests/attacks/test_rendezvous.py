"""What frameworks listen on without authentication: only at the address that ranks use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.control.interfaces import ipv4_addresses
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.torch import process_group
from tests.waiting import wait_until

PATIENCE_S = 60.0

# Tries to get at a port by addresses that belong to the interfaces of this machine.
CONNECT = """
import socket, sys

port, *addresses = sys.argv[1:]
for address in addresses:
    try:
        socket.create_connection((address, int(port)), 5).close()
    except ConnectionRefusedError:
        continue
    print(address, flush=True)
print("refused elsewhere", flush=True)
"""

SCRIPT = """
import os, socket, sys, time
from functools import partial
from pathlib import Path
import hpctrain
from hpctrain import RunConfig, ScalingConfig, SlurmConfig

def addresses_of(port):
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, number = local.split(":")
            if state == "0A" and int(number, 16) == port:
                # Words of 32 bits, in the order of this machine.
                words = [address[i : i + 8] for i in range(0, len(address), 8)]
                packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
                found.append(socket.inet_ntop(family, packed))
    return found

def rendezvous(library):
    if library == "jax":
        from jax._src.distributed import global_state
        return global_state.coordinator_address.split(":")
    names = {
        "torch": ("MASTER_ADDR", "MASTER_PORT"),
        "horovod": ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    }
    return [os.environ[name] for name in names[library]]

def train(config):
    host, port = rendezvous(config["library"])
    where = addresses_of(int(port)) if hpctrain.get_context().get_world_rank() == 0 else []
    if where:
        Path("port.new").write_text(str(port))
        os.rename("port.new", "port")
    deadline = time.monotonic() + 60
    while config["wait"] and not os.path.exists("attacked"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return host, where

if __name__ == "__main__":
    library, nodes = sys.argv[1:]
    if library == "jax":
        from hpctrain.jax import JaxTrainer as Trainer
    elif library == "horovod":
        from hpctrain.horovod import HorovodConfig, HorovodTrainer
        Trainer = partial(HorovodTrainer, horovod_config=HorovodConfig(transport="gloo"))
    else:
        from hpctrain.torch import TorchTrainer as Trainer
    result = Trainer(
        train,
        train_loop_config={"library": library, "wait": nodes == "1"},
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=int(nodes))),
        run_config=RunConfig(storage_path=".", name="run"),
    ).fit()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("library", ["torch", "jax", "horovod"])
def test_on_one_node_nobody_gets_at_it_from_the_network(
    tmp_path: Path, stranger: Any, library: str
):
    pytest.importorskip({"horovod": "horovod.torch"}.get(library, library))
    (tmp_path / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "train.py", library, "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    try:
        wait_until((tmp_path / "port").exists, "the address", process=process)
        # What listens on all interfaces listens at every address of the loopback's network.
        elsewhere = ["127.0.0.2", *(set(ipv4_addresses().values()) - {"127.0.0.1"})]
        attacker = stranger(CONNECT, (tmp_path / "port").read_text(), *elsewhere)
        assert attacker.read() == "refused elsewhere"
        (tmp_path / "attacked").touch()
        output = process.communicate(timeout=PATIENCE_S)[0]
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slurm
def test_on_several_nodes_it_listens_on_the_interface_that_is_used(
    virtual_slurm: VirtualCluster, tmp_path: Path
):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        ["salloc", "-Q", "-N2", "--ntasks-per-node=1", sys.executable, "train.py", "torch", "2"],
        cwd=tmp_path,
        env={**os.environ, **virtual_slurm.environ},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    host, where = Result.from_path(tmp_path / "run").return_value
    assert where == [host]
    assert not host.startswith("127.")


def test_gloo_stays_on_this_machine_where_the_name_of_the_host_is_its_address_on_the_network(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    context: Any = SimpleNamespace(
        world=SimpleNamespace(num_nodes=1, hostname=socket.gethostname()),
        reachable_address=lambda: "127.0.0.1",
    )
    for address, variables in (("192.0.2.9", {"GLOO_SOCKET_IFNAME": "lo"}), ("127.0.0.1", {})):
        monkeypatch.setattr(process_group, "address_of_name", lambda _, address=address: address)
        assert process_group._gloo_interface(context) == variables
