"""What nodes answer when they get a packed environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.errors import ConfigError
from hpctrain.execute.node_answers import Brought, read_node_answers, read_reasons
from hpctrain.execute.node_environment import NodeEnvironment
from hpctrain.pack.header import EnvironmentPack
from hpctrain.plan.environment_pack import ALONE, UNPACKS
from tests.pack.tiny import write_tiny_pack


@pytest.fixture
def pack(tmp_path: Path) -> EnvironmentPack:
    return write_tiny_pack(tmp_path / "environment.tar")


def test_the_last_line_of_each_node_counts_and_that_it_read_the_file_is_kept():
    printed = (
        "srun: a line\n"
        "hpctrain-pack node1 reads the shared file: /a b\n"
        "0: hpctrain-pack node2 ready\n"
        "hpctrain-pack node1 ready\n"
        "tar: a line\n"
        "hpctrain-pack node3 failed: /tmp has 1 MiB left\n"
    )
    assert read_node_answers(printed) == {
        "node1": "reads the shared file: /a b ready",
        "node2": "ready",
        "node3": "failed: /tmp has 1 MiB left",
    }


def test_the_interpreter_is_in_the_directory_of_the_job(
    pack: EnvironmentPack, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TMPDIR", "/local/job-7")
    environment = NodeEnvironment(pack)
    assert environment.python.startswith("/local/job-7/hpctrain-packs-")
    assert environment.python.endswith(f"/{pack.name}/env/bin/python")
    client = environment.python.replace("/env/bin/python", "/hpctrain-fork-client.py")
    assert environment.fork_client == client
    monkeypatch.delenv("TMPDIR")
    assert NodeEnvironment(pack).python.startswith("/tmp/hpctrain-packs-")


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOCAL_DISK", raising=False)
    pack = replace(write_tiny_pack(tmp_path / "e.tar"), directory="$LOCAL_DISK")
    with pytest.raises(ConfigError, match=r"LOCAL_DISK"):
        NodeEnvironment(pack)


def test_nodes_that_unpack_an_image_or_read_the_file_alone_are_named_by_reason():
    printed = (
        "hpctrain-pack node1 gets it from no other node: it has no python3 of its own\n"
        "hpctrain-pack node1 reads the shared file: /a b\n"
        "hpctrain-pack node1 cannot mount it: squashfuse: no device\n"
        "0: hpctrain-pack node2 cannot mount it: squashfuse: no device\n"
        "hpctrain-pack node4 cannot mount it: there is no squashfuse on PATH\n"
        "hpctrain-pack node1 ready\n"
        "hpctrain-pack node2 ready\n"
        "hpctrain-pack node4 ready\n"
    )
    answers = read_node_answers(printed)
    assert answers["node1"] == "reads the shared file: /a b ready"
    assert answers["node2"] == answers["node4"] == "ready"
    brought = Brought(
        nodes=tuple(answers),
        by="read",
        reading=(),
        why="",
        alone=read_reasons(printed, ALONE),
        unmounted=read_reasons(printed, UNPACKS),
        seconds=1.0,
    )
    assert brought.alone_by_reason() == [("node1", "it has no python3 of its own")]
    assert brought.unmounted_by_reason() == [
        ("node[1-2]", "squashfuse: no device"),
        ("node4", "there is no squashfuse on PATH"),
    ]


def test_each_run_mounts_an_image_for_itself(tmp_path: Path):
    image = replace(write_tiny_pack(tmp_path / "e.tar"), form="squashfs", directory=str(tmp_path))
    first, second = NodeEnvironment(image), NodeEnvironment(image)
    assert first.python != second.python
    assert Path(first.python).parents[3] == Path(second.python).parents[3]
    assert first.fork_client == first.python.replace("/env/bin/python", "/hpctrain-fork-client.py")


# A step that only lasts prints its id; one that unpacks says so of its nodes.
SRUN = r"""#!/bin/sh
cd '{folder}'
case "$*" in
  *'exec sleep "$1"'*) echo >> asked; {held};;
  *) echo "hpctrain-pack n1 ready"; echo "hpctrain-pack n2 ready"; exec sleep 600;;
