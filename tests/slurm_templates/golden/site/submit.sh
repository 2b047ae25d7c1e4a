#!/bin/bash
# From a login node: the script submits itself, and this shell may be closed as soon as it has.
#
#     bash submit.sh
#
# hpctrain writes the job script. What it asks Slurm for is in the script's ScalingConfig; for the
# job that the other templates show:
#
#     ScalingConfig(
#         num_workers=8,
#         use_gpu=True,
#         slurm=SlurmConfig(
#             account='abc',
#             time='1:00:00',
#             nodes=1,
#             tasks_per_node=8,
#             setup=('module load miniforge3',),
#             sbatch_args=('--mail-type=END',),
#             srun_args=('--label',),
#             site='frontier',
#         ),
#     )
#
# See what would be submitted:  hpctrain submit --dry-run 'my train.py'
# Follow the run again later:   hpctrain attach RUN_DIRECTORY
module load miniforge3

set -euo pipefail
exec hpctrain submit 'my train.py' "$@"
