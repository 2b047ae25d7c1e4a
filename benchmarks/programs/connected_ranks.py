"""Ranks that connect, with SECRET RUN RANKS PER_CONNECTION REPORTS ADDRESS... as arguments.

Stands for the processes of many nodes, or for the relays of their ranks: what a coordinator has to
do for their connections is real. Each rank introduces itself and makes reports, a round of all
after the other.
"""

import select
import sys

from hpctrain.control.link import connect_tcp
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import PROTOCOL, FrameSocket, encode_frame


def main(secret, run, ranks, per_connection, reports, *addresses):
    ranks, per_connection, reports = int(ranks), int(per_connection), int(reports)
    credentials = Credentials(bytes.fromhex(secret), run=run, attempt=1)
    connections = []
    for first in range(0, ranks, per_connection):
        sock, seal = connect_tcp([*addresses], credentials, timeout_s=60)
        frames = FrameSocket(sock, seal)
        if per_connection > 1:
            frames.queue(encode_frame({"op": "agent", "attempt": 1, "node": f"node{first}"}))
        of = range(first, min(first + per_connection, ranks))
        connections.append((frames, of))
        for rank in of:
            details = {"protocol": PROTOCOL, "pid": 1, "tmp": "/tmp", "hostname": f"node{first}"}
            details |= {"node_rank": first // per_connection, "local_rank": rank - first}
            header = {"op": "hello", "rank": rank, "attempt": 1, **details}
            frames.queue(encode_frame(header))
        flush(frames)
    for number in range(reports):
        for frames, of in connections:
            for rank in of:
                header = {"op": "report", "rank": rank, "attempt": 1}
                frames.queue(encode_frame(header, b'{"metrics": {"loss": %d}}' % number))
            flush(frames)
    for frames, _ in connections:
        # Until the other end closes.
        while not frames.closed:
            select.select([frames], [], [])
            frames.receive()


def flush(frames):
    while not frames.flush():
        select.select([], [frames], [])


if __name__ == "__main__":
    main(*sys.argv[1:])
