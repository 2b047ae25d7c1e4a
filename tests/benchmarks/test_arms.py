"""What is measured while others load the machine is void."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BURN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


@pytest.fixture
def arms(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arms

    return arms


# Other tests are among the others.
@pytest.mark.alone
def test_what_others_use_is_told_from_what_is_measured(arms):
    cpus = os.cpu_count() or 1
    share = arms.OthersShare()
    subprocess.run([sys.executable, "-c", BURN.format(seconds=2)], check=True)
    alone = share.take()
    # Who is not waited for is not of the measurement.
    with subprocess.Popen([sys.executable, "-c", BURN.format(seconds=60)]) as other:
        try:
            time.sleep(2)
            beside = share.take()
        finally:
            other.kill()

    # Where the machine is busy anyway, there is no more than that to take.
    assert beside - alone > 0.5 * min(1 / cpus, 1 - alone)


def test_rows_of_one_measurement_have_one_share(arms):
    share = arms.OthersShare()
    assert share.take() is None
    time.sleep(1)

    first = share.take()

    assert first is not None
    assert share.take() is first


@pytest.mark.parametrize(
    ("others_share", "said"), [(None, []), (0.2, ["20%"]), (0.21, ["VOID", "21%"])]
)
def test_a_row_that_others_disturbed_is_void(arms, capsys, tmp_path, others_share, said):
    row = arms.Measured(
        name="row",
        ours="a",
        samples={"a": [arms.Sample(1.0)]},
        verdicts=[],
        others_share=others_share,
    )

    arms.print_table([row])
    arms.write_json(tmp_path / "rows.json", {}, [row])

    printed = capsys.readouterr().out
    assert [word for word in ("VOID", "20%", "21%") if word in printed] == said
    assert f'"void": {str("VOID" in said).lower()}' in (tmp_path / "rows.json").read_text()


def test_what_is_measured_keeps_its_bytecode(arms, monkeypatch, tmp_path):
    (tmp_path / "measured.py").write_text("")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)

    arms.run_command(
        [sys.executable, "-c", "import measured"],
        cwd=str(tmp_path),
        env=arms.child_environment(tmp_path),
        timeout_s=60,
    )

    assert [*(tmp_path / "__pycache__").iterdir()]
