"""Predictions of detection models: a dict for each image, with any number of objects."""

import numpy as np
import pytest
import torch

from hpctrain import ConfigError, RunConfig, TrainingFailedError
from hpctrain.data import from_numpy
from hpctrain.predict import BatchPredictor
from hpctrain.torch import TorchCheckpoint, TorchDetectionPredictor


class Bright(torch.nn.Module):
    """In place of torchvision, with its inputs and outputs: a box for each bright row."""

    def forward(self, images):
        assert isinstance(images, list)
        return [self._of(image) for image in images]

    def _of(self, image):
        assert image.ndim == 3
        rows = torch.nonzero(image[0].amax(dim=1) > 0.5).flatten()
        zero = torch.zeros_like(rows)
        boxes = torch.stack([zero, rows, zero + image.shape[2], rows + 1], dim=1).float()
        return {"boxes": boxes, "labels": rows, "scores": image[0].amax(dim=1)[rows]}


def make_images() -> np.ndarray:
    images = np.zeros((3, 1, 4, 5), np.float32)
    images[1, 0, 2] = 1.0
    images[2, 0, 1:3] = 0.75
    return images


def check(predictions):
    assert list(predictions) == ["pred_boxes", "pred_labels", "pred_scores"]
    assert [len(one) for one in predictions["pred_boxes"]] == [0, 1, 2]
    assert predictions["pred_boxes"][1].tolist() == [[0.0, 2.0, 5.0, 3.0]]
    assert [one.tolist() for one in predictions["pred_labels"]] == [[], [2], [1, 2]]
    assert [one.tolist() for one in predictions["pred_scores"]] == [[], [1.0], [0.75, 0.75]]


def test_each_image_has_its_objects():
    predictor = TorchDetectionPredictor(Bright())
    check(predictor.predict(make_images()))
    check(predictor.predict({"image": make_images()}))
    assert not predictor.model.training


def test_images_of_equal_numbers_of_objects():
    predictions = TorchDetectionPredictor(Bright()).predict(make_images()[1:2].repeat(2, axis=0))
    assert np.shape(predictions["pred_labels"][0]) == (1,)
    assert len(predictions["pred_boxes"]) == 2


def test_the_type_of_the_images_can_be_given():
    class Seen(Bright):
        def forward(self, images):
            self.types = {image.dtype for image in images}
            return super().forward(images)

    model = Seen()
    predictor = TorchDetectionPredictor(model)
    predictor.predict((make_images() * 8).astype(np.uint8), dtype=torch.float64)
    assert model.types == {torch.float64}


def test_what_cannot_be_images_is_refused():
    predictor = TorchDetectionPredictor(Bright())
    with pytest.raises(ConfigError, match="one column of images, not 2: a, b"):
        predictor.predict({"a": make_images(), "b": make_images()})
    with pytest.raises(ConfigError, match=r"no torch.dtype"):
        predictor.predict({"a": make_images()}, dtype={"a": torch.float32})


def test_a_checkpoint_and_a_dataset(tmp_path):
    checkpoint = TorchCheckpoint.from_model(Bright())
    check(TorchDetectionPredictor.from_checkpoint(checkpoint).predict(make_images()))
    predictor = BatchPredictor(checkpoint, TorchDetectionPredictor, model=Bright())
    run_config = RunConfig(storage_path=tmp_path, verbose=0)
    with pytest.raises(TrainingFailedError, match="column 'pred_boxes' has an array of shape"):
        predictor.predict(from_numpy({"image": make_images()}), run_config=run_config)
