"""Train a small BERT to read scikit-learn's handwritten digits, as sentences of dark pixels.

With ``--form trainer`` the loop is that of a transformers.Trainer, with ``--form accelerate`` it is
written with Accelerate. Nothing is downloaded: the model is made of a configuration, the tokenizer
of a list of words. The same script runs on a laptop, on a login node, inside sbatch or salloc, and
under ``srun`` or ``mpiexec``, with the same losses.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hpctrain import Checkpoint, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.data import Dataset, from_numpy
from hpctrain.huggingface import AccelerateTrainer, TransformersPredictor, TransformersTrainer
from hpctrain.predict import BatchPredictor

PIXELS = 64
LEVELS = 4


def read_digits() -> tuple[Dataset, Dataset]:
    """Return the sentences to train on, and every fifth one, which is held out."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    held_out = np.arange(len(digits.target)) % 5 == 0
    sentences = [
        " ".join(f"{pixel}:{grey}" for pixel, grey in enumerate(image) if grey)
        for image in (digits.data // (16 / LEVELS)).astype(int).clip(0, LEVELS - 1)
    ]
    columns = {"text": np.array(sentences, dtype=object), "digit": digits.target}
    train, test = (
        from_numpy({name: values[rows] for name, values in columns.items()})
        for rows in (~held_out, held_out)
    )
    return train, test


def make_tokenizer() -> Any:
    """Return a tokenizer whose words are a pixel and its grey level, as in ``12:3``."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    pixels = [f"{pixel}:{grey}" for pixel in range(PIXELS) for grey in range(1, LEVELS)]
    words = ["[PAD]", "[UNK]", *pixels]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=PIXELS
    )


def make_model(seed: int) -> Any:
    """Return a BERT of two layers, the same for the same seed."""
    from transformers import BertConfig, BertForSequenceClassification, set_seed

    set_seed(seed)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=2 + PIXELS * (LEVELS - 1),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=PIXELS,
            id2label={digit: str(digit) for digit in range(10)},
        )
    )


def make_trainer(train_dataset: Any, eval_dataset: Any, epochs: int, seed: int) -> Any:
    """Return the transformers.Trainer of a rank."""
    from transformers import Trainer, TrainingArguments

    tokenizer = make_tokenizer()

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
        return {**batch, "labels": torch.tensor([row["digit"] for row in rows])}

    def accuracy(predicted: Any) -> dict[str, float]:
        return {"accuracy": float((predicted[0].argmax(-1) == predicted[1]).mean())}

    return Trainer(
        model=make_model(seed),
        args=TrainingArguments(
            output_dir="unused",
            num_train_epochs=epochs,
            learning_rate=3e-3,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            logging_strategy="epoch",
            eval_strategy="epoch",
            save_strategy="epoch",
            # The collator needs "text", which is no argument of the model.
            remove_unused_columns=False,
            # Transformers multiplies by the number of ranks what this model does not divide by it.
            average_tokens_across_devices=False,
            report_to="none",
            disable_tqdm=True,
            seed=seed,
        ),
        data_collator=collate,
        processing_class=tokenizer,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        compute_metrics=accuracy,
    )


def train_with_accelerate(config: dict[str, Any]) -> None:
    """Train on this rank's sentences, with a loop of one's own."""
    import torch
    from accelerate import Accelerator

    import hpctrain
    from hpctrain.huggingface import TransformersCheckpoint

    accelerator = Accelerator()
    tokenizer = make_tokenizer()
    model = make_model(config["seed"])
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    train = hpctrain.get_dataset_shard("train")
    # How far this rank's sentences have been read is a part of the state.
    accelerator.register_for_checkpointing(train)
    checkpoint = hpctrain.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            accelerator.load_state(directory)
    while train.epoch < config["epochs"]:
        model.train()
        total = torch.zeros((), device=accelerator.device)
        for batch in train.iter_batches(batch_size=16, shuffle=True):
            inputs = tokenizer(batch["text"].tolist(), padding=True, return_tensors="pt")
            labels = torch.from_numpy(batch["digit"])
            loss = model(**inputs.to(accelerator.device), labels=labels.to(accelerator.device)).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total, "mean").item() / train.num_batches(16)
        with hpctrain.checkpoint_dir() as directory:
            # Each rank writes its part: the state of its random generators, for one.
            accelerator.save_state(directory)
            if accelerator.is_main_process:
                plain = accelerator.unwrap_model(model)
                TransformersCheckpoint.from_model(plain, tokenizer, path=directory)
            hpctrain.report({"epoch": train.epoch, "loss": mean}, Checkpoint(directory))
        if hpctrain.should_stop():
            break


def main() -> None:
    """Train, and read the digits that were held out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--form", choices=["trainer", "accelerate"], default="trainer")
    parser.add_argument("--workers", type=int, default=2, help="MPI ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--storage", type=Path, default=Path("hpctrain_runs"))
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    parser.add_argument("--skip-predictions", action="store_true")
    arguments = parser.parse_args()
    train, held_out = read_digits()
    scaling = ScalingConfig(num_workers=arguments.workers, slurm=SlurmConfig(nodes=arguments.nodes))
    name = arguments.name or f"transformers-digits-{arguments.form}"
    settings: dict[str, Any] = {
        "datasets": {"train": train},
        "scaling_config": scaling,
        "run_config": RunConfig(name=name, storage_path=arguments.storage),
    }
    config = {"epochs": arguments.epochs, "seed": 7}
    if arguments.form == "trainer":
        settings["datasets"]["evaluation"] = held_out
        result = TransformersTrainer(make_trainer, trainer_init_config=config, **settings).fit()
    else:
        result = AccelerateTrainer(
            train_with_accelerate, train_loop_config=config, **settings
        ).fit()
    print(f"run directory      {result.path}")
    if arguments.skip_predictions:
        return
    scored = (
        BatchPredictor.from_checkpoint(result.checkpoint, TransformersPredictor)
        .predict(
            held_out,
            feature_columns=["text"],
            keep_columns=["digit"],
            batch_size=64,
            output=arguments.storage / f"{name}.parquet",
            scaling_config=scaling,
            run_config=RunConfig(name=f"{name}-scores", storage_path=arguments.storage),
        )
        .to_numpy()
    )
    accuracy = (scored["label"].astype(int) == scored["digit"]).mean()
    print(f"held-out accuracy  {accuracy:.4f}")
    print(f"predictions        {arguments.storage / name}.parquet")


if __name__ == "__main__":
    main()
