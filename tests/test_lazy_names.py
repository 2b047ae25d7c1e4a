from __future__ import annotations

import pytest

import hpctrain
import hpctrain.callbacks
from hpctrain.errors import UnavailableNameError


def test_a_name_that_is_almost_right_is_corrected():
    with pytest.raises(ImportError) as refusal:
        exec("from hpctrain.callbacks import MLFlowLoggerCallback")
    assert str(refusal.value) == (
        "hpctrain.callbacks has no MLFlowLoggerCallback. Did you mean 'MLflowLoggerCallback'?"
    )
    with pytest.raises(UnavailableNameError, match="Did you mean 'ScalingConfig'"):
        hpctrain.ScallingConfig  # noqa: B018


def test_names_that_tools_ask_for_are_attributes_that_are_not_there():
    for name in ("setup_module", "setUpModule", "pytest_plugins", "__wrapped__", "__path__x"):
        assert not hasattr(hpctrain.callbacks, name)
        assert not hasattr(hpctrain, name)
