"""Runs whose ranks start in an environment that is mounted, on two nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpctrain.testing.slurm import VirtualCluster
from hpctrain.testing.slurm.processes import wait_until
from tests.pack.conftest import SmallEnvironment
from tests.pack.mounts import add_program
from tests.pack.test_packs_on_nodes import (
    TIMEOUT_S,
    begin,
    check_rank,
    end,
    events,
    fit,
    left_on,
    returned,
)
from tests.pack.test_packs_on_nodes import work as work  # a fixture

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]


def check_ranks(
    done: subprocess.CompletedProcess[str], image: tuple[Path, dict[str, Any]], *, attempt: int = 1
) -> list[Any]:
    """Check that all that ranks import is mounted, and that its interpreter forks them."""
    shared = f"/dev/shm/hpctrain-packs-{os.geteuid()}/{image[1]['sha256'][:32]}"
    last_attempt, ranks = returned(done)
    assert last_attempt == attempt
    for rank in ranks:
        (root,) = {match[0] for match in re.finditer(rf"^{shared}/[0-9a-f]+", rank[1][0])}
        check_rank(rank, root)
    return ranks


def mounts_on(cluster: VirtualCluster, node: str) -> list[str]:
    """Return what packs have left mounted on a node."""
    lines = cluster.run_on(node, ["cat", "/proc/mounts"]).stdout.splitlines()
    return [line for line in lines if "hpctrain-packs-" in line]


def check_nothing_left(cluster: VirtualCluster) -> None:
    for node in cluster.node_names:
        assert (left_on(cluster, node), mounts_on(cluster, node)) == ([], [])


def test_all_that_ranks_import_is_mounted_on_their_nodes(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed_image: tuple[Path, dict[str, Any]],
) -> None:
    done = fit(work, virtual_slurm, small_environment, packed_image[0], killed=2)
    check_ranks(done, packed_image, attempt=2)
    # The second attempt finds it there.
    (event,) = events(work)
    assert (event["sha256"], event["unmounted"]) == (packed_image[1]["sha256"], {})
    assert len(event["nodes"]) == 2
    if virtual_slurm.spec.mode != "flat":
        assert (event["by"], event["reading"], event["reason"]) == ("sbcast", [], "")
    check_nothing_left(virtual_slurm)
    assert events(work, event="not-forked") == []


def test_ranks_compute_the_same_from_a_mount_to_the_last_bit(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed_image: tuple[Path, dict[str, Any]],
) -> None:
    losses = {}
    for name, pack in (("plain", None), ("mounted", packed_image[0])):
        done = fit(work, virtual_slurm, small_environment, pack, name=name)
        losses[name] = [losses for *_, losses in returned(done)[1]]
    assert losses["mounted"] == losses["plain"]


def test_nodes_without_squashfuse_unpack_the_image_and_it_is_said_once(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed_image: tuple[Path, dict[str, Any]],
) -> None:
    for name in ("squashfuse", "squashfuse_ll"):
        folder = add_program(work / "bin", name, "echo 'fuse: device not found' >&2; exit 1")
    setup = (f"export PATH='{folder}':$PATH",)
    done = fit(work, virtual_slurm, small_environment, packed_image[0], setup=setup, killed=1)
    check_ranks(done, packed_image, attempt=2)
    (event,) = events(work)
    reason = "squashfuse: fuse: device not found"
    assert event["unmounted"] == dict.fromkeys(event["nodes"], reason)
    words = f" cannot mount {packed_image[0]}, and unpacked it: {reason}"
    logs = [path.read_text(errors="replace") for path in (work / "runs/run").rglob("*_0_log.out")]
    assert "".join(logs).count(words) == 1
    check_nothing_left(virtual_slurm)


def test_what_a_killed_job_has_mounted_ends_with_it_and_the_next_one_removes_it(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed_image: tuple[Path, dict[str, Any]],
) -> None:
    killed = begin(work, virtual_slurm, small_environment, packed_image[0], waits=True)
    wait_until((work / "begun").exists, what="the training", timeout_s=TIMEOUT_S)
    first = virtual_slurm.node_names[0]
    running = ["squeue", "-h", "-t", "RUNNING", "-o", "%A"]
    (job_id,) = virtual_slurm.run_on(first, running).stdout.split()
    (event,) = events(work)
    assert all(mounts_on(virtual_slurm, node) for node in event["nodes"])
    virtual_slurm.run_on(first, ["scancel", "--signal=KILL", "--full", job_id])
    end(killed)
    looks = "for each in /proc/[0-9]*/comm; do cat $each; done 2>/dev/null | grep -c squashfuse"
    for node in event["nodes"]:
        wait_until(
            lambda: virtual_slurm.run_on(node, ["sh", "-c", looks]).stdout.strip() == "0",  # noqa: B023
            what=f"end of squashfuse on {node}",
            timeout_s=60,
        )
    before = ("salloc", "--quiet", f"--nodelist={','.join(event['nodes'])}", "--nodes=2")
    words = (*before, "--ntasks-per-node=2")
    done = fit(work, virtual_slurm, small_environment, packed_image[0], *words, name="next")
    check_ranks(done, packed_image)
    check_nothing_left(virtual_slurm)


def test_the_doctor_tries_to_mount_it_on_the_nodes(
    virtual_slurm: VirtualCluster,
    work: Path,
    small_environment: SmallEnvironment,
    packed_image: tuple[Path, dict[str, Any]],
) -> None:
    def look(*setup: str) -> list[dict[str, Any]]:
        slurm = json.dumps({"environment_pack": str(packed_image[0]), "setup": setup})
        argv = ("hpctrain.cli", "doctor", "--json", "train.py", "run", slurm, "{}")
        done = small_environment.run(*argv, cwd=work, **virtual_slurm.environ)
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [finding for finding in found if finding["check"] == "pack"]

    file, nodes = look()
    assert (file["level"], nodes["level"]) == ("ok", "ok"), (file, nodes)
    mib = f"{packed_image[1]['bytes'] / 2**20:.0f} MiB"
    assert nodes["what"].endswith(f" free for {mib}")
    for name in ("squashfuse", "squashfuse_ll"):
        folder = add_program(work / "bin", name, "echo 'fuse: device not found' >&2; exit 1")
    file, mounts, nodes = look(f"export PATH='{folder}':$PATH")
    assert [file["level"], mounts["level"], nodes["level"]] == ["ok", "warning", "ok"]
    assert mounts["what"].endswith("cannot be mounted (squashfuse: fuse: device not found)")
    check_nothing_left(virtual_slurm)
