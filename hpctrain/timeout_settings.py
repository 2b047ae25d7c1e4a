"""Every timeout that is a field of a configuration: what waits, and what its end does.

Only the documentation prints them; no process of a run needs them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SettingRow:
    """A timeout that is a field of a configuration."""

    field: str
    """The module, the class and its field: ``hpctrain:FailureConfig.start_timeout_s``."""
    waits_for: str
    """What is waited for."""
    then: str
    """What its end does."""

    @property
    def shown(self) -> str:
        """In a user's notation: ``FailureConfig(start_timeout_s=...)``."""
        owner, _, name = self.field.partition(":")[2].partition(".")
        return f"{owner}({name}=...)"


SETTINGS: tuple[SettingRow, ...] = (
    SettingRow(
        field="hpctrain:FailureConfig.start_timeout_s",
        waits_for="each phase around the training function: start, imports, set-up, end",
        then="LaunchError or WorkerHangError; the ranks restart",
    ),
    SettingRow(
        field="hpctrain:FailureConfig.hang_timeout_s",
        waits_for="progress of a rank: a report, a heartbeat, a change of phase",
        then="WorkerHangError with its stack; counts as a failed rank",
    ),
    SettingRow(
        field="hpctrain:FailureConfig.node_timeout_s",
        waits_for="a heartbeat of a node",
        then="NodeLostError; the run continues without the node",
    ),
    SettingRow(
        field="hpctrain:SyncConfig.sync_timeout",
        waits_for="the commit of a checkpoint",
        then="CheckpointError in the rank; fit()'s WorkerError names the ranks that it waited for",
    ),
    SettingRow(
        field="hpctrain:ValidationConfig.wait_timeout_s",
        waits_for="validations, after the training",
        then="the checkpoint keeps the metrics that it was reported with",
    ),
    SettingRow(
        field="hpctrain:ValidationTaskConfig.timeout_s",
        waits_for="one validation",
        then="it is ended, and counts as failed",
    ),
    SettingRow(
        field="hpctrain:SlurmConfig.stop_notice_s",
        waits_for="ranks to save before the time limit of the job",
        then="Slurm ends the job",
    ),
    SettingRow(
        field="hpctrain:RunConfig.total_time",
        waits_for="the run, over all its jobs",
        then="RunStoppedError after a last checkpoint",
    ),
    SettingRow(
        field="hpctrain.torch:TorchConfig.timeout_s",
        waits_for="a collective of torch",
        then="torch's error; with NCCL the rank ends",
    ),
    SettingRow(
        field="hpctrain.horovod:HorovodConfig.timeout_s",
        waits_for="a worker that is being replaced, in an elastic run",
        then="the ranks start again",
    ),
    SettingRow(
        field="hpctrain.horovod:HorovodConfig.gloo_timeout_s",
        waits_for="a message of Gloo, below Horovod",
        then="the ranks restart, or the dead one is replaced",
    ),
    SettingRow(
        field="hpctrain.jax:JaxConfig.connect_timeout_s",
        waits_for="connections of all ranks to JAX's coordinator",
        then="WorkerError",
    ),
    SettingRow(
        field="hpctrain.xgboost:XGBoostConfig.connect_timeout_s",
        waits_for="connections of all ranks to XGBoost's tracker",
        then="WorkerError",
    ),
    SettingRow(
        field="hpctrain.xgboost:XGBoostConfig.timeout_s",
        waits_for="a collective of XGBoost",
        then="XGBoost's error",
    ),
    SettingRow(
        field="hpctrain.lightgbm:LightGBMConfig.timeout_s",
        waits_for="a message of LightGBM, over sockets",
        then="LightGBM's error",
    ),
)
