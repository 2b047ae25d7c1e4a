"""What the tests of states share: a process that imports torch for ranks of their runs."""

from __future__ import annotations

from tests.imports import forks_of_one_import

_forks = forks_of_one_import()
