"""The model of a checkpoint is exported to the bit, verified, and whole or not at all."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.testing.thread_comm import run_on_threads
from hpctrain.torch import TorchCheckpoint, export_state, load_state, save_state
from hpctrain.torch.state.export.export import parse_size
from hpctrain.torch.state.export.staging import remove_dead, staging
from hpctrain.torch.state.save import write_state
from hpctrain.torch.state.state_dict.flatten import flatten_state
from tests.damage import flip_bit

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

FORMATS = ("safetensors", "dcp", "torch")
ODD = "layer ü/\n{0}"


class Net(nn.Module):
    """Has what may lie in a model: tied, empty, strided, narrow and scalar tensors, and values."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(300, 301)
        self.second = nn.Linear(300, 301)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(7)
        self.odd = nn.ParameterDict({ODD: nn.Parameter(torch.randn(3, 2))})
        self.register_buffer("strided", torch.randn(5, 3).bfloat16().t())
        self.register_buffer("narrow", torch.randn(9).to(torch.float8_e4m3fn))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("short", torch.randn(1, 3, 1).half())

    def get_extra_state(self) -> Any:
        return {"epoch": seed_of(self)}

    def set_extra_state(self, state: Any) -> None:
        pass


def seed_of(model: nn.Module) -> int:
    return len(list(model.children()))


def save(directory: Path, model: nn.Module, *, ranks: int = 1, **others: Any) -> Path:
    """Save a state as that of so many ranks, each of which writes a part of it."""
    run_on_threads(
        ranks,
        lambda comm: write_state(
            directory, flatten_state(model=model, optimizer=None, others=others), ranks=comm
        ),
    )
    return directory


def commit(storage: Path, fill: Callable[[Path], Any]) -> Checkpoint:
    """Return the committed checkpoint of a run."""
    store = CheckpointStore(storage / "checkpoints")
    storage.mkdir(exist_ok=True)
    store.prepare()
    (storage / "plan.json").write_text("{}")
    part = staging_directory(storage / "checkpoints", attempt=1, report=1, rank=0)
    part.mkdir(parents=True)
    fill(part)
    parts = {0: StagedPart(files=tuple(seal(part)))}
    return store.commit(attempt=1, report=1, world_size=1, metrics={}, parts=parts)[0]


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: t for n, t in model.state_dict().items() if isinstance(t, torch.Tensor)}


