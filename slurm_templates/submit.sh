#!/bin/bash
# From a login node: the script submits itself, and this shell may be closed as soon as it has.
#
#     bash @FILE@
#
# hpctrain writes the job script. What it asks Slurm for is in the script's ScalingConfig; for the
# job that the other templates show:
#
@SCALING@
#
# See what would be submitted:  hpctrain submit --dry-run @SCRIPT@
# Follow the run again later:   hpctrain attach RUN_DIRECTORY
@SETUP@

set -euo pipefail
exec hpctrain submit @SCRIPT@ "$@"
