"""The HTTP interface, called without a network."""

from __future__ import annotations

import datetime
import threading

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hpctrain import ConfigError
from hpctrain.predict import Predictor
from hpctrain.serve import ServedModel, make_app

TOKEN = "a-token-of-the-tests"


class Sums(Predictor):
    features = ("a", "b")

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    def _predict_numpy(self, data):
        if missing := {"a", "b"} - set(data):
            raise ConfigError(f"no feature {sorted(missing)}")
        return {"sum": data["a"] + data["b"], "pair": np.stack([data["a"], data["b"]], axis=1)}


def client(load=Sums, *, token=TOKEN, loaded=True, **options) -> TestClient:
    model = ServedModel(load, name="sums", **options)
    model.start()
    if loaded:
        assert model.wait(10)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(make_app(model, token=token), headers=headers)


def test_columns_are_answered_with_columns():
    answer = client().post("/predict", json={"columns": {"a": [1, 2], "b": [3, 4]}})
    assert answer.status_code == 200
    assert answer.json() == {"columns": {"sum": [4, 6], "pair": [[1, 3], [2, 4]]}}


def test_a_model_that_gives_another_number_of_rows_is_no_answer():
    class First(Sums):
        def _predict_numpy(self, data):
            return data["a"][:1]

    answer = client(First).post("/predict", json={"columns": {"a": [1, 2], "b": [3, 4]}})
    assert answer.status_code == 422
    assert "First gave 1 rows for 2" in answer.json()["detail"]


def test_rows_are_answered_with_rows():
    answer = client().post("/predict", json={"rows": [{"a": 1, "b": 3}, {"a": 2, "b": 4}]})
    assert answer.json() == {"rows": [{"sum": 4, "pair": [1, 3]}, {"sum": 6, "pair": [2, 4]}]}


def test_what_is_missing_is_null_both_ways():
    answer = client().post("/predict", json={"columns": {"a": [1.5, None], "b": [1, 1]}})
    assert answer.json()["columns"]["sum"] == [2.5, None]


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer another"}])
@pytest.mark.parametrize(("method", "path"), [("POST", "/predict"), ("GET", "/model")])
def test_nobody_predicts_without_the_token(header, method, path):
    stranger = client()
    stranger.headers.pop("Authorization")
    answer = stranger.request(method, path, headers=header, json={"columns": {"a": [1], "b": [1]}})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_and_readiness_need_no_token():
    stranger = client()
    stranger.headers.pop("Authorization")
    assert stranger.get("/healthz").json() == {"status": "ok"}
    assert stranger.get("/readyz").json() == {"status": "ready"}


def test_a_model_that_is_being_loaded_is_healthy_and_not_ready():
    go_on = threading.Event()

    def load():
        assert go_on.wait(10)
        return Sums()

    model = ServedModel(load, name="sums")
    model.start()
    waiting = TestClient(make_app(model, token=None))
    assert waiting.get("/healthz").status_code == 200
    assert waiting.get("/readyz").status_code == 503
    body = {"columns": {"a": [1], "b": [1]}}
    assert waiting.post("/predict", json=body).status_code == 503
    go_on.set()
    assert model.wait(10)
    assert waiting.get("/readyz").status_code == 200
    assert waiting.post("/predict", json=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"columns": {"a": [1]}}, "no feature ['b']"),
        ({"columns": {"a": [1], "b": [1, 2]}}, "columns of one length"),
        ({"columns": {"a": [[1], [1, 2]], "b": [1, 2]}}, "rows of unlike shapes"),
        ({"columns": {}}, "columns of one length"),
        ({"columns": {"a": [1] * 11, "b": [1] * 11}}, "11 rows in one request"),
        ({"rows": [{"a": 1}, {"b": 1}]}, "row 1 has ['b']"),
        ({"rows": []}, "no rows"),
        ({}, "either columns or rows"),
        ({"row": []}, "extra"),
        ({"columns": {"a": 1}}, "list"),
    ],
)
def test_a_bad_request_is_told_why(body, complaint):
    answer = client(max_rows=10).post("/predict", json=body)
    assert answer.status_code == 422
    assert complaint in answer.text.lower() or complaint in answer.text


def test_there_is_a_page_to_try_it_on_and_it_knows_of_the_token():
    open_api = client().get("/openapi.json").json()
    assert set(open_api["paths"]) == {"/healthz", "/readyz", "/model", "/predict"}
    assert open_api["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert client().get("/docs").status_code == 200


def test_the_model_says_what_it_wants():
    assert client().get("/model").json()["features"] == ["a", "b"]


def test_what_loading_raises_is_told():
    def load():
        raise ConfigError("no model here")

    model = ServedModel(load, name="broken")
    model.start()
    with pytest.raises(ConfigError, match="no model here"):
        model.wait(10)


class Echo(Predictor):
    """Gives what the test wants."""

    output: object = None

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    def _predict_numpy(self, data):
        return data if self.output is None else {"p": self.output}


def echo(output=None) -> TestClient:
    def load() -> Echo:
        predictor = Echo()
        predictor.output = output
        return predictor

    return client(load)


def test_large_integers_reach_the_model_as_they_are():
    for values in ([2**53 + 1, None], [2**63 - 1, 2**53 + 1], [-(2**53) - 1]):
        answer = echo().post("/predict", json={"columns": {"x": values}})
        assert answer.json() == {"columns": {"x": values}}
    answer = echo().post("/predict", json={"columns": {"x": [1, None, True]}})
    assert answer.json() == {"columns": {"x": [1.0, None, 1.0]}}


@pytest.mark.parametrize("values", [[2**53 + 1, 0.5], [2**64 + 1, 0]])
def test_an_integer_that_would_be_rounded_is_refused(values):
    answer = echo().post("/predict", json={"columns": {"x": values}})
    assert answer.status_code == 422
    assert f"row 0, column 'x': {values[0]}" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (np.array([1.0, np.nan]), [1.0, None]),
        (np.float32(1), 1.0),
        (float("nan"), None),
        ({"a": (np.int64(1), b"\xff")}, {"a": [1, "\N{REPLACEMENT CHARACTER}"]}),
        ("\ud800", "?"),
        (datetime.date(2020, 1, 2), "2020-01-02"),
    ],
)
def test_cells_of_objects_are_answered_as_json(cell, expected):
    output = np.empty(1, dtype=object)
    output[0] = cell
    answer = echo(output).post("/predict", json={"columns": {"x": [1]}})
    assert answer.json() == {"columns": {"p": [expected]}}


