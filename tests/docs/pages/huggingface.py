"""A tiny BERT on disk, and rows for it; then the blocks of the page, in order."""

import os
import sys

sys.path.insert(0, "EXAMPLES")
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from transformers_digits import make_model, make_tokenizer

from hpctrain.data import from_numpy

for name in ("train", "test", "new"):
    os.makedirs(f"scratch/{name}")
make_model(1).save_pretrained("models/bert-base-cased")
make_tokenizer().save_pretrained("models/bert-base-cased")
tokens = {"input_ids": np.ones((8, 6), int), "labels": np.arange(8) % 10}
for name in ("train", "test"):
    from_numpy(tokens).write_parquet(f"scratch/{name}/rows.parquet")

# block: huggingface-transformers

assert len(result.metrics_history) >= 2


def make_my_trainer():
    from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

    return Trainer(
        model=AutoModelForSequenceClassification.from_pretrained("models/bert-base-cased"),
        args=TrainingArguments(output_dir="unused", num_train_epochs=1, save_strategy="epoch"),
        train_dataset=[{"input_ids": [1] * 6, "labels": 1}] * 8,
    )


# block: huggingface-accelerate

sentences = np.array(["1:1 2:2", "3:3"] * 4, dtype=object)
from_numpy({"text": sentences}).write_parquet("scratch/new/rows.parquet")

# block: huggingface-predict

assert read_parquet("labels.parquet").count() == 8
