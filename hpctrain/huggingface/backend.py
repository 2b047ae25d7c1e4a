"""The backend: torch's process group, and Accelerate that uses it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpctrain import environ
from hpctrain.backend import BackendContext
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.torch.config import TorchConfig
from hpctrain.torch.process_group import TorchBackend

if TYPE_CHECKING:
    from hpctrain.huggingface.config import AccelerateConfig


class AccelerateBackend(TorchBackend):
    """Sets a process group up, in which every `Accelerator` and `transformers.Trainer` is."""

    def on_start(self, context: BackendContext, config: TorchConfig) -> None:
        """Make the process group, and Accelerate's view of it. Collective.

        Raises
        ------
        ConfigError
            If accelerate is missing, or does not see all ranks.
        LaunchError
            If a rank cannot connect to rank 0.
        """
        require("accelerate", to="by AccelerateConfig", extra="huggingface")
        reset()  # what the script has made before
        super().on_start(context, config)
        from accelerate import PartialState

        try:
            # Whoever asks for it before there is an Accelerator would get one without other ranks.
            state = PartialState(cpu=not context.gpu_ids)
        except ImportError as error:
            raise ConfigError(
                f"accelerate_config asks for what the workers have not: {error}"
            ) from error
        use_group_of_torch()
        world = context.world
        if (state.process_index, state.num_processes) != (world.world_rank, world.world_size):
            raise ConfigError(
                f"Accelerate {_version()} sees rank {state.process_index} of "
                f"{state.num_processes}, and this is rank {world.world_rank} of "
                f"{world.world_size}. Are there ACCELERATE_* variables in the job's environment? "
                f"Unset them, and give AccelerateTrainer(accelerate_config=...)."
            )

    def release(self) -> None:
        """Let Accelerate forget its ranks, and torch its own. Not collective."""
        super().release()
        if "accelerate" in sys.modules:
            reset()

    def variables(self, context: BackendContext, config: AccelerateConfig) -> dict[str, str]:
        """Return what Accelerate reads. Not collective."""
        return {
            # TrainingArguments(bf16=True) writes it, and a later run would be in bf16 as well.
            "ACCELERATE_MIXED_PRECISION": environ.variable("ACCELERATE_MIXED_PRECISION") or "no",
            # Without it Accelerate chooses a number of threads itself, and warns.
            "OMP_NUM_THREADS": environ.variable("OMP_NUM_THREADS") or str(context.cpus_per_worker),
            **config.variables,
            # By default each rank would train alone: Accelerate has no ranks on CPUs unless told.
            "ACCELERATE_USE_CPU": str(not context.gpu_ids).lower(),
        }


def use_group_of_torch() -> None:
    """Let Accelerate gather as the process group does. Not collective.

    On CPUs it takes MPI where torch has that, as Debian's torch, whatever the group is of, and then
    Gloo refuses the sizes of its tensors.
    """
    from accelerate import PartialState
    from torch import distributed

    state = PartialState()
    if state.backend == "mpi":
        state.backend = distributed.get_backend()


def reset() -> None:
    """Let Accelerate forget what it knows of its ranks. Not collective."""
    from accelerate.state import AcceleratorState, GradientState

    # They are one object a process, which holds the ranks of the first run for ever.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def _version() -> str:
    import accelerate

    return str(accelerate.__version__)
