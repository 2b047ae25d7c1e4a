"""A sweep never has more jobs than it may, and never stops trying to have them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError
from hpctrain.tune import TuneConfig
from hpctrain.tune.job_slots import JobSlots, Refusal, count_new_jobs, most_jobs
from hpctrain.tune.slots import Need, Slot

NEED = Need(cpus=1)


def test_new_jobs_stay_within_all_limits_and_are_tried_again(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        most, jobs = int(rng.integers(1, 20)), int(rng.integers(0, 25))
        now = float(rng.uniform(0, 1e6))
        free = count_new_jobs(max_jobs=most, jobs=jobs, refusal=None, now=now)
        assert free == max(most - jobs, 0)
        refusal = Refusal(
            jobs=int(rng.integers(0, 20)),
            at=now - float(rng.uniform(0, 1000)),
            times=int(rng.integers(1, 5000)),
        )
        new = count_new_jobs(max_jobs=most, jobs=jobs, refusal=refusal, now=now)
        assert 0 <= new <= free
        if now - refusal.at < refusal.wait_s:
            assert jobs + new <= max(refusal.jobs, jobs), "no more than Slurm took"
        later = refusal.at + 600
        assert count_new_jobs(max_jobs=most, jobs=jobs, refusal=refusal, now=later) >= min(1, free)

    each_example(check)


@dataclass
class Cluster:
    """Takes so many jobs of a user, some of which are of others of their scripts."""

    limit: int
    others: int = 0
    now: float = 0.0
    jobs: dict[str, str] = field(default_factory=dict)
    """Trials by job."""
    last: dict[str, str] = field(default_factory=dict)
    """The last job of each trial."""
    questions: list[float] = field(default_factory=list)

    def submit(self, trial: str) -> bool:
        if len(self.jobs) + self.others >= self.limit:
            return False
        job_id = str(len(self.last) + 1)
        self.jobs[job_id] = trial
        self.last[trial] = job_id
        return True

    def find_live(self, job_ids: Collection[str]) -> set[str]:
        self.questions.append(self.now)
        return {job_id for job_id in job_ids if job_id in self.jobs}

    def slots(self, most: int) -> JobSlots:
        return JobSlots(
            most, job_of=self.last.get, find_live=self.find_live, clock=lambda: self.now
        )


def test_all_trials_get_a_job_whatever_the_cluster_takes(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        cluster, most = Cluster(limit=int(rng.integers(1, 6))), int(rng.integers(1, 8))
        slots = cluster.slots(most)
        waiting = [f"t{number}" for number in range(12)]
        running: list[str] = []
        refused = 0
        while waiting or running:
            cluster.now += float(rng.choice([0.1, 1.0, 20.0, 200.0]))
            cluster.others = int(rng.integers(0, cluster.limit)) if rng.random() < 0.3 else 0
            while waiting and slots.take(waiting[0], NEED) is not None:
                if cluster.submit(waiting[0]):
                    running.append(waiting.pop(0))
                    assert len(cluster.jobs) <= most
                else:
                    refused += 1
                    slots.put_off(waiting[0])
            # Runs are over at once, and their jobs leave the queue later.
            if running and rng.random() < 0.4:
                slots.give_back(running.pop(int(rng.integers(len(running)))))
            over = [job for job, trial in cluster.jobs.items() if trial not in running]
            for job_id in over:
                if rng.random() < 0.6:
                    del cluster.jobs[job_id]
            assert cluster.now < 1e6, "it stands still"
        assert refused <= 12 + cluster.now / 30
        gaps = np.diff(cluster.questions)
        assert (gaps >= 1).all(), "Slurm is not asked all the time"

    each_example(check)


def test_a_job_that_has_not_left_the_queue_keeps_its_slot() -> None:
    cluster = Cluster(limit=9)
    slots = cluster.slots(1)
    assert slots.take("a", NEED) == Slot()
    assert cluster.submit("a")
    assert slots.take("b", NEED) is None
    slots.give_back("a")
    assert slots.take("b", NEED) is None
    assert not cluster.questions, "its job has a second to end"
    cluster.now = 1.0
    assert slots.take("b", NEED) is None
    cluster.jobs.clear()
    assert slots.take("b", NEED) is None, "Slurm was asked this moment"
    cluster.now = 3.0
    assert slots.take("b", NEED) == Slot()
    assert cluster.questions == [1.0, 3.0]


def test_a_refusal_is_news_once_until_slurm_takes_more() -> None:
    cluster = Cluster(limit=9)
    slots = cluster.slots(4)
    assert slots.take("a", NEED) is not None
    assert slots.take("b", NEED) is not None
    assert slots.put_off("b")
    assert not slots.fits(NEED)
    cluster.now = 30.0
    assert slots.take("b", NEED) is not None
    assert not slots.put_off("b"), "it was said"
    cluster.now = 60.0
    assert not slots.fits(NEED), "it is tried after a minute now"
    cluster.now = 90.0
    assert slots.take("b", NEED) is not None
    assert slots.take("c", NEED) is not None
    assert slots.put_off("c")


def test_the_smallest_number_counts() -> None:
    assert most_jobs(None, None) == 8
    assert most_jobs(3, 5) == most_jobs(5, 3) == most_jobs(None, 3) == most_jobs(3, None) == 3


def test_slurm_chooses_nodes_so_none_is_left_out() -> None:
    slots = Cluster(limit=1).slots(1)
    slots.keep("a", NEED, Slot())
    assert not slots.fits(NEED)
    assert not slots.leave_out("node1", "lost")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"max_jobs": 4},
            r"TuneConfig\(max_jobs=4\) is for trials that are jobs .*launcher='jobs'",
        ),
        ({"launcher": "jobs", "max_jobs": 0}, r"max_jobs=...\) is 0. It must be 1 or more"),
        ({"launcher": "jobs", "max_jobs": -1}, r"max_jobs=...\) is -1"),
        ({"launcher": "jobs", "max_jobs": 2.5}, r"max_jobs=...\) is 2\.5"),
        ({"launcher": "jobs", "max_jobs": True}, r"max_jobs=...\) is True"),
        ({"launcher": "jobs", "max_jobs": "4"}, r"max_jobs=...\) is '4'"),
        ({"launcher": "slurm"}, r"launcher.*'slurm'.*'jobs'"),
        ({"launcher": 3}, r"launcher.* 3"),
        ({"launcher": ""}, r"launcher.*''.*'jobs'"),
    ],
)
def test_other_values_of_a_tune_config_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TuneConfig(**options)


def test_numbers_of_numpy_are_accepted() -> None:
    config = TuneConfig(launcher="jobs", max_jobs=np.int64(3))
    assert repr(config) == "TuneConfig(launcher='jobs', max_jobs=3)"
