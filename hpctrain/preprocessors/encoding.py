"""Values of a preprocessor as JSON and arrays, and back."""

from __future__ import annotations

import base64
import datetime
import hashlib
import math
from collections.abc import Container, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from hpctrain import pickle_trust
from hpctrain.errors import CheckpointError
from hpctrain.plan import spec
from hpctrain.preprocessors.batches import Array
from hpctrain.preprocessors.preprocessor import Preprocessor
from hpctrain.writers import Foreign

_FROM_TEXT: dict[str, Any] = {"$decimal": Decimal, "$uuid": UUID, "$clock": datetime.time}
"""Types that are stored as the text of their value, by their key."""


def digest(array: Array) -> str:
    """Return a digest of an array, by which it is stored. Not collective."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]


def own_classes() -> dict[str, type[Preprocessor]]:
    """Return hpctrain's preprocessors by name. Not collective."""
    from hpctrain import preprocessors

    found = (getattr(preprocessors, name) for name in preprocessors.__all__)
    return {c.__name__: c for c in found if isinstance(c, type) and issubclass(c, Preprocessor)}


class Encoder:
    """Encodes values as JSON; a value that JSON does not support becomes an object with a $ key."""

    def __init__(self) -> None:
        self._classes = own_classes()
        # Arguments and stats_ describe these classes completely; others may have more attributes.
        self._by_arguments = tuple(
            self._classes[name] for name in ("BatchMapper", "Chain", "ColumnPreprocessor")
        )
        self.arrays: dict[str, Array] = {}
        """Arrays that the JSON refers to, by digest."""

    def encode(self, value: Any) -> Any:
        """Return a value as JSON; its arrays are in `arrays`, by digest. Not collective.

        Raises
        ------
        ConfigError
            If a part of it cannot be pickled.
        """
        if isinstance(value, np.generic) and value.dtype.kind in "biufUS":
            value = value.item()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, list):
            return [self.encode(part) for part in value]
        if isinstance(value, tuple):
            return {"$tuple": [self.encode(part) for part in value]}
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.encode(part) for key, part in value.items()}
            return {"$dict": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, np.datetime64 | np.timedelta64):
            return {"$time": [value.dtype.str, int(value.astype(np.int64))]}
        for kind, read in _FROM_TEXT.items():
            # Exactly, as a subclass may have more.
            if type(value) is read and getattr(value, "tzinfo", None) is None:
                return {kind: str(value)}
        if isinstance(value, np.ndarray) and value.dtype != object:
            return {"$array": self._keep(value)}
        if isinstance(value, np.dtype) or _is_number_type(value):
            return {"$dtype": np.dtype(value).str}
        if hasattr(value, "categories") and hasattr(value, "ordered"):
            return {"$categories": self.encode([list(value.categories), bool(value.ordered)])}
        if isinstance(value, self._by_arguments):
            return {"$preprocessor": self._encode_preprocessor(value)}
        return self._encode_foreign(value)

    def _encode_preprocessor(self, value: Preprocessor) -> dict[str, Any]:
        name = type(value).__name__
        is_ours = self._classes.get(name) is type(value)
        encoded = {
            "class": name if is_ours else self._encode_foreign(type(value)),
            **({} if value._version == 1 else {"version": value._version}),
            "arguments": {n: self.encode(part) for n, part in value._configuration().items()},
        }
        if value.stats_ is not None:
            encoded["stats"] = self.encode(value.stats_)
        return encoded

    def _encode_foreign(self, value: Any) -> dict[str, str]:
        pickled = spec.pack(value, what=f"{value!r} of the preprocessor")
        content = np.frombuffer(pickled, np.uint8)
        if type(value).__module__.startswith("sklearn."):
            try:
                import skops.io

                dumped = skops.io.dumps(value)
            except Exception:
                # skops is not installed, or does not support a part.
                pass
            else:
                # skops writes different bytes each time, so the name is the pickle's digest.
                pickle_trust.remember(dumped)
                stored = np.frombuffer(dumped, np.uint8)
                return {"$skops": self._keep(stored, name=digest(content))}
        pickle_trust.remember(pickled)
        return {"$pickle": self._keep(content)}

    def _keep(self, array: Array, *, name: str | None = None) -> str:
        name = name or digest(array)
        self.arrays[name] = array
        return name


