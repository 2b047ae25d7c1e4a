"""The run directory: a public format, with one writer for each file.

::

    STORAGE/NAME/
      plan.json              once, by the user's process: request, argv, versions, git state, site
      spec.pkl               once: what each rank runs (cloudpickle); mode 0600
      ledger.jsonl           executor, append: every attempt, job id, nodes, start, end, cause
      status.json            executor: state, phase, last progress (written beside and renamed)
      metrics.jsonl          rank 0, append: one line a report
      checkpoints/000013/    complete only when it holds its manifest; appears by rename
      return_value.pkl       executor, once: what rank 0's training function returned; mode 0600
      logs/ATTEMPT/rank-00005.out     failures/ATTEMPT/rank-00005.json     artifacts/

`FORMAT` is written into ``plan.json`` and every manifest. A reader refuses a larger number.
"""

from __future__ import annotations

FORMAT = 2
"""Version of the format on disk."""