def test_times_are_answered_as_texts():
    output = np.array(["2020-01-02T03:04:05", "NaT"], "M8[s]")
    answer = echo(output).post("/predict", json={"columns": {"x": [1, 2]}})
    assert answer.json() == {"columns": {"p": ["2020-01-02T03:04:05", None]}}


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([10**400], "row 0, column 'x': 1000"),
        ([1.5, 10**400], "row 1, column 'x': 1000"),
        ([[0, 10**400]], "row 0, column 'x': 1000"),
        ([None, 10**400], "row 1, column 'x': 1000"),
        ([["a", "b"], ["c", 2]], "row 1, column 'x': 2 in a column that has texts"),
        ([[True, "x"]], "row 0, column 'x': True in a column that has texts"),
        ([["a", 10**400]], "in a column that has texts"),
        ([1, {"a": 1}], "row 1, column 'x': {\"a\": 1} is neither a number"),
        ([[{"a": 1}]], "row 0, column 'x': {\"a\": 1} is neither a number"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_cells_that_would_become_something_else_are_refused(values, place):
    answer = echo().post("/predict", json={"columns": {"x": values}})
    assert answer.status_code == 422
    assert place in answer.json()["detail"]


def test_lists_of_texts_reach_the_model_as_they_are():
    values = [["a", None], ["b", "c"]]
    answer = echo().post("/predict", json={"columns": {"x": values}})
    assert answer.json() == {"columns": {"x": values}}


class Failing(Echo):
    def _predict_numpy(self, data):
        raise self.output


def failing(error: Exception) -> tuple[ServedModel, TestClient]:
    def load() -> Failing:
        predictor = Failing()
        predictor.output = error
        return predictor

    model = ServedModel(load, name="failing")
    model.start()
    assert model.wait(10)
    return model, TestClient(make_app(model, token=None), raise_server_exceptions=False)


def test_a_failure_of_the_model_itself_is_not_blamed_on_a_text():
    _, client = failing(RuntimeError("a bug"))
    body = {"columns": {"city": ["Rome", "Oslo"], "age": [1, 2]}}
    assert client.post("/predict", json=body).status_code == 500


def test_a_value_that_the_model_does_not_know_is_named():
    _, client = failing(KeyError("y"))
    answer = client.post("/predict", json={"columns": {"a": [1, 2], "b": ["x", "y"]}})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("row 1, column 'b': \"y\" cannot be predicted on: ")


@pytest.mark.parametrize("error", [KeyError("z"), IndexError("out of range"), LookupError()])
def test_a_failed_look_up_of_what_no_request_has_is_a_failure_of_the_model(error):
    _, client = failing(error)
    body = {"columns": {"a": [1, 2], "b": ["x", "y"]}}
    assert client.post("/predict", json=body).status_code == 500


@pytest.mark.parametrize("sought", [float("nan"), 2])
def test_a_number_that_the_model_does_not_know_is_named(sought):
    _, client = failing(KeyError(sought))
    answer = client.post("/predict", json={"columns": {"a": [1, 2 if sought == 2 else None]}})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("row 1, column 'a': ")


def test_a_value_that_the_model_refuses_is_named_if_it_can_be_that_one_only(capsys):
    _, client = failing(ValueError("could not convert 'x'"))
    answer = client.post("/predict", json={"columns": {"a": [1, 2], "b": ["x", "y"]}})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("row 0, column 'b': \"x\" cannot be predicted on: ")
    assert "ValueError: could not convert 'x'" in capsys.readouterr().err
    answer = client.post("/predict", json={"columns": {"a": ["Rome", "x"], "b": ["x", "y"]}})
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "the model refuses the batch: could not convert 'x'. It may be about row 0, column "
        "'a': \"Rome\"; row 0, column 'b': \"x\""
    )
    assert client.post("/predict", json={"columns": {"a": [1, 2]}}).status_code == 500


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA out of memory. Tried to allocate 2 GiB", False),
        ("CUDA error: out of memory", False),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: invalid program counter", True),
        ("CUDA error: operation not supported on global/shared address space", True),
        (
            "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
            True,
        ),
        ("CUDA error: uncorrectable NVLink error detected during the execution", True),
        ("CUDA error: tensor memory not completely freed", True),
        ("CUDA error: unknown error", True),
        ("CUDA error: too many blocks in cooperative launch", False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", False),
    ],
)
def test_a_model_whose_gpu_is_lost_is_not_ready_any_more(message, is_lost):
    model, client = failing(RuntimeError(message))
    assert client.post("/predict", json={"columns": {"a": [1]}}).status_code == 500
    assert client.get("/readyz").status_code == (503 if is_lost else 200)
    assert (model.error is not None) == is_lost