def read(path: Path, format: str, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what the library of the format reads."""
    if format == "torch":
        loaded = torch.load(path, weights_only=True)
        return {n: t for n, t in loaded.items() if isinstance(t, torch.Tensor)}
    if format == "dcp":
        live = {name: torch.full_like(tensor, 1) for name, tensor in expected.items()}
        dcp.load(live, checkpoint_id=path, no_dist=True)
        return live
    found: dict[str, torch.Tensor] = {}
    for file in path.glob("*.safetensors"):
        found |= load_file(file)
        with safe_open(file, "pt") as opened:
            metadata = dict(opened.metadata())
        assert metadata.pop("format") == "pt"
        found |= {alias: found[name] for alias, name in metadata.items()}
    return found


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        one, other = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found[name], tensor))
        assert torch.equal(one, other), name


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("format", FORMATS)
def test_a_state_is_exported_to_the_bit(tmp_path: Path, format: Any, ranks: int) -> None:
    model = Net()
    save(tmp_path / "s", model, ranks=ranks, ema=Net(1))
    done = export_state(tmp_path / "s", tmp_path / "out", format=format)
    expected = tensors_of(model)
    assert_same(read(tmp_path / "out", format, expected), expected)
    assert done.aliases == {"second.weight": "first.weight"}
    assert done.num_tensors == len(expected) - 1
    assert done.other_parts == ("ema",)
    assert done.is_verified
    assert done.left_out == (() if format == "torch" else ("_extra_state",))
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []


def test_torch_loads_the_whole_state_dict_and_others_unzip_the_file(tmp_path: Path) -> None:
    model = Net()
    save(tmp_path / "s", model, ranks=2)
    export_state(tmp_path / "s", tmp_path / "model.pt", format="torch")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True, mmap=True)
    other = Net(1)
    other.load_state_dict(loaded, strict=True)
    assert_same(tensors_of(other), tensors_of(model))
    # It is one tensor in the file too.
    first, second = (loaded[f"{name}.weight"].untyped_storage() for name in ("first", "second"))
    assert first.data_ptr() == second.data_ptr()
    tested = subprocess.run(
        [sys.executable, "-m", "zipfile", "-t", tmp_path / "model.pt"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert tested.stdout == "Done testing\n", tested.stderr


def test_a_dcp_export_is_loaded_by_hpctrain_and_converted_by_torch(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    model = nn.Linear(40, 30)
    save(tmp_path / "s", model, ranks=2)
    export_state(tmp_path / "s", tmp_path / "out", format="dcp")
    live = nn.Linear(40, 30)
    load_state(tmp_path / "out", model=live)
    assert_same(tensors_of(live), tensors_of(model))
    dcp_to_torch_save(tmp_path / "out", tmp_path / "model.pt")
    assert_same(torch.load(tmp_path / "model.pt", weights_only=True), tensors_of(model))


def test_a_model_larger_than_a_file_may_be_becomes_several_with_an_index(tmp_path: Path) -> None:
    model = Net()
    save(tmp_path / "s", model, ranks=2)
    done = export_state(tmp_path / "s", tmp_path / "out", max_shard_size="100KB")
    count = len(done.files) - 1
    assert count > 1
    assert done.files[0] == f"model-00001-of-{count:05d}.safetensors"
    expected = tensors_of(model)
    assert_same(read(tmp_path / "out", "safetensors", expected), expected)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == done.num_bytes
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "out" / file)
    assert index["weight_map"].keys() == expected.keys() - {"second.weight"}
    # It can be exported again.
    again = export_state(tmp_path / "out", tmp_path / "again")
    assert not again.is_verified
    assert_same(read(tmp_path / "again", "safetensors", expected), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_types_that_safetensors_lacks_keep_their_type_or_are_refused(
    tmp_path: Path, format: Any
) -> None:
    model = nn.Module()
    model.register_buffer("pairs", torch.randn(600_000, 1, dtype=torch.complex128))
    model.register_buffer("scales", torch.arange(1, 9).to(torch.uint8).view(torch.float8_e8m0fnu))
    model.register_buffer("small", torch.ones(3, dtype=torch.int8))
    save(tmp_path / "s", model, ranks=2)
    if format == "safetensors":
        with pytest.raises(ConfigError, match=r"complex128.*Export as torch or dcp"):
            export_state(tmp_path / "s", tmp_path / "out", format=format)
        assert os.listdir(tmp_path) == ["s"]
        return
    export_state(tmp_path / "s", tmp_path / "out", format=format)
    expected = tensors_of(model)
    if format == "dcp":
        # torch itself cannot fill such a tensor in the test.
        live = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
        dcp.load(live, checkpoint_id=tmp_path / "out", no_dist=True)
        assert_same(live, expected)
    else:
        assert_same(read(tmp_path / "out", format, expected), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_a_torch_checkpoint_is_exported_and_compared_with_what_was_committed(
    tmp_path: Path, format: Any
) -> None:
    model = nn.Sequential(nn.Linear(700, 900), nn.BatchNorm1d(900))

    def fill(part: Path) -> None:
        TorchCheckpoint.from_model(model, path=part)
        (part / "config.json").write_text('{"model_type": "none"}')

    checkpoint = commit(tmp_path / "run", fill)
    done = export_state(checkpoint, tmp_path / "out", format=format)
    assert done.is_verified
    expected = tensors_of(model)
    assert_same(read(tmp_path / "out", format, expected), expected)
    if format != "torch":
        assert (tmp_path / "out" / "config.json").read_text() == '{"model_type": "none"}'
    flip_bit(Path(checkpoint.path) / "model.safetensors", -5)
    with pytest.raises(CheckpointError, match=r"is damaged: it has .* were committed"):
        export_state(checkpoint, tmp_path / "other", format=format)
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_state_is_refused_and_nothing_appears(tmp_path: Path, format: Any) -> None:
    save(tmp_path / "s", Net(), ranks=2)
    flip_bit(tmp_path / "s" / "state-00002-of-00002.safetensors", -5)
    with pytest.raises(CheckpointError, match=r"is damaged: block 0 of 1.*Export another"):
        export_state(tmp_path / "s", tmp_path / "out", format=format)
    assert os.listdir(tmp_path) == ["s"]
    (tmp_path / "s" / "state-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        export_state(tmp_path / "s", tmp_path / "out", format=format)
    assert os.listdir(tmp_path) == ["s"]


def test_a_header_and_an_index_other_than_those_committed_are_refused(tmp_path: Path) -> None:
    checkpoint = commit(tmp_path / "run", lambda part: save(part, nn.Linear(4, 4)))
    directory = Path(checkpoint.path)
    # A whole state of the same shapes, with digests of its own.
    save(tmp_path / "other", nn.Linear(4, 4))
    name = "state-00001-of-00001.safetensors"
    shutil.copy(tmp_path / "other" / name, directory / name)
    with pytest.raises(CheckpointError, match=r"header of digest .* were committed"):
        export_state(checkpoint, tmp_path / "out")
    (directory / "state.json").write_bytes((directory / "state.json").read_bytes() + b" ")
    with pytest.raises(CheckpointError, match=r"state\.json has .* were committed"):
        export_state(checkpoint, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["other", "run"]


@pytest.mark.parametrize("format", FORMATS)
def test_what_exists_is_replaced_only_if_wanted_and_made_by_an_export(
    tmp_path: Path, format: Any
) -> None:
    old, new, out = nn.Linear(3, 3), nn.Linear(4, 4), tmp_path / "out"
    save(tmp_path / "old", old)
    save(tmp_path / "new", new)
    export_state(tmp_path / "old", out, format=format)
    with pytest.raises(ConfigError, match=r"exists. Give another path"):
        export_state(tmp_path / "new", out, format=format)
    assert_same(read(out, format, tensors_of(old)), tensors_of(old))
    export_state(tmp_path / "new", out, format=format, overwrite=True)
    assert_same(read(out, format, tensors_of(new)), tensors_of(new))
    if format == "torch":
        (tmp_path / "folder").mkdir()
        with pytest.raises(ConfigError, match="no regular file"):
            export_state(tmp_path / "new", tmp_path / "folder", format=format, overwrite=True)
        text = tmp_path / "thesis.pt"
        text.write_text("my results")
        with pytest.raises(ConfigError, match=r"thesis\.pt is no file that torch\.save\(\) writes"):
            export_state(tmp_path / "new", text, format=format, overwrite=True)
        assert text.read_text() == "my results"
        np.savez(tmp_path / "mine.npz", results=np.arange(3))
        with pytest.raises(ConfigError, match=r"mine\.npz is no file that torch\.save\(\) writes"):
            export_state(tmp_path / "new", tmp_path / "mine.npz", format=format, overwrite=True)
        assert np.load(tmp_path / "mine.npz")["results"].tolist() == [0, 1, 2]
    else:
        mine = tmp_path / "mine"
        mine.mkdir()
        (mine / "model.safetensors").write_text("my results")
        with pytest.raises(ConfigError, match=r"has model\.safetensors, which no export writes"):
            export_state(tmp_path / "new", mine, format=format, overwrite=True)
        (out / "thesis.tex").write_text("\\documentclass")
        with pytest.raises(ConfigError, match=r"has thesis.tex, which no export writes"):
            export_state(tmp_path / "new", out, format=format, overwrite=True)
        assert (out / "thesis.tex").exists()
        link = tmp_path / "link"
        link.symlink_to(out)
        with pytest.raises(ConfigError, match="is no directory"):
            export_state(tmp_path / "new", link, format=format, overwrite=True)


def test_places_where_nothing_may_be_are_refused(tmp_path: Path) -> None:
    checkpoint = commit(tmp_path / "run", lambda part: save(part, nn.Linear(4, 4)))
    inside = Path(checkpoint.path)
    for target in (inside / "out", inside / "more" / "out", inside.parent / "out"):
        target.parent.mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="among the checkpoints of a run"):
            export_state(checkpoint, target)
    with pytest.raises(ConfigError, match="Make it first"):
        export_state(checkpoint, tmp_path / "nothing" / "out")


def test_other_checkpoints_are_named_for_what_they_are(tmp_path: Path) -> None:
    def said(fill: Callable[[Path], Any]) -> str:
        directory = tmp_path / f"c{len(os.listdir(tmp_path))}"
        directory.mkdir()
        fill(directory)
        with pytest.raises(CheckpointError) as caught:
            export_state(directory, tmp_path / "out")
        return str(caught.value)

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "evil"),))

    assert "which torch.save() wrote" in said(lambda d: torch.save(Evil(), d / "model.pt"))
    assert "Checkpoint.from_dict() pickled" in said(
        lambda d: Checkpoint.from_dict({"a": 1}).to_directory(d)
    )
    state = {"w": torch.ones(2)}
    assert "dcp_to_torch_save" in said(lambda d: dcp.save(state, checkpoint_id=d, no_dist=True))
    assert "holds nothing, and neither" in said(lambda d: None)
    assert "holds a, b, c and 1 more" in said(lambda d: [(d / n).touch() for n in "abcd"])
    assert "the state of disc, and tensors of no model" in said(
        lambda d: save_state(d, disc=nn.Linear(2, 2))
    )
    assert "which are not one whole model" in said(
        lambda d: (d / "model-00001-of-00002.safetensors").touch()
    )
    assert not (tmp_path / "evil").exists()
    assert pickle.dumps(Evil())


SCRIPT = """
import resource, signal, sys
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # as large as it is, before the export

from hpctrain.errors import CheckpointError
from hpctrain.torch import export_state
from hpctrain.torch.state.export import dcp_files, safetensors_files, torch_file

source, target, format = sys.argv[1:4]
"""


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state of 224 MiB, in two files: one large tensor, and many that are not."""
    model = nn.Module()
    model.register_buffer("embedding", torch.randn(64, 2**18))
    for number in range(20):
        model.register_buffer(f"head{number}", torch.randn(8, 2**18))
    return save(tmp_path_factory.mktemp("large") / "s", model, ranks=2)


@pytest.mark.parametrize("format", FORMATS)
def test_memory_does_not_grow_with_the_model(large: Path, tmp_path: Path, format: str) -> None:
    code = """
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    export_state(sys.argv[4], target + ".small", format=format)
    before = peak()
    export_state(source, target, format=format)
    print(peak() - before)
    """
    small = save(tmp_path / "small", nn.Linear(8, 8))
    done = run(code, large, tmp_path / "out", format, small)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 128


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_explained_and_leaves_nothing(
    large: Path, tmp_path: Path, format: str
) -> None:
    code = """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**26, 2**26))
    try:
        export_state(source, target, format=format)
    except CheckpointError as error:
        print(error)
    """
    done = run(code, large, tmp_path / "out", format)
    assert "could not be written" in done.stdout, done.stderr
    assert "Nothing of it was left" in done.stdout
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_kill_in_the_middle_leaves_nothing_under_the_name(
    large: Path, tmp_path: Path, format: str
) -> None:
    code = """
    import os
    from hpctrain.torch.state.export.verified_file import VerifiedFile

    blocks = VerifiedFile.blocks

    def some(self, wanted):
        for number, found in enumerate(blocks(self, wanted)):
            if number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield found

    VerifiedFile.blocks = some
    export_state(source, target, format=format)
    """
    done = run(code, large, tmp_path / "out", format)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".out.")
    export_state(large, tmp_path / "out", format=format)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["out"]


