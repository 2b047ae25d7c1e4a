from __future__ import annotations

import subprocess
import sys

# After a large block has been freed, others come from the heap, where small ones are between them.
SCRIPT = """
import resource, sys
from hpctrain.bulk.heap import return_large_blocks

if sys.argv[1] == "returns":
    return_large_blocks()
MIB = 2**20
first = b"1" * (16 * MIB)
del first
large, small = [], []
for _ in range(8):
    large.append(b"1" * (8 * MIB))
    small.append(b"1" * 100_000)
large.clear()
print(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() // MIB)
"""


def resident_mib(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], check=True, stdout=subprocess.PIPE, timeout=60
    )
    return int(done.stdout)


def test_large_blocks_do_not_stay_with_the_process():
    assert resident_mib("returns") < resident_mib("keeps") - 32
