"""The features of a model that is boosted further: same columns, same order, same codes."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.errors import ConfigError
from hpctrain.gbdt.features import Features


def continued(known: Features, found: Features) -> Features:
    """Return features in the order, and with the codes, of a model. Not collective.

    Parameters
    ----------
    known
        Features of the model.
    found
        Features of the datasets. New categories get the next codes.

    Raises
    ------
    ConfigError
        If the features, or the categorical ones among them, differ.
    """
    names = _in_order(known.names, found.names)
    # In a checkpoint of a user's loop, the library may have changed the names.
    codes = dict(zip(names, (known.categories.get(name) for name in known.names), strict=True))
    categories = {}
    for name in names:
        before, now = codes[name], found.categories.get(name)
        if before is None and now is None:
            continue
        if before is None or now is None:
            raise ConfigError(
                f"column {name!r} has categories in "
                f"{'the datasets' if before is None else 'the checkpoint'}, but not in "
                f"{'the checkpoint' if before is None else 'the datasets'}, so the codes of its "
                f"values are unknown. Treat the column as in the first run of the model."
            )
        categories[name] = (*before, *(value for value in now if value not in set(before)))
    return Features(names=names, label=found.label, categories=categories)


def _in_order(known: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the datasets in the order of the model's."""
    if set(known) == set(found):
        return tuple(known)
    # LightGBM replaces blanks by underscores.
    as_known = {name.replace(" ", "_"): name for name in found}
    wanted = [name.replace(" ", "_") for name in known]
    if len(known) == len(found) and _are_numbers(known) and set(wanted) != set(as_known):
        return tuple(found)
    if len(wanted) != len(found) or set(wanted) != set(as_known):
        changed = sorted(set(wanted) ^ set(as_known))
        raise ConfigError(
            f"the checkpoint's model has {len(known)} features, the datasets have {len(found)}; "
            f"these differ: {changed[:10]}. Give datasets with the features of the model, or begin "
            f"without the checkpoint."
        )
    return tuple(as_known[name] for name in wanted)


def _are_numbers(names: Sequence[str]) -> bool:
    """Return whether a model was trained on arrays, whose columns have no names."""
    return any(
        list(names) == [f"{prefix}{number}" for number in range(len(names))]
        for prefix in ("f", "Column_")
    )
