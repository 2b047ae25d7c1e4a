"""The HTTP interface of a predictor."""

# Without `annotations` of __future__: FastAPI could make nothing of the names in a function.

import hmac
from typing import TYPE_CHECKING, Annotated, Any

from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.serve.model import ServedModel

if TYPE_CHECKING:
    from fastapi import FastAPI

_NOT_READY = "the model is being loaded"


def make_app(model: ServedModel, *, token: str | None) -> "FastAPI":
    """Return an ASGI application that predicts.

    Not collective. ``POST /predict`` takes ``{"columns": {name: [...]}}`` or ``{"rows": [{...}]}``
    and answers in the same form. ``GET /healthz`` says that it lives, ``GET /readyz`` that it can
    predict, and ``/docs`` is a page to try it on.

    Parameters
    ----------
    model
        The predictor.
    token
        What a request has to carry as ``Authorization: Bearer TOKEN``; None lets everybody in.

    Raises
    ------
    ConfigError
        If FastAPI is not installed.
    """
    fastapi = require("fastapi", to="to serve a predictor", extra="serve")
    from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
    from pydantic import BaseModel, ConfigDict

    bearer = HTTPBearer(auto_error=False)

    def authorize(
        given: Annotated[HTTPAuthorizationCredentials | None, fastapi.Depends(bearer)],
    ) -> None:
        if token is None:
            return
        if given is None or not hmac.compare_digest(given.credentials.encode(), token.encode()):
            raise fastapi.HTTPException(
                401, "a valid token is needed", headers={"WWW-Authenticate": "Bearer"}
            )

    class Batch(BaseModel):
        """Rows to predict on: columns, or rows."""

        model_config = ConfigDict(extra="forbid")

        columns: dict[str, list[Any]] | None = None
        rows: list[dict[str, Any]] | None = None

    app = fastapi.FastAPI(title=f"hpctrain: {model.name}", version="1")

    @app.get("/healthz")  # type: ignore[untyped-decorator]
    def healthz() -> dict[str, str]:
        """Say that the server lives."""
        return {"status": "ok"}

    @app.get("/readyz")  # type: ignore[untyped-decorator]
    def readyz() -> dict[str, str]:
        """Say whether the model is loaded."""
        if not model.is_ready:
            raise fastapi.HTTPException(503, _NOT_READY)
        return {"status": "ready"}

    @app.get("/model", dependencies=[fastapi.Depends(authorize)])  # type: ignore[untyped-decorator]
    def describe() -> dict[str, Any]:
        """Say what the model is, and which features it has."""
        return {"name": model.name, "ready": model.is_ready, "features": model.features}

    # A plain function: the server calls it in a thread of its own, and goes on answering.
    @app.post("/predict", dependencies=[fastapi.Depends(authorize)])  # type: ignore[untyped-decorator]
    def predict(batch: Batch) -> dict[str, Any]:
        """Predict on a batch of columns or rows."""
        if (batch.columns is None) == (batch.rows is None):
            raise fastapi.HTTPException(422, "give either columns or rows")
        if not model.is_ready:
            raise fastapi.HTTPException(503, _NOT_READY)
        try:
            if batch.columns is not None:
                return {"columns": model.predict(batch.columns)}
            return {"rows": to_rows(model.predict(to_columns(batch.rows or [])))}
        except ConfigError as error:
            raise fastapi.HTTPException(422, str(error)) from error

    made: FastAPI = app
    return made


def to_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns. Not collective.

    Raises
    ------
    ConfigError
        If there are none, or they have unlike names.
    """
    if not rows:
        raise ConfigError("there are no rows.")
    names = rows[0].keys()
    for number, row in enumerate(rows):
        if row.keys() != names:
            raise ConfigError(
                f"row {number} has {sorted(row)}, and row 0 has {sorted(names)}. Rows need the "
                f"same columns."
            )
    return {name: [row[name] for row in rows] for name in names}


def to_rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return columns as rows. Not collective."""
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
