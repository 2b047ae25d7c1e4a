"""The library alone, in one process with two threads: LIBRARY DATA OUTPUT."""

import importlib
import sys
import time

from boost_case import boost, cpu_s, read_rows, say

library, data, output = sys.argv[1:]
importlib.import_module(library)
begin, used = time.perf_counter(), cpu_s()
x, y = read_rows(data)
booster = boost(library, x, y, threads=2, params={})
wall_s, used = time.perf_counter() - begin, cpu_s() - used
say(output, booster, library=library, data=data, wall_s=wall_s, cpu_s=used)
