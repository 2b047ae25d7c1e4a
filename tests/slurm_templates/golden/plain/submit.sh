#!/bin/bash
# From a login node: the script submits itself, and this shell may be closed as soon as it has.
#
#     bash submit.sh
#
# hpctrain writes the job script. What it asks Slurm for is in the script's ScalingConfig; for the
# job that the other templates show:
#
#     ScalingConfig(
#         num_workers=4,
#         slurm=SlurmConfig(
#             nodes=2,
#             tasks_per_node=2,
#         ),
#     )
#
# See what would be submitted:  hpctrain submit --dry-run 'my train.py'
# Follow the run again later:   hpctrain attach RUN_DIRECTORY

set -euo pipefail
exec hpctrain submit 'my train.py' "$@"
