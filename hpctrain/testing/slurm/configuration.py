"""The texts of Slurm's configuration files, and of the nodes' ``/etc/hosts``."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Iterable
from pathlib import Path

from hpctrain.testing.slurm.addresses import Addresses, host_name
from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import Layout
from hpctrain.testing.slurm.memory_cgroups import first_job_id
from hpctrain.testing.slurm.spec import HEAD, ClusterSpec

CLUSTER_NAME = "hpctrain"
DATABASE = "slurm_acct_db"

# Without the privilege to make devices, these pass for GPUs: they are in every /dev.
_USUAL_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")

_PARTITIONS = """\
# Without a DefaultTime, a job that asks for no time gets 365 days if the backfill scheduler starts
# it, and no limit if the main scheduler does (22.05).
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE DefaultTime=365-0 State=UP PriorityTier=10 \
PreemptMode=OFF
PartitionName=main Default=YES
PartitionName=high PriorityTier=100
PartitionName=low PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
# With PreemptMode=REQUEUE Slurm 22.05 accepts this, but a second job waits nevertheless.
PartitionName=shared OverSubscribe=FORCE:4
PartitionName=short MaxTime=2 DefaultTime=2
PartitionName=down State=DOWN
"""


def user_name() -> str:
    """Return the name of the user who runs the cluster."""
    return pwd.getpwuid(os.getuid()).pw_name


def write_configuration(spec: ClusterSpec, layout: Layout, addresses: Addresses) -> None:
    """Write all files below ``etc``, and make the fake GPUs."""
    key = os.open(layout.munge_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(key, "wb") as file:
        file.write(secrets.token_bytes(128))
    layout.slurm_conf.write_text(slurm_conf(spec, layout, addresses))
    layout.hosts.write_text(hosts(spec, addresses))
    # Nobody listens there, so a question that /etc/hosts does not answer fails at once. The host's
    # own name server cannot be reached from the nodes: each question would wait for ten seconds.
    layout.resolver.write_text("nameserver 127.0.0.1\n")
    (layout.etc / "plugstack.conf").touch()
    (layout.etc / "cgroup.conf").write_text(cgroup_conf(spec))
    if spec.gpus_per_node:
        devices = _make_gpu_devices(spec.gpus_per_node, layout.gpu_devices)
        (layout.etc / "gres.conf").write_text(gres_conf(devices))
    if spec.accounting:
        file_name = layout.etc / "slurmdbd.conf"
        # slurmdbd refuses a configuration that others may read.
        file_name.touch(mode=0o600)
        file_name.write_text(slurmdbd_conf(layout, addresses))


def slurm_conf(spec: ClusterSpec, layout: Layout, addresses: Addresses) -> str:
    """Return slurm.conf."""
    state, run, log = layout.state_dir, layout.run, layout.log
    return f"""\
ClusterName={CLUSTER_NAME}
SlurmctldHost={addresses.head_name}({addresses.head})
SlurmctldPort={addresses.controller_port}
SlurmUser={user_name()}
SlurmdUser={user_name()}
AuthType=auth/munge
# A requeued job waits until its credential has expired (120 s by default; 5 is the least).
AuthInfo=socket={layout.munge_socket},cred_expire=5
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/spool/%n
# PMIx makes TmpFS/spmix_appdir_<uid>_<job>.<step> and fails where it exists, so nodes that share
# /tmp need distinct directories.
TmpFS={state}/tmp/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/slurmd-%n.log
MpiDefault={spec.mpi_default}
ReturnToService=2
JobRequeue=1
MailProg=/bin/true

