"""The HTTP interface of a predictor."""

# Without `annotations` of __future__: FastAPI could not resolve the names in a function.

from typing import TYPE_CHECKING, Any

from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.serve.guard import Guard, Limits
from hpctrain.serve.model import ServedModel

if TYPE_CHECKING:
    from fastapi import FastAPI

_NOT_READY = "the model is being loaded"


def make_app(model: ServedModel, *, token: str | None, limits: Limits | None = None) -> "FastAPI":
    """Return an ASGI application that predicts.

    Not collective. ``POST /predict`` takes ``{"columns": {name: [...]}}`` or ``{"rows": [{...}]}``
    and answers in the same form. ``GET /healthz`` answers if the server runs, ``GET /readyz`` if it
    can predict, and ``/docs`` is an interactive page.

    Parameters
    ----------
    model
        The predictor.
    token
        What a request has to carry as ``Authorization: Bearer TOKEN``; None lets everybody in.
    limits
        Limits on requests; by default `Limits()`.

    Raises
    ------
    ConfigError
        If FastAPI is not installed.
    """
    fastapi = require("fastapi", to="to serve a predictor", extra="serve")
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from fastapi.security import HTTPBearer
    from pydantic import BaseModel, ConfigDict

    # For /docs: `Guard` has checked the token, before anything was read.
    bearer = fastapi.Depends(HTTPBearer(auto_error=False))

    class Batch(BaseModel):
        """Rows to predict on: columns, or rows."""

        model_config = ConfigDict(extra="forbid")

        columns: dict[str, list[Any]] | None = None
        rows: list[dict[str, Any]] | None = None

    app = fastapi.FastAPI(title=f"hpctrain: {model.name}", version="1", redoc_url=None)
    app.add_middleware(Guard, token=token, limits=limits or Limits())

    @app.exception_handler(RequestValidationError)  # type: ignore[untyped-decorator]
    async def refuse(request: Any, error: RequestValidationError) -> JSONResponse:
        # Without the input: a NaN in it could not be in an answer.
        found = [{key: each[key] for key in ("type", "loc", "msg")} for each in error.errors()]
        return JSONResponse({"detail": found}, 422)

    # Not in a thread: predictions may occupy all of them.
    @app.get("/healthz")  # type: ignore[untyped-decorator]
    async def healthz() -> dict[str, str]:
        """Confirm that the server runs."""
        return {"status": "ok"}

    @app.get("/readyz")  # type: ignore[untyped-decorator]
    async def readyz() -> dict[str, str]:
        """Return whether the model is loaded."""
        if not model.is_ready:
            raise fastapi.HTTPException(503, _NOT_READY)
        return {"status": "ready"}

    @app.get("/model", dependencies=[bearer])  # type: ignore[untyped-decorator]
    async def describe() -> dict[str, Any]:
        """Return the name and the features of the model."""
        return {"name": model.name, "ready": model.is_ready, "features": model.features}

    # A plain function: the server calls it in a separate thread, and still answers.
    @app.post("/predict", dependencies=[bearer])  # type: ignore[untyped-decorator]
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
