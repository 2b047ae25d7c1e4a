"""`TransformersPredictor`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.checkpoint import Checkpoint
from hpctrain.data.formats import as_column
from hpctrain.data.optional import require
from hpctrain.data.schema import check_columns
from hpctrain.errors import ConfigError
from hpctrain.huggingface.checkpoint import (
    CONFIG_NAME,
    WEIGHT_FILES,
    has_tokenizer,
    load_pretrained,
)
from hpctrain.predict.batches import PREDICTIONS
from hpctrain.predict.predictor import Predictor
from hpctrain.torch.predictor import predict_device

if TYPE_CHECKING:
    import transformers

_ROWS_AT_A_TIME = 64
# What a model does, by what the name of its class ends with.
_TASKS: Mapping[str, str] = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForImageClassification": "image-classification",
    "ForAudioClassification": "audio-classification",
    "Model": "feature-extraction",
}
_FEATURES = "FeatureExtractionPipeline"
# Pipelines that give so many things for a row as they find in it.
_FINDERS = frozenset(
    {
        "FillMaskPipeline",
        "ImageSegmentationPipeline",
        "ObjectDetectionPipeline",
        "TableQuestionAnsweringPipeline",
        "TokenClassificationPipeline",
        "ZeroShotObjectDetectionPipeline",
    }
)
# Pipelines that take any text.
_READERS = frozenset({_FEATURES, "TextClassificationPipeline", "TextGenerationPipeline"})


class TransformersPredictor(Predictor):
    """Scores batches with a pipeline of Transformers.

    A row is what the pipeline takes: the value of the only column, or a dict of the columns. What
    it gives for a row becomes columns: ``label`` and ``score`` of a classification. Where that is a
    list of several things, as with ``top_k=3``, it is the column ``predictions``, as JSON; so it is
    for tasks whose lists differ in length, such as ``token-classification``. Features of texts are
    JSON too, or an array with ``tokenize_kwargs={"padding": "max_length", ...}``.

    Parameters
    ----------
    pipeline
        The pipeline. None is for a predictor that is given its `pipeline` later.
    preprocessor
        What batches go through before the pipeline.
    use_gpu
        Whether to compute on this rank's GPU, outside of a run on the first that is visible.

    Raises
    ------
    ConfigError
        If there is no GPU to use.
    """

    framework = "transformers"
    model_files = WEIGHT_FILES

    def __init__(
        self,
        pipeline: transformers.Pipeline | None = None,
        preprocessor: Any = None,
        use_gpu: bool = False,
    ) -> None:
        super().__init__(preprocessor)
        self.device = predict_device(use_gpu)
        self.pipeline = pipeline
        if pipeline is None:
            return
        pipeline.model.to(self.device).eval()
        pipeline.device = self.device

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        pipeline_cls: type[transformers.Pipeline] | None = None,
        model_cls: type[Any] | None = None,
        pretrained_model_kwargs: Mapping[str, Any] | None = None,
        use_gpu: bool = False,
        trust_preprocessor: bool = False,
        **pipeline_kwargs: Any,
    ) -> TransformersPredictor:
        """Return a predictor with the model of a checkpoint. Not collective.

        Parameters
        ----------
        checkpoint
            With a model, and its tokenizer, as ``save_pretrained()`` writes them.
        pipeline_cls
            Class of the pipeline; None is that of the task.
        model_cls
            Class of the model, for a `pipeline_cls`; None is the one that its configuration names.
        pretrained_model_kwargs
            For ``from_pretrained()`` of the model; ``trust_remote_code`` also for the tokenizer's.
            It is false unless it is here.
        use_gpu
            Whether to compute on a GPU.
        trust_preprocessor
            Whether functions and objects in its preprocessor may be unpickled, which runs code.
        **pipeline_kwargs
            For ``transformers.pipeline()``, or for `pipeline_cls`: ``task``, unless the class of
            the model says it; ``tokenizer``, if the checkpoint has none; ``top_k``;
            ``batch_size``, of rows that are computed together: by default 64, and 1 for features
            of texts, which would else have those of the tokens that a batch is padded with.

        Raises
        ------
        ConfigError
            If the checkpoint is that of another framework, or does not name its task.
        CheckpointError
            If it cannot be loaded, or not without running code of its own.
        """
        cls.check_checkpoint(checkpoint)
        transformers = cls.import_framework()
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        options = dict(pretrained_model_kwargs or {})
        with checkpoint.as_directory() as directory:
            trusted = options.pop("trust_remote_code", False)
            if "tokenizer" not in pipeline_kwargs and has_tokenizer(Path(directory)):
                pipeline_kwargs["tokenizer"] = load_pretrained(
                    transformers.AutoTokenizer.from_pretrained, directory, trust_remote_code=trusted
                )
            if pipeline_cls is None and model_cls is None:
                pipeline_kwargs.setdefault("task", _task(Path(directory)))
                pipeline = load_pretrained(
                    partial(transformers.pipeline, pipeline_kwargs.pop("task")),
                    directory,
                    model_kwargs=options,
                    device=-1,
                    trust_remote_code=trusted,
                    **pipeline_kwargs,
                )
            else:
                model_cls = model_cls or _model_class(transformers, Path(directory))
                if trusted:
                    options["trust_remote_code"] = trusted
                model = load_pretrained(model_cls.from_pretrained, directory, **options)
                make = pipeline_cls or transformers.pipeline
                pipeline = make(model=model, device=-1, **pipeline_kwargs)
        return cls(pipeline, preprocessor=preprocessor, use_gpu=use_gpu)

    @classmethod
    def import_framework(cls) -> Any:
        """Import Transformers. Not collective."""
        return require("transformers", to="to predict with its models", extra="huggingface")

    def _predict_numpy(
        self,
        data: Any,
        feature_columns: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.pipeline is None:
            raise ConfigError(
                f"{type(self).__name__} has no pipeline. Give it transformers.pipeline(...), or "
                f"use from_checkpoint()."
            )
        inputs = _inputs(data, feature_columns)
        columns = self._score_rows(inputs, kwargs) if inputs else self._score_no_rows(kwargs)
        # As in Ray Train, whose predictor makes a frame: its only column is an array again.
        is_alone = isinstance(data, np.ndarray) and len(columns) == 1
        return next(iter(columns.values())) if is_alone else columns

    def _score_rows(self, inputs: list[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        pipeline: Any = self.pipeline
        tokenizer = getattr(pipeline, "tokenizer", None)
        is_ragged = self._is_ragged(options)
        # Without a token to fill rows with, they cannot be computed together.
        alone = is_ragged or (tokenizer is not None and tokenizer.pad_token_id is None)
        if not alone and getattr(pipeline, "_batch_size", None) is None:
            # By itself a pipeline computes one row at a time.
            options = {"batch_size": _ROWS_AT_A_TIME, **options}
        outputs = pipeline(inputs, **options)
        return _as_json(outputs) if is_ragged or self._is_one_of(_FINDERS) else _columns(outputs)

    def _score_no_rows(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if not self._is_one_of(_READERS):
            return _as_json([])
        of_one = self._score_rows(["a"], options)
        return {name: values[:0] for name, values in of_one.items()}

    def _is_ragged(self, options: Mapping[str, Any]) -> bool:
        """Return whether a row gives a vector for each of its tokens, however many."""
        if not self._is_one_of({_FEATURES}):
            return False
        tokenize = {
            **getattr(self.pipeline, "_preprocess_params", {}),
            **options.get("tokenize_kwargs", {}),
        }
        return tokenize.get("padding") != "max_length"

    def _is_one_of(self, names: Set[str]) -> bool:
        # A pipeline that is made by its class need not know its task.
        return not names.isdisjoint(cls.__name__ for cls in type(self.pipeline).__mro__)


def _inputs(data: Any, feature_columns: Sequence[str] | None) -> list[Any]:
    if isinstance(data, np.ndarray):
        return list(data.tolist() if data.dtype.kind in "OU" else data)
    if feature_columns is not None:
        check_columns(map(str, feature_columns), list(data))
        data = {name: data[name] for name in feature_columns}
    columns = {
        name: values.tolist() if values.dtype.kind in "OU" else list(values)
        for name, values in data.items()
    }
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _columns(outputs: Sequence[Any]) -> dict[str, Any]:
    """Return what a pipeline gave for rows, as columns."""
    rows = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in outputs]
    if all(isinstance(row, Mapping) for row in rows) and len({tuple(row) for row in rows}) == 1:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        if all(isinstance(v, (str, int, float)) for values in columns.values() for v in values):
            return {name: as_column(values) for name, values in columns.items()}
    arrays = _arrays(rows)
    if arrays is not None:
        return {PREDICTIONS: arrays}
    return _as_json(outputs)


def _as_json(outputs: Sequence[Any]) -> dict[str, Any]:
    texts = [json.dumps(row, default=_to_json) for row in outputs]
    return {PREDICTIONS: np.array(texts, dtype=object)}


def _arrays(rows: list[Any]) -> np.ndarray[Any, Any] | None:
    """Return rows of numbers as one array; None if they are something else."""
    try:
        array = np.asarray(rows)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def _to_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _task(directory: Path) -> str:
    name = _architecture(directory)
    for ending, task in _TASKS.items():
        if name.endswith(ending):
            return task
    raise ConfigError(
        f"{directory} holds a {name or 'model without a class'}, which does not show what it is "
        f"for. Give task=, as in task='text-classification'."
    )


def _model_class(transformers: Any, directory: Path) -> Any:
    name = _architecture(directory)
    if not hasattr(transformers, name):
        raise ConfigError(
            f"transformers has no class {name or 'for this model'}. Give model_cls=, the class of "
            f"the model in {directory}."
        )
    return getattr(transformers, name)


def _architecture(directory: Path) -> str:
    try:
        config = json.loads((directory / CONFIG_NAME).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{directory} has no {CONFIG_NAME}, so its model is none of Transformers, and there is "
            f"no pipeline for it. Its weights: TransformersCheckpoint.get_model()."
        ) from None
    return str((config.get("architectures") or [""])[0])
