"""`Experiment`: a script, what it does when left alone, and disturbed trials of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.testing.chaos.fault import Fault
from hpctrain.testing.chaos.kinds import ACTS, KINDS, Kind
from hpctrain.testing.chaos.outcome import differences, is_finished, wrong_resumes
from hpctrain.testing.chaos.trial import Script, Trial, TrialResult
from hpctrain.testing.slurm import VirtualCluster

_SPARE_STORAGE_MIB = 4


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A trial with faults, compared with the run without."""

    result: TrialResult
    problems: tuple[str, ...]
    """No difference: the run ended like one without faults, bit by bit."""
    undisturbed: TrialResult | None = None
    """The run without."""

    @property
    def passed(self) -> bool:
        """Whether the run ended like one without faults."""
        return not self.problems

    def explain(self) -> str:
        """Return everything that a person needs who looks into it."""
        faults = [
            f"  {fault}{'' if reached else '   (never reached)'}"
            for fault, reached in zip(self.result.faults, self.result.came_about, strict=True)
        ]
        lines = ["the disturbed run did not end like the undisturbed one.", *faults]
        lines += [f"  - {problem}" for problem in self.problems]
        lines += _end_of(self.result)
        if (base := self.undisturbed) is not None and base.attempts > len(base.outcome):
            # Its points may be of an attempt that a disturbed run does not come to.
            lines += [f"The undisturbed run took {base.attempts} attempts.", *_end_of(base)]
        return "\n".join(lines)


def _end_of(result: TrialResult) -> list[str]:
    said = result.log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"The end of {result.log}:", *said[-25:]]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A script in one place, and its result there without faults.

    Made by `begin`.
    """

    folder: Path
    """Folder for the trials, each in one of its own."""
    script: Script
    cluster: VirtualCluster | None
    """Where its runs become jobs; None runs the ranks on this machine."""
    ignore: tuple[str, ...]
    timeout_s: float
    undisturbed: TrialResult
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def begin(
        cls,
        folder: Path,
        *,
        script: Script,
        cluster: VirtualCluster | None = None,
        ignore: Collection[str] = (),
        timeout_s: float = 120.0,
    ) -> Experiment:
        """Run the script undisturbed.

        Not collective.

        Parameters
        ----------
        folder
            Folder for the trials. It is made if needed.
        script
            What to run.
        cluster
            Where its runs become jobs; None runs the ranks on this machine.
        ignore
            Names of metrics that differ from run to run, such as times.
        timeout_s
            How long one trial may take.

        Raises
        ------
        ConfigError
            If the script does not finish even so.
        """
        trial = Trial(folder / "undisturbed", script=script, cluster=cluster)
        result = trial.run(timeout_s=timeout_s, max_starts=1)
        if not is_finished(result.outcome) or result.troubles:
            said = result.log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
            raise ConfigError(
                f"{script.path} does not finish even without faults: "
                f"{', '.join(result.troubles) or 'no run of it is finished'}. Mend that first. "
                f"The end of {result.log}:\n" + "\n".join(said)
            )
        return cls(
            folder=folder,
            script=script,
            cluster=cluster,
            ignore=tuple(ignore),
            timeout_s=timeout_s,
            undisturbed=result,
        )

    def check_repeatable(self) -> None:
        """Run the script undisturbed once more.

        Not collective.

        Raises
        ------
        ConfigError
            If two undisturbed runs differ, so that no disturbed one could be judged.
        """
        comparison = self.disturb([])
        if not comparison.passed:
            raise ConfigError(
                f"two runs of {self.script.path} differ although neither had a fault: "
                f"{'; '.join(comparison.problems)}. Fix its seeds; leave out metrics that are "
                f"times with --ignore NAME."
            )

    def disturb(self, faults: Sequence[Fault]) -> Comparison:
        """Run the script with faults, and compare. Not collective."""
        trial = Trial(
            self.folder / f"trial-{next(self._numbers):04d}",
            script=self.script,
            cluster=self.cluster,
            faults=faults,
            acts=ACTS,
            storage_mib=self._storage_mib(faults),
        )
        result = trial.run(timeout_s=self.timeout_s)
        problems = [
            *result.troubles,
            *differences(self.undisturbed.outcome, result.outcome, ignore=self.ignore),
            *wrong_resumes(result.outcome, result.trace, result.damaged),
        ]
        came_about = [f for f, did in zip(faults, result.came_about, strict=True) if did]
        needed = sum(KINDS[fault.kind].attempts for fault in came_about)
        most = self.undisturbed.attempts + needed
        if result.attempts > most:
            problems.append(f"it took {result.attempts} attempts, where {most} are enough")
        if faults and not any(result.came_about):
            problems.append("no fault came about: the run never came by such a point")
        return Comparison(result=result, problems=tuple(problems), undisturbed=self.undisturbed)

    def draw(self, kinds: Sequence[Kind], chance: random.Random, *, count: int = 1) -> list[Fault]:
        """Return random faults. Not collective."""
        return [chance.choice(kinds).draw(self.undisturbed.trace, chance) for _ in range(count)]

    def _storage_mib(self, faults: Sequence[Fault]) -> int | None:
        if not any(KINDS[fault.kind].needs == "root" for fault in faults):
            return None
        files = (self.folder / "undisturbed" / "storage").rglob("*")
        used = sum(path.stat().st_size for path in files if path.is_file())
        return _SPARE_STORAGE_MIB + 2 * used // 2**20
