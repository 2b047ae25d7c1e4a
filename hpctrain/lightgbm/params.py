"""LightGBM's parameters: their main names, and which of them several ranks support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.checks import did_you_mean
from hpctrain.errors import ConfigError

# Copied from LGBM_DumpParamAliases(), because a login node may have no LightGBM.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_iterations": (
        "num_iteration",
        "n_iter",
        "num_tree",
        "num_trees",
        "num_round",
        "num_rounds",
        "nrounds",
        "num_boost_round",
        "n_estimators",
        "max_iter",
    ),
    "early_stopping_round": ("early_stopping_rounds", "early_stopping", "n_iter_no_change"),
    "tree_learner": ("tree", "tree_type", "tree_learner_type"),
    "linear_tree": ("linear_trees",),
    "num_threads": ("num_thread", "nthread", "nthreads", "n_jobs"),
    "verbosity": ("verbose",),
    "device_type": ("device",),
    "objective": ("objective_type", "app", "application", "loss"),
    "metric": ("metrics", "metric_types"),
    "boosting": ("boosting_type", "boost"),
    "num_machines": ("num_machine",),
    "pre_partition": ("is_pre_partition",),
    "machines": ("workers", "nodes"),
    "machine_list_filename": ("machine_list_file", "machine_list", "mlist"),
    "local_listen_port": ("local_port", "port"),
    "input_model": ("model_input", "model_in"),
    "bin_construct_sample_cnt": ("subsample_for_bin",),
    "enable_bundle": ("is_enable_bundle", "bundle"),
    "is_enable_sparse": ("is_sparse", "enable_sparse", "sparse"),
    "max_bin": ("max_bins",),
    "data_random_seed": ("data_seed",),
    "categorical_feature": (
        "categorical_features",
        "cat_feature",
        "categorical_column",
        "cat_column",
    ),
}
"""Other names of the parameters that hpctrain reads."""

OF_DATASETS = (
    "bin_construct_sample_cnt",
    "data_random_seed",
    "enable_bundle",
    "feature_pre_filter",
    "forcedbins_filename",
    "is_enable_sparse",
    "linear_tree",
    "max_bin",
    "max_bin_by_feature",
    "min_data_in_bin",
    "num_threads",
    "use_missing",
    "verbosity",
    "zero_as_missing",
)
"""Parameters of a lightgbm.Dataset."""

_NAME_OF = {alias: name for name, aliases in ALIASES.items() for alias in aliases}

_NETWORK = ("num_machines", "pre_partition", "machines", "machine_list_filename")
"""Parameters that the backend sets."""


def by_own_names(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the main names of `ALIASES` in place of others. Not collective.

    If one is given under two names, the value of its main name counts, as in LightGBM.
    """
    named = {_NAME_OF.get(name, name): value for name, value in params.items()}
    return {**named, **{name: params[name] for name in named.keys() & params.keys()}}


def check_dataset_params(params: Mapping[str, Any]) -> None:
    """Check that parameters are those of a dataset: LightGBM ignores unknown ones.

    Not collective.

    Parameters
    ----------
    params
        Parameters by their main names.

    Raises
    ------
    ConfigError
        If one is not; the message suggests the most similar name.
    """
    for name in params.keys() - {*OF_DATASETS}:
        raise ConfigError(
            f"dataset_params={{{name!r}: ...}} is not a parameter of a lightgbm.Dataset. "
            f"{did_you_mean(name, OF_DATASETS) or f'Use {list(OF_DATASETS)}.'} Give those of "
            f"training in params."
        )


def find_unknown(params: Mapping[str, Any]) -> list[str]:
    """Return messages about parameters that LightGBM does not have, and ignores.

    Not collective.
    """
    from lightgbm.basic import _ConfigAliases

    _ConfigAliases.get()
    known = {name for names in (_ConfigAliases.aliases or {}).values() for name in names}
    return [
        f"params has {name!r}, which LightGBM does not have and ignores. "
        f"{did_you_mean(str(name), known) or 'See the page Parameters of its documentation.'}"
        for name in params
        if known and name not in known
    ]


def is_forest(params: Mapping[str, Any]) -> bool:
    """Return whether parameters, by their main names, train a random forest. Not collective."""
    return params.get("boosting") in ("rf", "random_forest")


def check_learner(params: Mapping[str, Any]) -> None:
    """Check that ranks train one model together. Not collective.

    Parameters
    ----------
    params
        As in `check_dataset_params`.

    Raises
    ------
    ConfigError
        If LightGBM would train a model on each rank's rows alone, or needs all rows on every rank.
    """
    if is_true(params.get("linear_tree", False)):
        raise ConfigError(
            f"params={{'linear_tree': {params['linear_tree']!r}}} on several ranks: LightGBM "
            f"trains linear trees in one process only, so each rank would train on its own rows. "
            f"Use one worker, or leave linear_tree out."
        )
    learner = params.get("tree_learner", "serial")
    if learner in ("feature", "feature_parallel"):
        raise ConfigError(
            f"params={{'tree_learner': {learner!r}}} needs all rows on every rank, but each rank "
            f"has a part of them. Use 'data' or 'voting'."
        )


def over_ranks(params: Mapping[str, Any], network: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with which all ranks train one model. Not collective.

    Parameters
    ----------
    params
        Parameters by their main names. A serial ``tree_learner``, which is LightGBM's default, is
        replaced by that of the network.
    network
        Parameters of `hpctrain.lightgbm.get_network_params`.
    """
    kept = {name: value for name, value in params.items() if name not in _NETWORK}
    if kept.get("tree_learner", "serial") == "serial":
        kept.pop("tree_learner", None)
    return {**network, **kept}


def is_true(value: object) -> bool:
    """Return whether LightGBM reads a value as true. Not collective."""
    return str(value).lower() in ("true", "1", "+", "1.0")
