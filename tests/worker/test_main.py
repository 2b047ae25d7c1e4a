"""What the process of a rank imports of itself, whatever it trains with."""

from __future__ import annotations

import subprocess
import sys

from hpctrain.backend import OF_EVERY_RANK


def test_a_rank_imports_no_more_of_python_than_it_needs() -> None:
    # What else a fork server imports for its ranks comes with a seed, or with the first checkpoint.
    ours = ["hpctrain.worker.main", "hpctrain.worker.linked_training", "hpctrain.worker.train"]
    ours.append("hpctrain.rundir.trust")
    assert set(ours) <= set(OF_EVERY_RANK)
    program = f"import sys, {', '.join(ours)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert loaded >= set(ours), done.stderr
    # hashlib loads OpenSSL. Without a framework this is most of what a rank costs until it trains.
    heavy = {"concurrent.futures", "difflib", "hashlib", "hmac", "logging", "secrets"}
    assert loaded & heavy == set()
