"""The memory that torch allocates while some code runs, read from torch's own profiler."""

from __future__ import annotations

import json
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from torch.profiler import ProfilerActivity, profile, record_function


class PeakMemory:
    """Context manager that measures allocations of CPU memory. Afterwards `peak_bytes` is the peak of the bytes allocated
    inside it and not yet freed.

    Code run under `phase(name)` has its own peak in `phase_peak_bytes[name]`. Memory that was allocated before is not counted,
    nor is its release.
    """

    def __enter__(self) -> PeakMemory:
        """Begin to record allocations."""
        self.peak_bytes = 0
        self.phase_peak_bytes: dict[str, int] = {}
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    def phase(self, name: str) -> AbstractContextManager[object]:
        """A context manager to use inside the recording: the peak of allocated bytes during its block is recorded in
        `phase_peak_bytes` under `name`.
        """
        return record_function(f"trainplan:{name}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the recording, and compute the peaks from the profiler's trace."""
        self._profile.__exit__(kind, error, trace)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            self._profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        phases = {
            event["name"].removeprefix("trainplan:"): (event["ts"], event["ts"] + event["dur"])
            for event in events
            if event.get("name", "").startswith("trainplan:") and "dur" in event
        }
        alive = 0
        memory = [event for event in events if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0]
        for event in sorted(memory, key=lambda event: event["args"]["Ev Idx"]):
            alive += event["args"]["Bytes"]
            self.peak_bytes = max(self.peak_bytes, alive)
            for name, (start, end) in phases.items():
                if start <= event["ts"] <= end:
                    self.phase_peak_bytes[name] = max(self.phase_peak_bytes.get(name, 0), alive)
