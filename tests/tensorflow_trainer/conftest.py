"""What the tests of TensorflowTrainer share. ``nox -s tensorflow`` runs them."""

from __future__ import annotations

import pytest

# In an environment of its own, where CI=true does not let them be skipped.
pytest.importorskip("tensorflow", reason="run by nox -s tensorflow")
