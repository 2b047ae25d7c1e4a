"""Preprocessors: they prepare columns for a model, and are stored in its checkpoints.

A preprocessor learns in one pass over the rows, in which each rank reads its part; one MPI
reduction merges the statistics of all ranks. It is then applied batch by batch, to datasets and in
prediction.
"""

from __future__ import annotations

from hpctrain.errors import PreprocessorNotFittedException as PreprocessorNotFittedException
from hpctrain.lazy_names import at_first_use
from hpctrain.preprocessors.chain import BatchMapper as BatchMapper
from hpctrain.preprocessors.chain import Chain as Chain
from hpctrain.preprocessors.columns import ColumnPreprocessor as ColumnPreprocessor
from hpctrain.preprocessors.concatenator import Concatenator as Concatenator
from hpctrain.preprocessors.discretizer import CustomKBinsDiscretizer as CustomKBinsDiscretizer
from hpctrain.preprocessors.discretizer import UniformKBinsDiscretizer as UniformKBinsDiscretizer
from hpctrain.preprocessors.encoder import Categorizer as Categorizer
from hpctrain.preprocessors.encoder import LabelEncoder as LabelEncoder
from hpctrain.preprocessors.encoder import MultiHotEncoder as MultiHotEncoder
from hpctrain.preprocessors.encoder import OneHotEncoder as OneHotEncoder
from hpctrain.preprocessors.encoder import OrdinalEncoder as OrdinalEncoder
from hpctrain.preprocessors.imputer import SimpleImputer as SimpleImputer
from hpctrain.preprocessors.normalizer import Normalizer as Normalizer
from hpctrain.preprocessors.preprocessor import Preprocessor as Preprocessor
from hpctrain.preprocessors.scaler import MaxAbsScaler as MaxAbsScaler
from hpctrain.preprocessors.scaler import MinMaxScaler as MinMaxScaler
from hpctrain.preprocessors.scaler import RobustScaler as RobustScaler
from hpctrain.preprocessors.scaler import StandardScaler as StandardScaler
from hpctrain.preprocessors.scikit import SklearnPreprocessor as SklearnPreprocessor
from hpctrain.preprocessors.storage import load as load
from hpctrain.preprocessors.storage import save as save
from hpctrain.preprocessors.text import CountVectorizer as CountVectorizer
from hpctrain.preprocessors.text import FeatureHasher as FeatureHasher
from hpctrain.preprocessors.text import HashingVectorizer as HashingVectorizer
from hpctrain.preprocessors.text import Tokenizer as Tokenizer
from hpctrain.preprocessors.transformer import PowerTransformer as PowerTransformer
from hpctrain.preprocessors.vision import TorchVisionPreprocessor as TorchVisionPreprocessor

__all__ = [
    "BatchMapper",
    "Categorizer",
    "Chain",
    "ColumnPreprocessor",
    "Concatenator",
    "CountVectorizer",
    "CustomKBinsDiscretizer",
    "FeatureHasher",
    "HashingVectorizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiHotEncoder",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PowerTransformer",
    "Preprocessor",
    "PreprocessorNotFittedException",
    "RobustScaler",
    "SimpleImputer",
    "SklearnPreprocessor",
    "StandardScaler",
    "Tokenizer",
    "TorchVisionPreprocessor",
    "UniformKBinsDiscretizer",
    "load",
    "save",
]

__getattr__, _ = at_first_use(__name__, {})
