"""Fit a StandardScaler on the rows of an HDF5 file; say how long that took and what was learned.

Run as ``fit_scaler.py hpctrain|scikit-learn FILE ANSWER``; the first under mpiexec.
"""

import json
import sys
import time

BATCH_ROWS = 65536
how, file, answer = sys.argv[1:]

if how == "hpctrain":
    from hpctrain.data import read_hdf5
    from hpctrain.preprocessors import StandardScaler
    from hpctrain.worker import mpi

    comm = mpi.initialize()
    dataset = read_hdf5(file)
    shard = dataset.shard(rank=comm.rank, world_size=comm.size)
    scaler = StandardScaler(["x"])
    comm.barrier()
    begin = time.perf_counter()
    scaler.fit_shard(shard, comm)
    took = time.perf_counter() - begin
    rank, mean, std = comm.rank, scaler.stats_["mean(x)"], scaler.stats_["std(x)"]
    mpi.finalize()
else:
    import h5py
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    with h5py.File(file) as opened:
        rows = opened["x"]
        begin = time.perf_counter()
        for start in range(0, len(rows), BATCH_ROWS):
            scaler.partial_fit(rows[start : start + BATCH_ROWS])
        took = time.perf_counter() - begin
    rank, mean, std = 0, scaler.mean_, scaler.scale_

if rank == 0:
    with open(answer, "w") as written:
        json.dump({"fit_s": took, "mean": mean.tolist(), "std": std.tolist()}, written)