def test_what_may_be_of_an_export_that_goes_on_is_named_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a+b"
    # The second: a previous export, or what an older version has left.
    of_others = [tmp_path / name for name in (".a+b.0123456789abcdef", ".ab.0123456789abcdef")]
    for directory in of_others:
        (directory / "made").mkdir(parents=True)
    with staging(target) as made:
        goes_on = made.parent
        remove_dead(target)
        assert made.is_dir()
        said = capsys.readouterr().err
        for path in (goes_on, of_others[0]):
            assert f"note: {path} is of an export to {target} that goes on, or that was" in said
        assert str(of_others[1]) not in said
    assert not goes_on.exists()
    assert all((directory / "made").is_dir() for directory in of_others)


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_not_written_as_it_should_be_is_found(
    tmp_path: Path, format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hpctrain.torch.state.export.copy_blocks as copy_blocks
    import hpctrain.torch.state.export.dcp_files as dcp_files

    model = nn.Linear(40, 30)
    save(tmp_path / "s", model)
    write, save_by_torch = os.pwrite, dcp_files.save_by_torch

    def lose(descriptor: int, content: Any, position: int) -> int:
        return write(descriptor, bytes(len(content)), position)

    def damage(*args: Any, storage_writer: Any, **kwargs: Any) -> None:
        save_by_torch(*args, storage_writer=storage_writer, **kwargs)
        path = Path(storage_writer.path) / "__0_0.distcp"
        content = model.weight.detach().numpy().tobytes()
        whole = path.read_bytes()
        flip_bit(path, whole.index(content))

    monkeypatch.setattr(copy_blocks.os, "pwrite", lose)
    monkeypatch.setattr(dcp_files, "save_by_torch", damage)
    with pytest.raises(CheckpointError, match=r"weight is not what was written|bias is not what"):
        export_state(tmp_path / "s", tmp_path / "out", format=format)
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("2 GiB", 2**31), ("10", 10), (7, 7), ("1kib", 1024)]
)
def test_sizes_are_read_as_hugging_face_does(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1GB", "0", "1.5GB", "5 PB"])
def test_what_is_no_size_or_no_format_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a number of bytes is needed"):
        export_state(tmp_path, tmp_path / "out", max_shard_size=text)


@pytest.mark.parametrize("kind", ["torch", "dcp"])
def test_a_size_of_files_that_are_not_split_is_refused(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_shard_size='1GB' with format='(torch|dcp)': only"):
        export_state(tmp_path, tmp_path / "out", format=kind, max_shard_size="1GB")
    with pytest.raises(ConfigError, match="one of safetensors, dcp, torch is needed"):
        export_state(tmp_path, tmp_path / "out", format="gguf")  # type: ignore[arg-type]


def test_transformers_reads_an_exported_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=16,
    )
    torch.manual_seed(3)
    model = transformers.BertForMaskedLM(config).eval()
    save(tmp_path / "s", model, ranks=2)
    config.save_pretrained(tmp_path / "s")
    for size, files in (("5GB", 2), ("30KB", 5)):
        done = export_state(tmp_path / "s", tmp_path / size, max_shard_size=size)
        assert len(done.files) >= files
        assert "cls.predictions.decoder.weight" in done.aliases
        loaded, info = transformers.BertForMaskedLM.from_pretrained(
            tmp_path / size, output_loading_info=True
        )
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert_same(tensors_of(loaded), tensors_of(model))
