"""With a BatchPredictor: ``score_on_ranks.py KIND MODEL INPUT OUTPUT BATCH ANSWER RANKS``."""

import json
import sys
from pathlib import Path

from scoring_models import FEATURES, make_mlp

from hpctrain import Checkpoint, Result, RunConfig, ScalingConfig
from hpctrain.predict import BatchPredictor
from hpctrain.predict.registry import find_predictor

if __name__ == "__main__":
    kind, model, rows, output, batch_size, answer, ranks = sys.argv[1:]
    checkpoint = Checkpoint(model)
    arguments = {}
    if kind == "mlp":
        arguments = {"model": make_mlp}
    BatchPredictor.from_checkpoint(checkpoint, find_predictor(checkpoint), **arguments).predict(
        rows,
        feature_columns=["x"] if rows.endswith(".h5") else FEATURES,
        batch_size=int(batch_size),
        output=output,
        scaling_config=ScalingConfig(num_workers=int(ranks)),
        run_config=RunConfig(name="scores", storage_path=".", verbose=0),
    )
    Path(answer).write_text(json.dumps(Result.from_path("scores").return_value))
