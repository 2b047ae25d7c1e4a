"""What a rank of the bare job does: import torch, and say when it is there, if it is rank 0."""

import os
import sys
import time

import torch

torch.get_num_threads()
if os.environ["SLURM_PROCID"] == "0":
    with open(f"{sys.argv[1]}/first", "w") as file:
        file.write(f"{time.time():.6f}")
