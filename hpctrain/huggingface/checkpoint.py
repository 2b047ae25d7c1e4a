"""`TransformersCheckpoint`: a directory that ``from_pretrained()`` reads."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError
from hpctrain.predict.features import FEATURES_NAME, ModelFeatures
from hpctrain.torch.checkpoint import SAFETENSORS_NAME, load_model, unwrap, write_state_dict

if TYPE_CHECKING:
    import torch
    import transformers

CONFIG_NAME = "config.json"
WEIGHT_FILES = (
    SAFETENSORS_NAME,
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
)
_ARGUMENTS_NAME = "training_args.bin"


class TransformersCheckpoint(Checkpoint):
    """A checkpoint with a model of Transformers, as ``save_pretrained()`` writes it.

    Those that a `ReportCallback` has reported are of this kind: model, tokenizer, and what a
    `transformers.Trainer` goes on from.
    """

    # Its methods read the directory at once.
    _may_be_made_later = False

    @classmethod
    def from_model(
        cls,
        model: transformers.PreTrainedModel | torch.nn.Module,
        tokenizer: transformers.PreTrainedTokenizerBase | None = None,
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
    ) -> TransformersCheckpoint:
        """Return a checkpoint with a model, and its tokenizer.

        Not collective.

        Parameters
        ----------
        model
            The model. If it is none of Transformers, only its weights are written.
        tokenizer
            Tokenizer, or whatever else processes its inputs.
        path
            Directory, made if needed. None makes a temporary one that lives as long as the handle.
        preprocessor
            What batches go through before the pipeline.
        """
        checkpoint = cls._make(path)
        directory = checkpoint.path
        plain: Any = unwrap(model)
        if hasattr(plain, "save_pretrained"):
            plain.save_pretrained(directory)
        else:
            write_state_dict(plain.state_dict(), directory)
        if tokenizer is not None:
            tokenizer.save_pretrained(directory)
        describe(directory)
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint

    def get_model(
        self, model: type[Any] | torch.nn.Module, **pretrained_model_kwargs: Any
    ) -> transformers.PreTrainedModel | torch.nn.Module:
        """Return the model. Not collective.

        Parameters
        ----------
        model
            Its class, `transformers.AutoModelForCausalLM` or the like; or a model of the same
            architecture that is none of Transformers, whose weights are replaced.
        **pretrained_model_kwargs
            For ``from_pretrained()`` of the class. ``trust_remote_code`` is false unless it is
            here.

        Raises
        ------
        CheckpointError
            If there is none, or it is of another architecture.
        """
        with self.as_directory() as directory:
            load: Any = getattr(model, "from_pretrained", None)
            if load is None:
                return load_model(self, model)
            _require(directory, CONFIG_NAME)
            return load_pretrained(load, directory, **pretrained_model_kwargs)

    def get_tokenizer(self, tokenizer: type[Any], **kwargs: Any) -> Any:
        """Return the tokenizer, or None if there is none. Not collective.

        Parameters
        ----------
        tokenizer
            Its class, `transformers.AutoTokenizer` for one.
        **kwargs
            For its ``from_pretrained()``. ``trust_remote_code`` is false unless it is here.
        """
        with self.as_directory() as directory:
            if not has_tokenizer(Path(directory)):
                return None
            return load_pretrained(tokenizer.from_pretrained, directory, **kwargs)

    def get_training_arguments(self) -> transformers.TrainingArguments:
        """Return the arguments of the trainer that saved it. Not collective.

        This unpickles: open only checkpoints that you trust.

        Raises
        ------
        CheckpointError
            If no `transformers.Trainer` saved it.
        """
        import torch

        with self.as_directory() as directory:
            path = _require(directory, _ARGUMENTS_NAME)
            return torch.load(path, map_location="cpu", weights_only=False)


def load_pretrained(load: Callable[..., Any], directory: str, **kwargs: Any) -> Any:
    """Return what ``from_pretrained()`` gives, without code of the directory. Not collective.

    Raises
    ------
    CheckpointError
        If it cannot be loaded, or not without such code.
    """
    owner = getattr(load, "__self__", load)
    if getattr(owner, "__module__", "").startswith("transformers."):
        # By itself Transformers asks at the terminal.
        kwargs.setdefault("trust_remote_code", False)
    try:
        return load(directory, **kwargs)
    except (ValueError, OSError, RuntimeError, LookupError, pickle.UnpicklingError) as error:
        lines = str(error).splitlines() or [""]
        raise CheckpointError(
            f"{directory} cannot be loaded: {type(error).__name__}: {lines[0]:.400} If it needs "
            f"code of its own that you trust, give trust_remote_code=True; otherwise load another "
            f"checkpoint."
        ) from error


def describe(directory: Path) -> None:
    """Write which framework a checkpoint is of, unless something says it. Not collective."""
    if not (directory / FEATURES_NAME).exists():
        ModelFeatures(framework="transformers").write(directory)


def has_tokenizer(directory: Path) -> bool:
    """Return whether a tokenizer was saved into a directory. Not collective."""
    return (directory / "tokenizer_config.json").exists()


def _require(directory: str, name: str) -> Path:
    path = Path(directory, name)
    if not path.exists():
        raise CheckpointError(
            f"{directory} has no {name}: it was not saved by transformers. "
            f"TransformersCheckpoint.from_model() writes one that was."
        )
    return path