class Decoder:
    """Decodes the JSON and the arrays of an `Encoder`."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        *,
        where: str,
        may_open: bool,
        foreign: Foreign | None = None,
        known: Container[str] = (),
    ) -> None:
        self._arrays = arrays
        self._where = where
        self._may_open_all = may_open
        self._foreign = foreign
        self._known = known
        self._classes = own_classes()

    def decode(self, value: Any) -> Any:
        """Return the value that was encoded. Not collective.

        Raises
        ------
        CheckpointError
            If it holds a pickle that is not trusted, or is of another version of its class.
        ValueError, LookupError, TypeError, AttributeError
            If it is damaged.
        """
        if isinstance(value, list):
            return [self.decode(part) for part in value]
        if not isinstance(value, dict):
            return value
        if len(value) != 1 or not next(iter(value)).startswith("$"):
            return {key: self.decode(part) for key, part in value.items()}
        ((kind, part),) = value.items()
        if kind == "$float":
            return float(part)
        if kind == "$tuple":
            return tuple(self.decode(part))
        if kind == "$dict":
            return {self.decode(key): self.decode(value) for key, value in part}
        if kind == "$bytes":
            return base64.b64decode(part)
        if kind == "$time":
            return np.array([part[1]], np.int64).view(part[0])[0]
        if kind == "$clock":
            return datetime.time.fromisoformat(part)
        if kind in _FROM_TEXT:
            return _FROM_TEXT[kind](part)
        if kind == "$array":
            return self._array(part)
        if kind == "$dtype":
            return np.dtype(part)
        if kind == "$categories":
            import pandas

            categories, ordered = self.decode(part)
            return pandas.CategoricalDtype(categories, ordered)
        if kind == "$preprocessor":
            return self._decode_preprocessor(part)
        if kind == "$skops":
            return self._decode_skops(self._arrays[part].tobytes())
        if kind == "$pickle":
            content = self._array(part).tobytes()
            if not self._may_open(content) and part not in self._known:
                raise self._refusal("a pickle")
            return spec.unpack(content)
        raise ValueError(f"unknown kind {kind!r}")

    def _decode_preprocessor(self, value: Mapping[str, Any]) -> Preprocessor:
        stored = value["class"]
        cls = self._classes[stored] if isinstance(stored, str) else self.decode(stored)
        arguments = self.decode(value["arguments"])
        if not (isinstance(cls, type) and issubclass(cls, Preprocessor)):
            raise ValueError(f"{cls!r} is not a class of preprocessors")
        if value.get("version", 1) != cls._version:
            raise CheckpointError(
                f"{self._where} was written with version {value.get('version', 1)} of "
                f"{cls.__name__}. This hpctrain has version {cls._version}, which computes other "
                f"numbers from the same rows. Read it with the hpctrain that wrote it, or train "
                f"again."
            )
        in_a_row = arguments.pop("preprocessors", ())
        made = cls(*in_a_row, **arguments)
        if "stats" in value:
            made.stats_ = self.decode(value["stats"])
        return made

    def _decode_skops(self, content: bytes) -> Any:
        import skops.io

        unknown = skops.io.get_untrusted_types(data=content)
        if unknown and not self._may_open(content):
            raise self._refusal(f"objects of {', '.join(map(str, unknown))}")
        return skops.io.loads(content, trusted=unknown)

    def _may_open(self, content: bytes) -> bool:
        return self._may_open_all or pickle_trust.is_made_here(content)

    def _array(self, name: str) -> Array:
        array = self._arrays[name]
        if digest(array) != name:
            raise ValueError(f"array {name} does not match its digest")
        return array

    def _refusal(self, what: str) -> CheckpointError:
        return pickle_trust.refusal(self._where, self._foreign, what=what)


def _is_number_type(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, (np.number, np.bool_, int, float))
