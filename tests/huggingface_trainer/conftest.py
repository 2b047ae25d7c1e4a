"""A small model, and rows that it can learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.imports import forks_of_one_import

_forks = forks_of_one_import("accelerate", "transformers.trainer")


@pytest.fixture(autouse=True, scope="session")
def _offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def make_model() -> Callable[[], Any]:
    """Return what makes a BERT of two layers, the same each time; it travels by value."""
    pytest.importorskip("transformers")

    def make() -> Any:
        from transformers import BertConfig, BertForSequenceClassification, set_seed

        set_seed(1)
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=30,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=8,
                num_labels=3,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    return make


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    """Return 32 sequences of six tokens; the first two tell the label."""
    import numpy as np

    tokens = np.random.default_rng(5).integers(0, 30, (32, 6))
    labels = (tokens[:, 0] + tokens[:, 1]) % 3
    return [
        {"input_ids": ids.tolist(), "labels": int(label)}
        for ids, label in zip(tokens, labels, strict=True)
    ]
