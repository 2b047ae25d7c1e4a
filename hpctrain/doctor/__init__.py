"""What would keep a run from starting, found before anything is queued.

- ``finding``: a finding: what, why it matters, what to do
- ``request``: a request against partition, nodes, account, QOS and reservation; pure
- ``machine``: what one machine has: storage, versions, limits, interfaces, hardware; runs on the
  login node and on compute nodes
- ``compare``: the nodes against the login node, and the MPI worlds that formed; pure
- ``binding``: the CPUs and GPUs of each rank against the hardware; pure
- ``world``: one rank of an MPI probe
- ``pack``: a packed environment, and the room that nodes have for it
- ``probe``: runs the above in a short job
"""
