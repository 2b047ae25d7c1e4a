"""`TransformersPredictor` and `TransformersCheckpoint`: from a model to labels, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import CheckpointError, ConfigError
from hpctrain.huggingface import TransformersCheckpoint, TransformersPredictor
from hpctrain.predict.registry import find_predictor
from hpctrain.torch import TorchCheckpoint

pytest.importorskip("transformers")

PADDED = {"padding": "max_length", "max_length": 6}
TEXTS = ["1 2 3", "4 5", "6 7 8 9"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[PAD]": 0, **{str(i): i for i in range(1, 30)}}, "[PAD]"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")


@pytest.fixture
def checkpoint(make_model: Callable[[], Any], tokenizer: Any) -> TransformersCheckpoint:
    return TransformersCheckpoint.from_model(make_model(), tokenizer)


def by_hand(model: Any, tokenizer: Any) -> tuple[list[int], list[float]]:
    import torch

    model.eval()
    with torch.no_grad():
        logits = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    probabilities = logits.softmax(-1).max(-1)
    return probabilities.indices.tolist(), probabilities.values.tolist()


def test_a_pipeline_scores_what_the_model_says_in_the_form_of_the_batch(
    checkpoint: TransformersCheckpoint, make_model: Callable[[], Any], tokenizer: Any
) -> None:
    pandas = pytest.importorskip("pandas")
    assert find_predictor(checkpoint) is TransformersPredictor
    predictor = TransformersPredictor.from_checkpoint(checkpoint)
    labels, scores = by_hand(make_model(), tokenizer)
    found = predictor.predict({"text": np.array(TEXTS, dtype=object)})
    assert found["label"].tolist() == [f"LABEL_{label}" for label in labels]
    assert found["score"] == pytest.approx(scores, abs=1e-6)
    frame = pandas.DataFrame({"n": [1, 2, 3], "text": TEXTS}, index=[5, 6, 7])
    scored = predictor.predict(frame, feature_columns=["text"])
    assert scored.index.tolist() == [5, 6, 7]
    assert scored["label"].tolist() == found["label"].tolist()
    assert predictor.predict(np.array(TEXTS))["label"].tolist() == found["label"].tolist()


def test_what_is_a_list_a_row_is_json_and_numbers_are_an_array(
    checkpoint: TransformersCheckpoint, make_model: Callable[[], Any], tokenizer: Any
) -> None:
    from transformers import AutoModel, BertForSequenceClassification, TextClassificationPipeline

    all_labels = TransformersPredictor.from_checkpoint(
        checkpoint,
        pipeline_cls=TextClassificationPipeline,
        model_cls=BertForSequenceClassification,
        top_k=None,
    ).predict({"text": np.array(TEXTS, dtype=object)})
    first = json.loads(all_labels["predictions"][0])
    assert sorted(entry["label"] for entry in first) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    embedded = TransformersPredictor.from_checkpoint(
        checkpoint, model_cls=AutoModel, task="feature-extraction", tokenize_kwargs=PADDED
    ).predict({"text": np.array(["1 2", "3 4 5"], dtype=object)})
    assert embedded["predictions"].shape == (2, 6, 16)


def test_the_only_output_for_an_array_is_an_array(checkpoint: TransformersCheckpoint) -> None:
    from transformers import AutoModel

    predictor = TransformersPredictor.from_checkpoint(
        checkpoint, model_cls=AutoModel, task="feature-extraction", tokenize_kwargs=PADDED
    )
    assert predictor.predict(np.array(["1 2", "3 4"])).shape == (2, 6, 16)
    assert predictor.predict(np.array([], dtype=str)).shape == (0, 6, 16)


def test_features_of_a_text_are_those_of_its_tokens_whatever_text_is_beside_it(
    checkpoint: TransformersCheckpoint,
) -> None:
    from transformers import AutoModel, FeatureExtractionPipeline

    by_task = {"task": "feature-extraction"}
    for pipeline in (by_task, {"pipeline_cls": FeatureExtractionPipeline}):
        predictor = TransformersPredictor.from_checkpoint(
            checkpoint, model_cls=AutoModel, **pipeline
        )
        (alone,) = predictor.predict(np.array(["1 2"]))
        for texts in (["1 2", "3 4"], ["1 2", "3 4 5 6 7 8"]):
            together = predictor.predict(np.array(texts))
            assert [np.shape(json.loads(found)) for found in together] == [
                (1, len(text.split()), 16) for text in texts
            ]
            assert np.allclose(json.loads(together[0]), json.loads(alone), atol=1e-6)


def test_entities_are_json_however_many_a_text_has(tokenizer: Any) -> None:
    from transformers import BertConfig, BertForTokenClassification, set_seed

    set_seed(1)
    model = BertForTokenClassification(
        BertConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
        )
    )
    predictor = TransformersPredictor.from_checkpoint(
        TransformersCheckpoint.from_model(model, tokenizer), ignore_labels=[]
    )
    for texts in (["1"], ["1", "2"], ["1", "2 3"], []):
        found = predictor.predict({"text": np.array(texts, dtype=object)})
        assert list(found) == ["predictions"]
        assert found["predictions"].dtype == object
        entities = [json.loads(row) for row in found["predictions"]]
        assert [[one["word"] for one in row] for row in entities] == [t.split() for t in texts]


def test_no_rows_have_the_columns_of_some(checkpoint: TransformersCheckpoint) -> None:
    none = {"text": np.array([], dtype=object)}
    for options in ({}, {"top_k": None}):
        predictor = TransformersPredictor.from_checkpoint(checkpoint, **options)
        some = predictor.predict({"text": np.array(TEXTS, dtype=object)})
        found = predictor.predict(none)
        assert [(name, values.dtype, values.shape) for name, values in found.items()] == [
            (name, values.dtype, (0,)) for name, values in some.items()
        ]


def test_a_checkpoint_gives_back_the_model_the_tokenizer_and_nothing_else(
    checkpoint: TransformersCheckpoint, make_model: Callable[[], Any], tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = checkpoint.get_model(AutoModelForSequenceClassification)
    for name, values in make_model().state_dict().items():
        assert (values == model.state_dict()[name]).all(), name
    assert checkpoint.get_tokenizer(AutoTokenizer)("7 8")["input_ids"] == [7, 8]
    with pytest.raises(CheckpointError, match=r"has no training_args\.bin"):
        checkpoint.get_training_arguments()
    bare = TransformersCheckpoint.from_model(make_model(), path=tmp_path / "bare")
    assert bare.get_tokenizer(AutoTokenizer) is None


def test_a_model_that_is_none_of_transformers_has_no_pipeline(tmp_path: Path) -> None:
    from torch import nn

    plain = TransformersCheckpoint.from_model(nn.Linear(2, 1), path=tmp_path / "plain")
    assert plain.get_model(nn.Linear(2, 1)).weight.shape == (1, 2)
    with pytest.raises(ConfigError, match=r"has no config\.json.*TransformersCheckpoint"):
        TransformersPredictor.from_checkpoint(plain)
    torch = TorchCheckpoint.from_model(nn.Linear(2, 1), path=tmp_path / "torch")
    with pytest.raises(ConfigError, match="Use the predictor of torch"):
        TransformersPredictor.from_checkpoint(torch)


def test_weights_that_a_model_of_ones_own_shares_come_back() -> None:
    from torch import nn

    def make_tied() -> nn.Sequential:
        tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        tied[1].weight = tied[0].weight
        return tied

    trained, fresh = make_tied(), make_tied()
    loaded = TransformersCheckpoint.from_model(trained).get_model(fresh)
    assert loaded[1].weight is loaded[0].weight
    assert (loaded[1].weight == trained[1].weight).all()


def test_a_task_that_nobody_names_is_asked_for(checkpoint: TransformersCheckpoint) -> None:
    path = checkpoint.path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "architectures": ["BertForWhatever"]}))
    with pytest.raises(ConfigError, match=r"BertForWhatever.*task='text-classification'"):
        TransformersPredictor.from_checkpoint(checkpoint)
