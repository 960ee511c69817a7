"""Peak memory of a rank of a lowered plan, by a dispatch tracker.

The tracker is a `TorchDispatchMode`: each operation of torch passes through it, and the storages of its results are counted
until they are gone; `UntypedStorage.resize_`, with which FSDP empties and fills its own, is watched in addition. So it sees all
tensors, on CPUs and GPUs alike, but no workspace within a kernel, nor what an allocator or a communicator keeps for itself.
Within a `FakeTensorMode` it counts the tensors of this mode by their shapes (see `dry_run`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

REDUCE_SCATTERS = (torch.ops.c10d._reduce_scatter_base_.default, torch.ops.c10d.reduce_scatter_.default)
Resize = Callable[[torch.UntypedStorage, int], None]


class StorageTracker(TorchDispatchMode):
    """Context manager that measures peak memory: `peak_bytes` is the most bytes of tensor storages alive at one time, of those
    passed to `count` before and of those allocated inside. copies: whether the input of a reduce-scatter is counted twice
    while that runs, as a dry run needs for gloo, which all-reduces a copy; in real runs the tracker sees the copy by itself."""

    def __init__(self, copies: bool = False) -> None:
        super().__init__()
        self.copies = copies
        self.alive_bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._resize: Resize = torch.UntypedStorage.resize_

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors from now on, each storage only once, until they are freed."""
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if not is_traceable_wrapper_subclass(local) and local.device.type != "meta":
                self._see(local.untyped_storage())

    def _see(self, storage: torch.UntypedStorage) -> None:
        """Count a tensor storage with its current size, until it is freed; called again after its size has changed."""
        key = storage._cdata
        if key not in self._watched or self._watched[key]() is None:
            self._watched[key] = weakref.ref(storage, partial(self._forget, key))
            self._sizes[key] = 0
        self.alive_bytes += storage.nbytes() - self._sizes[key]
        self._sizes[key] = storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)

    def _forget(self, key: int, gone: weakref.ref[torch.UntypedStorage]) -> None:
        """Stop counting a tensor storage that has been freed. key: its address. gone: the weak reference to it, which torch
        passes."""
        if self._watched.get(key) is gone:
            del self._watched[key]
            self.alive_bytes -= self._sizes.pop(key)

    def __enter__(self) -> StorageTracker:
        original, self._mode = self._resize, torch._guards.active_fake_mode()

        def resize(storage: torch.UntypedStorage, size: int) -> None:
            original(storage, size)
            if storage.device.type != "meta" or storage._cdata in self._watched:  # a fake tensor's is on meta, too
                self._see(storage)

        torch.UntypedStorage.resize_ = resize
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        torch.UntypedStorage.resize_ = self._resize

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count its results. One on DTensors comes again, as operations on their parts."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if self.copies and func in REDUCE_SCATTERS:
            self.peak_bytes = max(self.peak_bytes, self.alive_bytes + sum(map(_bytes, tree_leaves(args[1]))))
        result = func(*args, **(kwargs or {}))
        if torch._guards.active_fake_mode() is self._mode:  # shapes of a DTensor's result are tried out in another one
            self.count(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result


def _bytes(tensor: object) -> int:
    """Bytes of a tensor; 0 for anything else."""
    return tensor.nbytes if isinstance(tensor, Tensor) else 0
