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
    """A tensor to send to, or receive from, the rank `peer`. group: the process group in which it travels."""

    sends: bool
    tensor: Tensor
    peer: int
    group: Any


class Transport(Protocol):
    """Carries out operations between ranks; each method returns the handles that are still to be waited for."""

    def collective(self, function: Callable[..., Any], group: Any, tensors: Sequence[Tensor | list[Tensor]]) -> list[Any]:
        """Run a function of torch.distributed on its tensors, of which the first gets the result and the last is the input;
        either may be a list of parts. Afterwards the content of a reduction's input is undefined."""
        ...

    def exchange(self, messages: Sequence[Message]) -> list[Any]:
        """Send and receive messages, all at the same time."""
        ...

    def post(self, message: Message) -> list[Any] | None:
        """Begin to receive a message in such a way that nothing else has to wait for its arrival; None where that is not
        possible."""
        ...


class Direct:
    """torch.distributed on the tensors themselves."""

    def collective(self, function: Callable[..., Any], group: Any, tensors: Sequence[Tensor | list[Tensor]]) -> list[Any]:
        """As of `Transport`. For a reduce-scatter gloo would all-reduce a copy of the input: here it all-reduces the input
        itself."""
        result, source = tensors[0], tensors[-1]
        if function is dist.reduce_scatter_tensor and isinstance(source, Tensor) and source.device.type == "cpu":
            assert isinstance(result, Tensor)
            piece = source.view(dist.get_world_size(group), -1)[dist.get_rank(group)].view_as(result)
            return [_Arriving(result, piece, [dist.all_reduce(source, group=group, async_op=True)])]
        return [function(*tensors, group=group, async_op=True)]

    def exchange(self, messages: Sequence[Message]) -> list[Any]:
        """As of `Transport`."""
        works, functions = list[Any](), {True: dist.isend, False: dist.irecv}
        for group in dict.fromkeys(message.group for message in messages):  # NCCL makes one operation of each group's
            those = [message for message in messages if message.group == group]
            works += dist.batch_isend_irecv([dist.P2POp(functions[m.sends], m.tensor, m.peer, m.group) for m in those])
        return works

    def post(self, message: Message) -> list[Any] | None:
        """As of `Transport`. NCCL has operations of one group wait for each other, so only groups of one sender and one
        receiver post: for them to proceed in parallel with all other groups, the device needs room for both."""
        if message.tensor.device.type == "cuda" and dist.get_world_size(message.group) > 2:
            return None
        return self.exchange([message])


class Staged:
    """Operations on copies in the host's memory; done when they return."""

    def collective(self, function: Callable[..., Any], group: Any, tensors: Sequence[Tensor | list[Tensor]]) -> list[Any]:
        """As of `Transport`."""
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
        """As of `Transport`."""
        staged = [message._replace(tensor=_staged(message.tensor, copied=message.sends)) for message in messages]
        _issued(messages[0].tensor)
        for work in Direct().exchange(staged):
            work.wait()
        for message, copy in zip(messages, staged, strict=True):
            if not message.sends:
                message.tensor.copy_(copy.tensor)
        return []

    def post(self, message: Message) -> list[Any] | None:
        """As of `Transport`."""
        staged = _staged(message.tensor, copied=False)
        return [_Arriving(message.tensor, staged, Direct().exchange([message._replace(tensor=staged)]))]


class _Arriving(NamedTuple):
    """A result that arrives in a buffer of its own, to be copied to a tensor. works: handles to wait for first."""

    tensor: Tensor
    buffer: Tensor
    works: list[Any]

    def wait(self) -> None:
        """Wait until it has arrived, and copy it to the tensor where that has other memory."""
        for work in self.works:
            work.wait()
        if self.buffer.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.buffer)


def _staged(tensor: Tensor, copied: bool) -> Tensor:
    """A tensor of the host's memory like another one, with its contents or without."""
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return buffer.copy_(tensor, non_blocking=True) if copied else buffer


def _parts(tensors: Tensor | list[Tensor]) -> list[Tensor]:
    """One tensor or a list of tensors, as a list."""
    return tensors if isinstance(tensors, list) else [tensors]


def _issued(tensor: Tensor) -> None:
    """Wait for the copies that the current stream of a tensor's device has been given."""
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()


TRANSPORTS: dict[str, Callable[[], Transport]] = {"direct": Direct, "staged": Staged}
