from __future__ import annotations

import pytest

from hpctrain.worker.threads import explain_binding, thread_variables


def test_every_library_computes_with_the_cpus_of_the_rank():
    assert set(thread_variables(3).values()) == {"3"}
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} <= set(thread_variables(3))


@pytest.mark.parametrize("value", ["", "false", "None", "DISABLED"])
def test_threads_that_are_bound_to_no_cpu_are_those_of_each_fork(value: str):
    assert explain_binding({"OMP_PROC_BIND": value}) == ""


def test_threads_that_are_bound_at_the_import_are_named():
    assert explain_binding({"OMP_PLACES": "cores"}).startswith("OMP_PLACES=cores binds threads")
