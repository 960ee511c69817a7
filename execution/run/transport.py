"""How tensors travel between ranks: directly, or staged through the host's memory.

- direct: torch.distributed takes the tensors where they are: gloo on the CPU, NCCL on GPUs.
- staged: they are copied to buffers of the host, travel there with gloo, and are copied back. Several ranks may then share a
  GPU, which NCCL does not let them. The thread that issues an operation waits until it is done, so nothing overlaps with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Message(NamedTuple):
    """A tensor to send to the rank `peer` (sends is True), or to receive from it. group: the process group in which it
    travels."""

    sends: bool
    tensor: Tensor
    peer: int
    group: Any


class Transport(Protocol):
    """Moves tensors between ranks. Each method returns handles, whose `wait()` must be called before the results are used; an
    empty list if nothing is left to wait for."""

    def collective(self, function: Callable[..., Any], group: Any, tensors: Sequence[Tensor | list[Tensor]]) -> list[Any]:
        """Begin `function`, a collective of torch.distributed, over `group`. tensors: the result first, the input last; either
        may be a list of parts. Afterwards the content of a reduction's input is undefined."""
        ...

    def exchange(self, messages: Sequence[Message]) -> list[Any]:
        """Begin to send and receive these messages, all at the same time."""
        ...

    def post(self, message: Message) -> list[Any] | None:
        """Begin to receive a message in such a way that no other operation has to wait for its arrival; None if that is not
        possible."""
        ...


class Direct:
    """A transport by torch.distributed on the tensors themselves, on CPU (gloo) or GPU (NCCL). Each method returns handles to
    wait for."""

    def collective(self, function: Callable[..., Any], group: Any, tensors: Sequence[Tensor | list[Tensor]]) -> list[Any]:
        """Begin `function`, a collective of torch.distributed, over `group`; returns the handles to wait for. tensors: the
        result first, the input last; either may be a list of parts. A reduce-scatter on the CPU is done as an all-reduce of
        the input itself, where gloo would use a copy."""
        result, source = tensors[0], tensors[-1]
        if function is dist.reduce_scatter_tensor and isinstance(source, Tensor) and source.device.type == "cpu":
            assert isinstance(result, Tensor)
            piece = source.view(dist.get_world_size(group), -1)[dist.get_rank(group)].view_as(result)
            return [_Arriving(result, piece, [dist.all_reduce(source, group=group, async_op=True)])]
        return [function(*tensors, group=group, async_op=True)]

    def exchange(self, messages: Sequence[Message]) -> list[Any]:
        """Begin to send and receive these messages, all at the same time; returns the handles to wait for."""
        works, functions = list[Any](), {True: dist.isend, False: dist.irecv}
        for group in dict.fromkeys(message.group for message in messages):  # NCCL makes one operation of each group's
            those = [message for message in messages if message.group == group]
            works += dist.batch_isend_irecv([dist.P2POp(functions[m.sends], m.tensor, m.peer, m.group) for m in those])
        return works

    def post(self, message: Message) -> list[Any] | None:
        """Begin to receive a message so that no other operation has to wait for its arrival; returns the handles to wait for,
        None if that is not possible: on GPUs for groups of more than two ranks, since NCCL has operations of one group wait
        for each other."""
        if message.tensor.device.type == "cuda" and dist.get_world_size(message.group) > 2:
            return None
        return self.exchange([message])


class Staged:
    """A transport by copies in the host's memory, which gloo sends, so that several ranks can share a GPU. Operations are done
    when they return, or when the returned handle is waited for."""

    def collective(self, function: Callable[..., Any], group: Any, tensors: Sequence[Tensor | list[Tensor]]) -> list[Any]:
        """Run `function`, a collective of torch.distributed, over `group` on copies in the host's memory; returns no handles,
        since it is done. tensors: the result first, the input last; either may be a list of parts."""
        result, given = tensors[0], tensors[-1]
        source = [_staged(part, copied=True) for part in _parts(given)]
        target = source if result is given else [_staged(part, copied=False) for part in _parts(result)]
        _issued(_parts(given)[0])
        pairs = [(result, target)] if result is given else [(result, target), (given, source)]
        function(*(staged if isinstance(tensor, list) else staged[0] for tensor, staged in pairs), group=group)
        for part, copy in zip(_parts(result), target, strict=True):
            part.copy_(copy)
        return []

    def exchange(self, messages: Sequence[Message]) -> list[Any]:
        """Send and receive these messages by copies in the host's memory, all at the same time; returns no handles, since they
        are done."""
        staged = [message._replace(tensor=_staged(message.tensor, copied=message.sends)) for message in messages]
        _issued(messages[0].tensor)
        for work in Direct().exchange(staged):
            work.wait()
        for message, copy in zip(messages, staged, strict=True):
            if not message.sends:
                message.tensor.copy_(copy.tensor)
        return []

    def post(self, message: Message) -> list[Any] | None:
        """Begin to receive a message into a copy in the host's memory; returns the handle to wait for, never None."""
        staged = _staged(message.tensor, copied=False)
        return [_Arriving(message.tensor, staged, Direct().exchange([message._replace(tensor=staged)]))]


class _Arriving(NamedTuple):
    """A handle of a result that arrives in `buffer`, to be copied to `tensor` by `wait`. works: torch's handles to wait for
    first."""

    tensor: Tensor
    buffer: Tensor
    works: list[Any]

    def wait(self) -> None:
        """Wait until the result has arrived, and copy it to the tensor, unless both have the same memory."""
        for work in self.works:
            work.wait()
        if self.buffer.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.buffer)


def _staged(tensor: Tensor, copied: bool) -> Tensor:
    """A new tensor in the host's memory (pinned, for a tensor on a GPU) of the shape and dtype of `tensor`. copied: whether to
    begin to copy its contents."""
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return buffer.copy_(tensor, non_blocking=True) if copied else buffer


def _parts(tensors: Tensor | list[Tensor]) -> list[Tensor]:
    """The list of tensors itself, or a single tensor as a list of one."""
    return tensors if isinstance(tensors, list) else [tensors]


def _issued(tensor: Tensor) -> None:
    """Wait until the copies that have been issued on the current CUDA stream of this tensor's device are done; nothing on the
    CPU."""
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()


TRANSPORTS: dict[str, Callable[[], Transport]] = {"direct": Direct, "staged": Staged}
