"""Runs scripts as torchrun does, but with one import of torch and transformers for all ranks of all scripts.

`python torch_scripts.py FOLDER WORLD "ARGUMENTS" ...` runs each folder's train.py on WORLD ranks with these arguments; their
output goes to FOLDER/out.txt. AdamW gets a large epsilon, without which its steps would not depend on the scale of gradients.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from transformers import GPT2LMHeadModel, LlamaForCausalLM

EPSILON = 0.1
IMPORTED = (GPT2LMHeadModel, LlamaForCausalLM)


def rank_of(folder: Path, rank: int, world: int, port: int, arguments: list[str]) -> int:
    """Start a rank of a folder's script in a process of its own, and return that process' id.

    rank, world: its number, and the number of ranks. port: the one at which the ranks meet. arguments: the script's.
    """
    process = os.fork()
    if process:
        return process
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": rank}
    os.environ |= {name: str(value) for name, value in names.items()}
    for stream in (1, 2):
        os.dup2(os.open(folder / "out.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT), stream)
    sys.argv = [str(folder / "train.py"), *arguments]
    torch.optim.AdamW = partial(torch.optim.AdamW, eps=EPSILON)  # type: ignore[misc, assignment]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def main() -> int:
    """Run all scripts that the command line names, one after the other, and return the number of ranks that failed."""
    failed = 0
    for index in range(1, len(sys.argv), 3):
        folder, world, arguments = Path(sys.argv[index]), int(sys.argv[index + 1]), sys.argv[index + 2].split()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [rank_of(folder, rank, world, port, arguments) for rank in range(world)]
        failed += sum(os.waitpid(one, 0)[1] != 0 for one in ranks)
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
