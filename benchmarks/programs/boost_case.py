"""What all ways of boosting have in common."""

import json
import resource
from pathlib import Path
from typing import Any

import h5py

ROUNDS = 50
PARAMS: dict[str, dict[str, Any]] = {
    "xgboost": {
        "objective": "binary:logistic",
        "eval_metric": "logloss",
        "tree_method": "hist",
        "max_depth": 8,
        "eta": 0.1,
    },
    "lightgbm": {
        "objective": "binary",
        "metric": "binary_logloss",
        "num_leaves": 255,
        "learning_rate": 0.1,
        "verbosity": -1,
    },
}


def read_rows(path: str, *, rank: int = 0, size: int = 1) -> tuple[Any, Any]:
    """Return a rank's part of the rows to train on."""
    with h5py.File(path) as file:
        count = len(file["train/y"])
        part = slice(rank * count // size, (rank + 1) * count // size)
        return file["train/x"][part], file["train/y"][part]


def boost(library: str, x: Any, y: Any, *, threads: int, params: dict[str, Any]) -> Any:
    """Boost in the way that the library's documentation shows."""
    if library == "xgboost":
        import xgboost

        matrix = xgboost.QuantileDMatrix(x, label=y, nthread=threads)
        return xgboost.train(
            {**PARAMS[library], "nthread": threads, **params},
            matrix,
            ROUNDS,
            evals=[(matrix, "train")],
            verbose_eval=False,
        )
    import lightgbm

    settings = {**PARAMS[library], "num_threads": threads, **params}
    dataset = lightgbm.Dataset(x, y, params=settings)
    return lightgbm.train(
        settings,
        dataset,
        ROUNDS,
        valid_sets=[dataset],
        valid_names=["train"],
        keep_training_booster=True,
    )


def say(path: str, booster: Any, *, library: str, data: str, wall_s: float, cpu_s: float) -> None:
    """Write down how long it took, and how good the model is."""
    from sklearn.metrics import roc_auc_score

    with h5py.File(data) as file:
        x, y = file["held_out/x"][:], file["held_out/y"][:]
    if library == "xgboost":
        import xgboost

        booster.feature_names = None
        predicted = booster.predict(xgboost.DMatrix(x))
    else:
        predicted = booster.predict(x)
    said = {"wall_s": wall_s, "cpu_s": cpu_s, "auc": float(roc_auc_score(y, predicted))}
    Path(path).write_text(json.dumps(said))


def cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    """Return the CPU time of this process, or of its children."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime
