"""With Ray Data, as its guide does: ``score_with_ray.py KIND MODEL INPUT OUTPUT BATCH RANKS``."""

import sys
from pathlib import Path

import ray
from scoring_models import FEATURES, load_by_hand


class Scorer:
    def __init__(self, kind: str, model: str) -> None:
        self.score = load_by_hand(kind, Path(model))

    def __call__(self, batch):
        import numpy as np

        rows = np.stack([batch[name] for name in FEATURES], axis=1)
        return {"predictions": self.score(rows)}


if __name__ == "__main__":
    kind, model, rows, output, batch_size, ranks = sys.argv[1:]
    ray.init(
        # Scorers hold a CPU each while others read and write.
        num_cpus=int(ranks) + 2,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
    )
    ray.data.read_parquet(rows).map_batches(
        Scorer,
        fn_constructor_args=(kind, model),
        batch_size=int(batch_size),
        concurrency=int(ranks),
    ).write_parquet(output)