esac
"""
HELD = "echo 'hpctrain-step 7.1'; exec sleep 600"
REFUSED = "echo 'srun: error: Unable to create step for job 7: {why}' >&2; exit 1"


@pytest.fixture
def bring(
    pack: EnvironmentPack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Brought]]:
    """Bring it to two of the three nodes of a job whose srun and sbcast are scripts."""
    environment = NodeEnvironment(pack)
    for name, value in {"JOB_ID": "7", "JOB_NUM_NODES": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def bring(*, held: str = HELD, sbcast: str = "") -> Brought:
        programs = {"srun": SRUN.format(folder=tmp_path, held=held)}
        programs["sbcast"] = f"#!/bin/sh\necho \"$@\" > '{tmp_path}/broadcast'\n{sbcast}\n"
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        brought = environment.bring(["n1", "n2"], 2, log=tmp_path / "environment.out")
        assert brought is not None
        return brought

    yield bring
    environment.close()


def test_a_step_of_some_nodes_that_slurm_refuses_for_now_is_asked_for_again(
    bring: Callable[..., Brought], tmp_path: Path
):
    why = "Memory required by task is not available"
    held = f"[ $(wc -l < asked) -gt 1 ] || {{ {REFUSED.format(why=why)}; }}; {HELD}"
    brought = bring(held=held)
    assert (brought.by, brought.why) == ("sbcast", "")
    assert (tmp_path / "broadcast").read_text().startswith("--jobid=7.1 ")
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


def test_a_step_of_some_nodes_that_slurm_refuses_for_good_is_asked_for_once(
    bring: Callable[..., Brought], tmp_path: Path
):
    brought = bring(held=REFUSED.format(why="Requested node configuration is not available"))
    assert brought.by == "read"
    assert "Requested node configuration is not available" in brought.why
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    assert not (tmp_path / "broadcast").exists()


def test_why_sbcast_failed_is_what_it_printed_and_nothing_of_the_step_of_its_nodes(
    bring: Callable[..., Brought], tmp_path: Path
):
    # What it prints while sbcast runs, as when one of its nodes is late.
    held = f"(while [ ! -e broadcast ]; do sleep 0.01; done; echo 'srun: late'; : > late) & {HELD}"
    waits = f"while [ ! -e '{tmp_path}/late' ]; do sleep 0.01; done"
    sbcast = f"echo 'sbcast: error: no space'; {waits}; exit 1"
    assert bring(held=held, sbcast=sbcast).why == "sbcast: error: no space"


# Two nodes, each with a disk of its own at the same place; a step of some nodes is refused.
NODES = """#!{python}
import os, signal, subprocess, sys

if 'exec sleep "$1"' in " ".join(sys.argv):
    sys.exit("srun: error: Requested node configuration is not available")
command, program = sys.argv[sys.argv.index("sh") :], sys.stdin.buffer.read()
mounts = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
nodes = []
for name in ("n1", "n2"):
    words = ["unshare", "-m", "sh", "-c", mounts, "sh", f"{folder}/{{name}}", "{folder}/place"]
    variables = {{**os.environ, "SLURMD_NODENAME": name}}
    node = subprocess.Popen([*words, *command], stdin=subprocess.PIPE, env=variables)
    node.stdin.write(program)
    node.stdin.close()
    nodes.append(node)
signal.signal(signal.SIGUSR1, lambda *_: [node.send_signal(signal.SIGUSR1) for node in nodes])
for node in nodes:
    node.wait()
"""


@pytest.mark.parametrize("is_slice", [False, True], ids=["refused", "of a run beside others"])
def test_where_sbcast_does_not_serve_one_node_reads_and_gives_it_to_the_others(
    pack: EnvironmentPack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slice: bool
):
    for name in ("place", "n1", "n2"):
        (tmp_path / name).mkdir()
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user has no mount namespaces")
    for name, value in {"JOB_ID": "7", "JOB_NUM_NODES": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "srun").write_text(NODES.format(folder=tmp_path, python=sys.executable))
    (tmp_path / "srun").chmod(0o755)
    there = replace(pack, directory=str(tmp_path / "place"))
    environment = NodeEnvironment(there, is_slice=is_slice)
    brought = environment.bring(["n1", "n2"], 2, log=tmp_path / "environment.out")
    try:
        assert brought is not None
        assert brought.by == "tree"
        # No run copies it to nodes of which others have some.
        assert ("Requested node" in brought.why) is not is_slice
        assert len(brought.reading) == 1
        assert brought.nodes == ("n1", "n2")
        assert brought.alone == {}
    finally:
        environment.close()
    assert [list((tmp_path / name).iterdir()) for name in brought.nodes] == [[], []]
