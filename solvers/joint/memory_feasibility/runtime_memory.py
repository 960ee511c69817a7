"""The least memory of plans for a runtime, as the runtime is predicted to hold it; `minimum_memory` explains with it."""

from __future__ import annotations

from trainplan.formulations.joint.problem import Instance, Solution
from trainplan.formulations.joint.runtime_costs import some_cuts
from trainplan.formulations.joint.runtime_least import Candidate, candidates


class RuntimeMemory:
    """Finds the least memory that the plans of an instance with a runtime need.

    instance: the configurations to choose from, on devices of equal memory.
    """

    def __init__(self, instance: Instance) -> None:
        assert instance.runtime is not None
        self.instance, self.runtime = instance, instance.runtime

    def fits(self) -> bool | None:
        """Whether some plan fits; None if that is not known, because the stages of interleaved plans are free."""
        limit, unknown = self._limit(), False
        for candidate in candidates(self.instance):
            if self._within(candidate, limit) is not None:
                return True
            unknown = unknown or self._free_chunks(candidate)
        return None if unknown else False

    def least(self) -> tuple[Solution, int] | None:
        """A plan that needs the least memory, and the bytes by which it exceeds the limit; None if no plan can be predicted."""
        best: tuple[int, Solution] | None = None
        for candidate in candidates(self.instance):
            if self.runtime.bounds(self.instance, *candidate) is None:
                continue
            if best is None:
                configuration = self.instance.configurations[candidate[0]]
                first = Solution(candidate[0], some_cuts(self.instance, configuration), candidate[1])
                best = self._peak(first), first
            while (smaller := self._within(candidate, best[0] - 1)) is not None:
                best = self._peak(smaller), smaller
                best = self._halved(candidate, best)
        return None if best is None else (best[1], best[0] - self._limit())

    def _halved(self, candidate: Candidate, best: tuple[int, Solution]) -> tuple[int, Solution]:
        """A candidate's plan of less memory than its plan `best`, found by halving the memory while some plan fits into less.
        best: the peak in bytes, and the plan."""
        low, high = 0, best[0]
        while high - low > max(1, high >> 10):
            if (smaller := self._within(candidate, (low + high) // 2)) is None:
                low = (low + high) // 2
            else:
                best = min(best, (self._peak(smaller), smaller), key=lambda pair: pair[0])
                high = best[0]
        return best

    def _limit(self) -> int:
        """The bytes that a plan may use on every device."""
        return min(self.instance.limit_bytes(group) for group in self.instance.configurations[0].device_groups)

    def _free_chunks(self, candidate: Candidate) -> bool:
        """Whether a candidate is interleaved, with stages that may be cut freely."""
        configuration = self.instance.configurations[candidate[0]]
        return configuration.schedule.chunks > 1 and configuration.cuts is None

    def _peak(self, solution: Solution) -> int:
        """The peak bytes of a plan on its fullest device."""
        predicted = self.runtime.predicted(self.instance, solution)
        assert not isinstance(predicted, str)
        return max(predicted[1])

    def _within(self, candidate: Candidate, limit: int) -> Solution | None:
        """A plan of a candidate that fits into `limit` bytes; None if there is none."""
        index, choice = candidate
        configuration = self.instance.configurations[index]
        bounds = self.runtime.bounds(self.instance, index, choice)
        if bounds is None or limit < 0 or self._free_chunks(candidate):
            return None
        if configuration.stages == 1 or configuration.cuts is not None:
            solution = Solution(index, configuration.cuts or (), choice)
            return solution if self._peak(solution) <= limit else None
        fitting = self.runtime.fitting(self.instance.with_memory(limit), index, choice)
        ways = [] if fitting is None else bounds.stages(fitting).cuts(float("inf"), 1)
        cuttable = (0, *(l for l in range(1, self.instance.length) if self.instance.cuttable[l - 1]))
        return Solution(index, tuple(cuttable[end] for end in ways[0][1]), choice) if ways else None
