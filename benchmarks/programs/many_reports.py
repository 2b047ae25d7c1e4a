"""Reports and plain lines: ``python many_reports.py RANKS BLOCKS PACED CALLBACK ANSWER``."""

import json
import resource
import sys

from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, UserCallback

CALLS = 200


class Count(UserCallback):
    """Looks at every report."""

    def __init__(self):
        self.seen = 0

    def after_report(self, run_context, metrics, checkpoint):
        self.seen += 1


def train(config):
    import json
    from statistics import mean, median
    from time import perf_counter

    import hpctrain

    rank = hpctrain.get_context().get_world_rank()

    def step():
        end = perf_counter() + 1e-3
        while perf_counter() < end:
            pass

    def time_calls(call):
        taken = []
        for number in range(config["calls"]):
            if config["paced"]:
                step()
            metrics = {"loss": 1 / (number + 1), "accuracy": 0.9, "epoch": number}
            begin = perf_counter()
            call(metrics)
            taken.append(perf_counter() - begin)
        return taken

    with open(f"lines-{rank}.jsonl", "a") as file:

        def append(metrics):
            file.write(json.dumps(metrics) + "\n")
            file.flush()

        time_calls(append), time_calls(hpctrain.report)  # the first of each are slower
        blocks = [
            (time_calls(hpctrain.report), time_calls(append)) for _ in range(config["blocks"])
        ]
    return {
        "report_s": [median(ours) for ours, _ in blocks],
        "line_s": [median(line) for _, line in blocks],
        "report_mean_s": mean(taken for ours, _ in blocks for taken in ours),
        "line_mean_s": mean(taken for _, line in blocks for taken in line),
    }


if __name__ == "__main__":
    ranks, blocks, paced, callback = map(int, sys.argv[1:5])
    count = Count()
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"blocks": blocks, "calls": CALLS, "paced": paced},
        scaling_config=ScalingConfig(num_workers=ranks),
        run_config=RunConfig(
            name="run", storage_path=".", verbose=0, callbacks=[count] if callback else []
        ),
    )
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = trainer.fit()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    reports = len(result.metrics_history)
    assert not callback or count.seen == reports, (count.seen, reports)
    with open(sys.argv[5], "w") as file:
        json.dump({**result.return_value, "executor_cpu_s": cpu_s / reports}, file)
