"""How ranks, the agents of their nodes, and the executor talk.

A rank connects to the agent of its node over a unix socket that only its user can open; an agent
connects to the executor over TCP, where both ends prove that they know the secret of the run, and
what is sent after that has MACs. On one machine the executor is its own agent. Frames upward carry
phases, reports and failures, frames downward carry commands and decisions. What ranks send each
other goes through MPI, never through here.

Agents of many nodes form a tree in which they relay for each other.

Every frame carries the number of the attempt: a straggler of a dead attempt is not believed.
"""
