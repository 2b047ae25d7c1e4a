"""The models of the prediction benchmark: ``python scoring_models.py KIND DIRECTORY`` makes one."""

import sys
from pathlib import Path

FEATURES = [f"x_{i}" for i in range(28)]


def make_mlp():
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(28, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 1),
    )


def load_by_hand(kind, directory):
    """Return a function of a batch, as one would write it."""
    if kind == "mlp":
        import torch
        from safetensors.torch import load_file

        torch.set_num_threads(1)
        net = make_mlp()
        net.load_state_dict(load_file(directory / "model.safetensors"))
        net.eval()

        def score(batch):
            with torch.inference_mode():
                return net(torch.from_numpy(batch)).numpy()[:, 0]

        return score
    if kind == "xgboost":
        import xgboost

        return xgboost.Booster(model_file=directory / "model.ubj").inplace_predict
    import lightgbm

    return lightgbm.Booster(model_file=directory / "model.txt").predict


def make(kind, directory):
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(50_000, 28)).astype("f4")
    y = (np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + random.normal(size=len(x)) > 0).astype("f4")
    if kind == "mlp":
        from hpctrain.torch import TorchCheckpoint

        TorchCheckpoint.from_model(make_mlp(), path=directory, features=FEATURES)
    elif kind == "xgboost":
        import xgboost

        from hpctrain.predict.features import ModelFeatures

        data = xgboost.DMatrix(x, y, feature_names=FEATURES)
        params = {"objective": "binary:logistic", "max_depth": 6}
        xgboost.train(params, data, 100).save_model(directory / "model.ubj")
        ModelFeatures(framework=kind, features=tuple(FEATURES)).write(directory)
    else:
        import lightgbm

        from hpctrain.predict.features import ModelFeatures

        data = lightgbm.Dataset(x, y, feature_name=FEATURES)
        params = {"objective": "binary", "num_leaves": 63, "verbose": -1}
        lightgbm.train(params, data, 100).save_model(directory / "model.txt")
        ModelFeatures(framework=kind, features=tuple(FEATURES)).write(directory)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
