"""The debugger's home, and ranks that somebody else started: torch in the user's own processes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

import hpctrain
from hpctrain import ConfigError, Result, WorkerContextError
from hpctrain.torch import TorchConfig, TorchTrainer, get_device
from tests import runs

VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")


def fit(train: Callable[[], Any], storage: Path) -> Result:
    return runs.fit(train, storage, num_workers=0, name=None, trainer=TorchTrainer)


@pytest.fixture
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that a run leaves this interpreter as it was, with a RANK of somebody else's."""
    import torch
    from torch import distributed

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "from before")
    torch.set_num_threads(2)
    yield
    assert not distributed.is_initialized()
    assert torch.get_num_threads() == 2
    assert {name: os.environ.get(name) for name in VARIABLES} == {
        **dict.fromkeys(VARIABLES),
        "RANK": "from before",
    }


@pytest.mark.usefixtures("_nothing_stays")
def test_an_interpreter_runs_one_fit_after_the_other_even_if_one_raises(tmp_path: Path) -> None:
    import torch
    from torch import distributed, nn

    def train() -> list[Any]:
        value = torch.ones(1)
        distributed.all_reduce(value)
        model = nn.Linear(2, 2)
        found = [value.item(), os.environ["RANK"], os.environ["WORLD_SIZE"]]
        found += [torch.get_num_threads(), hpctrain.torch.prepare_model(model) is model]
        return found

    def fail() -> None:
        train()
        raise ZeroDivisionError("in the user's code")

    assert fit(train, tmp_path).return_value == [1.0, "0", "1", 1, True]
    with pytest.raises(ZeroDivisionError):
        fit(fail, tmp_path)
    assert not distributed.is_initialized()
    assert os.environ["RANK"] == "from before"
    assert fit(train, tmp_path).return_value == [1.0, "0", "1", 1, True]


@pytest.mark.usefixtures("_nothing_stays")
def test_a_torch_that_is_built_without_libuv_has_another_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from torch import distributed

    store = distributed.TCPStore

    def store_of_debian(*args: Any, use_libuv: bool = True, **options: Any) -> Any:
        if use_libuv:
            raise RuntimeError(
                "use_libuv was requested but PyTorch was build without libuv support"
            )
        return store(*args, use_libuv=False, **options)

    def train() -> float:
        value = torch.ones(1)
        distributed.all_reduce(value)
        distributed.destroy_process_group()
        distributed.init_process_group("gloo", init_method="env://")
        distributed.all_reduce(value)
        distributed.destroy_process_group()
        return value.item()

    monkeypatch.setattr(distributed, "TCPStore", store_of_debian)
    of_env = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(of_env, "TCPStore", store_of_debian)
    assert fit(train, tmp_path).return_value == 1.0


@pytest.mark.usefixtures("_nothing_stays")
def test_a_process_group_of_the_users_own_is_refused(tmp_path: Path) -> None:
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match=r"leave init_process_group\(\) out of the script"):
            fit(lambda: None, tmp_path)
        assert distributed.is_initialized(), "it is not ours"
    finally:
        distributed.destroy_process_group()


@pytest.mark.usefixtures("_nothing_stays")
def test_batches_of_any_form_are_moved_and_epochs_are_set_with_one_worker_too(
    tmp_path: Path,
) -> None:
    import torch
    from torch.utils.data import DataLoader

    from hpctrain.torch.batch import move_batch

    class Pair(NamedTuple):
        left: Any
        right: Any

    class Movable:
        device = "cpu"

        def to(self, device: Any) -> Movable:
            self.device = str(device)
            return self

    meta = torch.device("meta")
    x = torch.ones(2)
    movable = Movable()
    batch: dict[str, Any] = {
        "list": [x, (x, "text")],
        "pair": Pair(x, 3),
        "other": movable,
        "none": None,
    }
    moved = move_batch(batch, meta)
    assert moved["list"][0].device == moved["list"][1][0].device == meta
    assert moved["list"][1][1] == "text"
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].left.device == meta
    assert moved["pair"].right == 3
    assert moved["other"].device == "meta"
    assert moved["none"] is None
    assert batch["list"][0].device.type == "cpu", "the loader's own batch stays"

    def train() -> list[list[int]]:
        loader = hpctrain.torch.prepare_data_loader(
            DataLoader(range(20), batch_size=5, shuffle=True)  # type: ignore[arg-type]
        )
        epochs = [[int(i) for batch in loader for i in batch] for _ in range(2)]
        loader.set_epoch(0)
        return [*epochs, [int(i) for batch in loader for i in batch]]

    first, second, again = fit(train, tmp_path).return_value
    assert sorted(first) == list(range(20))
    assert first != second
    assert first == again


def test_a_flag_of_prepare_data_loader_is_true_or_false(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    def train() -> list[str]:
        errors = []
        prepare: Any = hpctrain.torch.prepare_data_loader
        loader: Any = DataLoader(cast(Any, range(4)))
        for name in ("add_dist_sampler", "move_to_device", "auto_transfer"):
            try:
                prepare(loader, **{name: "False"})
            except ConfigError as error:
                errors.append(str(error))
        return errors

    assert fit(train, tmp_path).return_value == [
        f"{name} is 'False'. Give True or False."
        for name in ("add_dist_sampler", "move_to_device", "auto_transfer")
    ]


def test_arguments_that_cannot_work_are_refused_before_anything_starts(tmp_path: Path) -> None:
    def train() -> None:
        pass

    with pytest.raises(
        ConfigError, match="torch_config='gloo' is of type str; type TorchConfig is needed"
    ):
        TorchTrainer(train, torch_config="gloo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="of type BackendConfig; type TorchConfig is needed"):
        TorchTrainer(train, torch_config=hpctrain.backend.BackendConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'nccl'.*Set ScalingConfig"):
        TorchTrainer(train, torch_config=TorchConfig(backend="nccl"))
    with pytest.raises(ConfigError, match=r"timeout_s=\.\.\.\) is 0\. A number of seconds"):
        TorchConfig(timeout_s=0)
    with pytest.raises(ConfigError, match="backend=''"):
        TorchConfig(backend="")
    with pytest.raises(WorkerContextError, match=r"get_device\(\) was called outside"):
        get_device()
    assert list(tmp_path.iterdir()) == []


def test_importing_the_trainer_does_not_import_torch() -> None:
    code = (
        "import sys; from hpctrain.torch import TorchConfig, TorchTrainer, prepare_model;"
        "TorchTrainer(lambda: None); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


SPMD = """
import os, sys
import torch
from torch import distributed
from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer

def train():
    value = torch.tensor([float(os.environ["RANK"]) + 1])
    distributed.all_reduce(value)
    return value.item()

if __name__ == "__main__":
    for name in ("one", "two"):
        result = TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=sys.argv[1], name=name, verbose=0),
        ).fit()
        left = [name for name in ("RANK", "MASTER_PORT") if name in os.environ]
        sys.stdout.write(f"{result.return_value} {left} {distributed.is_initialized()}\\n")
"""


@pytest.mark.mpi
def test_ranks_that_exist_make_a_group_for_each_fit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPMD)
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [str(mpiexec), "-n", "2", sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("3.0 [] False\n") == 4, done.stdout
