"""Steps of equal work: ``python steps.py bare|run RANKS BYTES BLOCKS ANSWER``."""

import json
import sys

STEPS = 100


def measure(num_bytes, blocks, should_stop):
    """Return the mean wall and CPU time of a step, for each block of steps."""
    import hashlib
    from time import perf_counter, process_time

    content = bytes(num_bytes)

    def block():
        wall, cpu = perf_counter(), process_time()
        for _ in range(STEPS):
            hashlib.sha256(content).digest()
            if should_stop():
                raise SystemExit("nobody asked to stop")
        return (perf_counter() - wall) / STEPS, (process_time() - cpu) / STEPS

    block()
    return [block() for _ in range(blocks)]


def train(config):
    import hpctrain

    return measure(config["bytes"], config["blocks"], hpctrain.should_stop)


if __name__ == "__main__":
    how, ranks, num_bytes, blocks = sys.argv[1], *map(int, sys.argv[2:5])
    if how == "bare":
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
        taken = measure(num_bytes, blocks, lambda: False)
        write = MPI.COMM_WORLD.rank == 0
    else:
        from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

        taken = (
            DataParallelTrainer(
                train,
                train_loop_config={"bytes": num_bytes, "blocks": blocks},
                scaling_config=ScalingConfig(num_workers=ranks),
                run_config=RunConfig(name="run", storage_path=".", verbose=0),
            )
            .fit()
            .return_value
        )
        write = True
    if write:
        with open(sys.argv[5], "w") as file:
            json.dump(taken, file)
