"""Groups that the border between ranks cuts, on ranks that are threads."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain import ConfigError
from hpctrain.gbdt.groups import check_apart, join_groups, run_lengths
from hpctrain.testing.thread_comm import run_on_threads


def shares(group, num_ranks):
    rows = np.arange(len(group))
    parts = np.array_split(rows, num_ranks)

    def join(comm):
        mine = parts[comm.rank]
        joined = join_groups({"group": group[mine], "row": mine}, comm, dataset="train")
        check_apart(joined["group"], comm, dataset="train", column="q")
        return joined

    return run_on_threads(num_ranks, join)


def test_a_group_belongs_to_the_rank_on_which_it_begins():
    group = np.repeat([5, 3, 9, 1], [4, 3, 3, 2])
    joined = shares(group, 3)
    assert [part["row"].tolist() for part in joined] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9], [10, 11]]
    assert np.concatenate([part["group"] for part in joined]).tolist() == group.tolist()


def test_a_rank_without_a_group_is_refused_on_all_ranks():
    with pytest.raises(ConfigError, match=r"ranks \[1\] of 3 would have no group"):
        shares(np.repeat([1, 2], [9, 3]), 3)


def test_rows_of_a_group_on_ranks_that_are_apart_are_refused_on_all_ranks():
    with pytest.raises(ConfigError, match="'train': rows with the same 'q' are not adjacent, for"):
        shares(np.repeat([5, 3, 9, 5], [4, 3, 3, 2]), 3)


def test_rows_of_a_group_that_are_apart_are_refused():
    assert run_lengths(np.array([2, 2, 1]), dataset="train", column="q").tolist() == [2, 1]
    with pytest.raises(ConfigError, match="the same 'q' are not adjacent"):
        run_lengths(np.array([2, 1, 2]), dataset="train", column="q")