# No pinning: the nodes have more CPUs than the machine.
ProctrackType=proctrack/linuxproc
TaskPlugin={"task/cgroup" if spec.memory_limits else "task/none"}
FirstJobId={first_job_id(addresses.number) if spec.memory_limits else 1}
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={max(1, spec.mem_mib // spec.cpus_per_node)}
GresTypes=gpu

{_scheduling_lines(spec)}
{_accounting_lines(spec, layout, addresses)}
{_node_lines(spec, addresses)}

{_PARTITIONS}"""


def _scheduling_lines(spec: ClusterSpec) -> str:
    return f"""\
# Schedule at every event; notice dead nodes and end jobs within seconds.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PriorityType=priority/basic
MessageTimeout=5
# Six times slurmstepd tries to reach the srun of a dead node, before its job can run again.
TCPTimeout=1
SlurmctldTimeout=10
SlurmdTimeout={spec.slurmd_timeout_s}
BatchStartTimeout=10
InactiveLimit=0
KillWait=2
# On a machine that is overloaded, a shorter one drains nodes ("Kill task failed").
UnkillableStepTimeout=120
CompleteWait=0
WaitTime=0
MinJobAge=3600

PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
EnforcePartLimits={"ALL" if spec.enforce_part_limits else "NO"}
"""


def cgroup_conf(spec: ClusterSpec) -> str:
    """Return cgroup.conf."""
    # slurmd loads a cgroup plugin even where nothing uses it, and v1 is the one that needs neither
    # a mounted hierarchy nor systemd.
    limits = "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n" if spec.memory_limits else ""
    return f"CgroupPlugin=cgroup/v1\n{limits}"


def _accounting_lines(spec: ClusterSpec, layout: Layout, addresses: Addresses) -> str:
    if not spec.accounting:
        return (
            "AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n"
        )
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={addresses.head}
AccountingStoragePort={addresses.accounting_port}
# With auth/munge this is the socket of munged; AuthInfo does not count here.
AccountingStoragePass={layout.munge_socket}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
"""


def _node_lines(spec: ClusterSpec, addresses: Addresses) -> str:
    hardware = (
        f"CPUs={spec.cpus_per_node} Sockets=1 CoresPerSocket={spec.cpus_per_node} "
        f"ThreadsPerCore=1 RealMemory={spec.mem_mib}"
    )
    if spec.gpus_per_node:
        hardware += f" Gres=gpu:{spec.gpus_per_node}"
    lines = []
    for node in spec.node_names:
        where = f"NodeAddr={addresses.of(node)} Port={addresses.slurmd_port(node)}"
        if spec.mode == "flat":
            where = f"NodeHostname={host_name()} {where}"
        lines.append(f"NodeName={node} {where} {hardware} State=UNKNOWN")
    return "\n".join(lines)


def slurmdbd_conf(layout: Layout, addresses: Addresses) -> str:
    """Return slurmdbd.conf."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost={addresses.head_name}
DbdAddr={addresses.head}
DbdPort={addresses.accounting_port}
SlurmUser={user_name()}
LogFile={layout.log_file("slurmdbd")}
PidFile={layout.pid_file("slurmdbd")}
StorageType=accounting_storage/mysql
# "localhost" is the socket in MYSQL_UNIX_PORT, where the user needs no password.
StorageHost=localhost
StorageUser={user_name()}
StorageLoc={DATABASE}
CommitDelay=0
"""


def gres_conf(devices: Iterable[Path]) -> str:
    """Return gres.conf; the order of the devices is their index in ``CUDA_VISIBLE_DEVICES``."""
    # A count without files makes the nodes invalid, and with regular files CUDA_VISIBLE_DEVICES
    # is not set: they must be character devices.
    return "AutoDetect=off\n" + "".join(f"Name=gpu File={device}\n" for device in devices)


def hosts(spec: ClusterSpec, addresses: Addresses) -> str:
    """Return what the nodes see as ``/etc/hosts``."""
    names = {addresses.of(node): node for node in (HEAD, *spec.node_names)}
    return f"""\
127.0.0.1 localhost
::1 localhost ip6-localhost
{addresses.host} {host_name()} login
""" + "".join(f"{address} {name}\n" for address, name in names.items())


def _make_gpu_devices(num_gpus: int, directory: Path) -> list[Path]:
    devices = []
    for index in range(num_gpus):
        device = directory / f"nvidia{index}"
        try:
            # Another name for /dev/null, which is major 1, minor 3.
            os.mknod(device, 0o20666, os.makedev(1, 3))
        except PermissionError as error:
            if num_gpus > len(_USUAL_DEVICES):
                raise ClusterError(
                    f"gpus_per_node={num_gpus} needs the privilege to make devices. "
                    f"Run as root, or use at most {len(_USUAL_DEVICES)}."
                ) from error
            device = Path("/dev", _USUAL_DEVICES[index])
        devices.append(device)
    return devices
