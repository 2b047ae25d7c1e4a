"""The least that is a process group: what an empty run is compared with."""

import os

import torch
from torch import distributed

rank = int(os.environ.get("PMI_RANK") or os.environ["RANK"])
size = int(os.environ.get("PMI_SIZE") or os.environ["WORLD_SIZE"])
if "MASTER_PORT" in os.environ:  # torchrun keeps a store
    distributed.init_process_group("gloo")
else:
    # The ranks of one mpiexec have one parent, so its pid makes a name that only they know.
    file = f"/tmp/hpctrain-bench-{os.getppid()}.port"
    if rank == 0:
        store = distributed.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        with open(file + ".new", "w") as beside:
            beside.write(str(store.port))
        os.replace(file + ".new", file)
    else:
        while not os.path.exists(file):
            os.sched_yield()
        with open(file) as told:
            store = distributed.TCPStore("127.0.0.1", int(told.read()), size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.set_num_threads(1)
distributed.barrier()
if rank == 0 and "MASTER_PORT" not in os.environ:
    os.unlink(file)
distributed.destroy_process_group()
