#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a trained model: no Slurm, no MPI, no root needed.
#     bash examples/quickstart.sh [arguments of examples/digits.py]
# Settings (HPCTRAIN_VENV, PYTHON): examples/venv.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

use_venv local,torch,examples
say "Running python examples/digits.py $*"
python "$checkout/examples/digits.py" "$@"
cat <<TEXT

Next:
  source $(printf %q "$venv")/bin/activate
  hpctrain list                                    # the runs in ./hpctrain_runs, with their metrics
  hpctrain template train.sbatch -N 2 --workers 8  # a batch script for a cluster, to look at
TEXT
