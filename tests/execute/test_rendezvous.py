from __future__ import annotations

import pytest

from hpctrain.control.wire import PROTOCOL
from hpctrain.errors import LaunchError
from hpctrain.execute.rendezvous import WorkerMetadata

HELLO = {"rank": 3, "hostname": "n1", "pid": 7, "tmp": "/tmp", "node_rank": 1, "local_rank": 0}


def test_a_rank_says_where_it_lives():
    worker = WorkerMetadata.from_hello({**HELLO, "protocol": PROTOCOL})
    assert (worker.rank, worker.hostname, worker.node_rank) == (3, "n1", 1)


@pytest.mark.parametrize("protocol", [{}, {"protocol": PROTOCOL + 1}])
def test_a_rank_of_another_hpctrain_is_refused(protocol: dict[str, int]):
    with pytest.raises(LaunchError, match="rank 3 on n1 imports another hpctrain"):
        WorkerMetadata.from_hello({**HELLO, **protocol})
