from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = (Path(__file__).parent / "conftest.py").read_text()
TESTS = """
    import pytest
    def test_without_a_part(): pytest.skip("no such part")
    @pytest.mark.gpu
    def test_without_a_gpu(): pytest.skip("no GPU")
    @pytest.mark.xfail(reason="known")
    def test_known(): assert False
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST)
    markers = ("gpu: needs a GPU", "long: further cases", "slurm: needs a cluster")
    pytester.makeini("[pytest]\nmarkers =\n" + "".join(f"    {each}\n" for each in markers))
    monkeypatch.delenv("HPCTRAIN_REQUIRE_ALL", raising=False)
    return pytester


def test_a_skipped_test_is_skipped_on_a_machine_that_lacks_something(session: pytest.Pytester):
    session.makepyfile(TESTS)
    session.runpytest("-p", "no:cacheprovider").assert_outcomes(skipped=2, xfailed=1)


def test_a_skipped_test_fails_where_everything_is_required_but_for_the_gpu(
    session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HPCTRAIN_REQUIRE_ALL", "1")
    session.makepyfile(TESTS)
    result = session.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*nothing may be skipped here: Skipped: no such part*"])


def test_a_skipped_file_fails_where_everything_is_required(
    session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HPCTRAIN_REQUIRE_ALL", "1")
    session.makepyfile("import pytest\npytest.importorskip('no_such_module_anywhere')")
    result = session.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nothing may be skipped here*no_such_module_anywhere*"])


@pytest.mark.parametrize(
    ("options", "passed"), [((), 1), (("-m", "long"), 1), (("-m", "long or not long"), 2)]
)
def test_a_long_test_runs_where_the_command_line_names_it(
    session: pytest.Pytester, options: tuple[str, ...], passed: int
):
    session.makepyfile(
        """
        import pytest
        def test_short(): pass
        @pytest.mark.long
        def test_long(): pass
        """
    )
    result = session.runpytest("-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=passed, deselected=2 - passed)


def test_tests_of_jax_are_the_last_of_a_process_whatever_file_they_are_in(
    session: pytest.Pytester,
):
    pytest.importorskip("xdist")
    session.makepyfile(test_one="def test_jax(): pass\ndef test(): pass")
    session.makepyfile(test_two="def test(): pass")
    options = ("-p", "no:cacheprovider", "-n1", "--dist=loadfile", "--no-loadscope-reorder")
    result = session.runpytest_subprocess("-v", *options)
    result.stdout.fnmatch_lines(
        [
            "*PASSED*test_one.py::test *",
            "*PASSED*test_two.py::test *",
            "*PASSED*test_one.py::test_jax*",
        ]
    )


def test_of_the_files_of_jax_those_that_need_a_cluster_are_the_first(session: pytest.Pytester):
    one = "def test_jax(): pass"
    session.makepyfile(test_one=one, test_three="def test(): pass")
    session.makepyfile(
        test_two=f"import pytest\n{one}\n@pytest.mark.slurm\ndef test_jax_job(): pass"
    )
    result = session.runpytest("-v", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(
        [
            "test_three.py::test PASSED*",
            "test_two.py::test_jax PASSED*",
            "test_two.py::test_jax_job PASSED*",
            "test_one.py::test_jax PASSED*",
        ]
    )
