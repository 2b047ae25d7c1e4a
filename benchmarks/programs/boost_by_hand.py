"""One of two processes in the library's own collective, under mpiexec: LIBRARY DATA OUTPUT."""

import contextlib
import importlib
import socket
import sys
import time

from boost_case import boost, cpu_s, read_rows, say
from mpi4py import MPI

library, data, output = sys.argv[1:]
importlib.import_module(library)
comm = MPI.COMM_WORLD
params = {}
collective = contextlib.nullcontext()
if library == "xgboost":
    from xgboost.collective import CommunicatorContext
    from xgboost.tracker import RabitTracker

    arguments = None
    if comm.rank == 0:
        tracker = RabitTracker(n_workers=comm.size, host_ip="127.0.0.1", sortby="task")
        tracker.start()
        arguments = tracker.worker_args()
    arguments = comm.bcast(arguments)
    collective = CommunicatorContext(**arguments, dmlc_task_id=f"{comm.rank:06d}")
else:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    ports = comm.allgather(port)
    params = {
        "machines": ",".join(f"127.0.0.1:{port}" for port in ports),
        "local_listen_port": port,
        "num_machines": comm.size,
        "tree_learner": "data",
        "pre_partition": True,
    }
with collective:
    comm.barrier()
    begin, used = time.perf_counter(), cpu_s()
    x, y = read_rows(data, rank=comm.rank, size=comm.size)
    booster = boost(library, x, y, threads=1, params=params)
    wall_s, used = time.perf_counter() - begin, cpu_s() - used
wall_s = comm.allreduce(wall_s, op=MPI.MAX)
used = comm.allreduce(used)
if comm.rank == 0:
    say(output, booster, library=library, data=data, wall_s=wall_s, cpu_s=used)
