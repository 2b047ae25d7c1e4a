"""Run as a program: ask Accelerate's launcher what it would export.

The configuration comes through standard input, as JSON; the variables leave through standard
output. A program, because the launcher sets up logging and reads the environment.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from hpctrain import environ

# What Accelerate reads in a rank. Its launcher also sets addresses, threads and module paths.
_PREFIXES = ("ACCELERATE_", "FSDP_", "FP8_", "MEGATRON_LM_", "PARALLELISM_CONFIG_")
# Says where a rank computes, which follows from ScalingConfig.
_NOT_THESE = ("ACCELERATE_USE_CPU",)


def launch_variables(config: dict[str, Any]) -> dict[str, str]:
    """Return what ``accelerate launch`` would export for a configuration. Not collective.

    Raises
    ------
    ValueError
        If Accelerate refuses it.
    """
    from accelerate.commands import launch

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        arguments = launch.launch_command_parser().parse_args(["--config_file", file.name, "-"])
        arguments, defaults, says_precision = launch._validate_launch_command(arguments)
    # A port of 0 is one that is free, so that nothing is said of one that is not.
    arguments.main_process_port = 0
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if says_precision else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, variables = launch.prepare_deepspeed_cmd_env(arguments)
    elif arguments.use_fsdp or arguments.use_megatron_lm or arguments.multi_gpu:
        variables = launch.prepare_multi_gpu_env(arguments)
    else:
        _, variables = launch.prepare_simple_launcher_cmd_env(arguments)
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_PREFIXES) and name not in _NOT_THESE
    }


def main() -> None:
    """Read a configuration, and write its variables."""
    config = json.load(sys.stdin)
    inherited = [name for name in environ.environment() if name.startswith(_PREFIXES)]
    environ.export(dict.fromkeys(inherited))
    try:
        variables = launch_variables(config)
    except ImportError as error:
        sys.exit(f"{error}. pip install 'hpctrain[huggingface]'.")
    except (ValueError, TypeError, AssertionError, RuntimeError) as error:
        sys.exit(" ".join(str(error).split()))
    print(json.dumps(variables))


if __name__ == "__main__":
    main()
