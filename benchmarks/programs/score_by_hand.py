"""HDF5 to HDF5, as one writes it: ``score_by_hand.py KIND MODEL INPUT OUTPUT BATCH ANSWER``.

Alone it scores all rows; under mpiexec each process scores its share, into a file of its own.
"""

import json
import os
import sys
import time
from pathlib import Path

import h5py
from scoring_models import load_by_hand

if __name__ == "__main__":
    begun = time.time()
    kind, model, rows_path, output, batch_size, answer = sys.argv[1:]
    rank, size = int(os.environ.get("PMI_RANK", 0)), int(os.environ.get("PMI_SIZE", 1))
    score = load_by_hand(kind, Path(model))
    first_row_at = None
    with h5py.File(rows_path) as rows, h5py.File(f"{output}.{rank}", "w") as scores:
        x = rows["x"]
        begin, end = (len(x) * r // size for r in (rank, rank + 1))
        out = scores.create_dataset("predictions", (end - begin,), dtype="f4")
        step = int(batch_size)
        for start in range(begin, end, step):
            stop = min(start + step, end)
            if first_row_at is None:
                # Reading and scoring of the first batch belong to the work, not to the start.
                first_row_at = time.time()
            out[start - begin : stop - begin] = score(x[start:stop])
    with open(f"{output}.{rank}", "rb") as file:
        os.fsync(file.fileno())
    if rank == 0:
        times = {"begun_at": begun, "first_row_at": first_row_at, "ended_at": time.time()}
        Path(answer).write_text(json.dumps(times))
    # As ours does: not taking a framework down module by module.
    os._exit(0)
