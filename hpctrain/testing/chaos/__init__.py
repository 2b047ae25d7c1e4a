"""Inject faults into a run, and check that it ends like one without faults.

A *trial* runs a script that calls ``fit()``, from its start to its end, with storage of its own.
The first trial of a script is undisturbed, and says what the result is and which points there are
to strike at. Every other one has *faults*: something happens, once, at a point ::

    undisturbed ──► outcome: every report, digests of the last checkpoint ──┐
                └─► trace: every report, open, write, fsync, rename         ├─► differences: none
                      │ seed                                                │
                      └─► faults ──► disturbed ──► outcome ─────────────────┘

No process of hpctrain knows of it: a ``sitecustomize`` on ``PYTHONPATH`` (`injector`) reaches
every Python process of the trial, wraps functions of `os`, notes what is done below the storage,
and kills its own process, or lets a call fail, where a fault says so. What a process cannot do to
itself, such as cutting the power of its node, the harness does while the process waits there.
"""
