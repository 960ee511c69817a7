"""Train a Hugging Face model with DeepSpeed as ds_config.json and run.json next to this file say.

    torchrun --nproc-per-node GPUS train.py [--steps 100] [--data tokens.bin] [--weights FOLDER]

tokens.bin: token ids one after the other, uint16 (uint32 where the vocabulary is larger); random tokens without it. weights: a
Hugging Face checkpoint; random weights without it. Needs torch, transformers 5 and deepspeed.
"""

import argparse
import json
import os
from pathlib import Path

import deepspeed
import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--data")
parser.add_argument("--weights")
parser.add_argument("--save")
arguments = parser.parse_args()
run, settings = (json.loads((HERE / name).read_text()) for name in ("run.json", "ds_config.json"))

deepspeed.init_distributed()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
config = transformers.AutoConfig.for_model(**run["model"], use_cache=False)
with deepspeed.zero.Init(config_dict_or_path=settings, enabled=settings["zero_optimization"]["stage"] == 3):
    dtype = getattr(torch, run["dtype"])
    if arguments.weights:
        model = transformers.AutoModelForCausalLM.from_pretrained(arguments.weights, dtype=dtype)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
if run["recompute"]:
    model.gradient_checkpointing_enable({"use_reentrant": False})
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)

length, rows, vocabulary = run["sequence"], run["micro_batch_samples"], run["model"]["vocab_size"]
tokens = np.memmap(arguments.data, np.uint16 if vocabulary <= 2**16 else np.uint32, "r") if arguments.data else None
for step in range(arguments.steps):
    for part in range(run["micro_batches"]):
        first = ((step * run["micro_batches"] + part) * world + rank) * rows  # sample by sample, over all ranks
        if tokens is None:
            source = torch.Generator().manual_seed(first)
            batch = torch.randint(vocabulary, (rows, length), generator=source)
        else:
            starts = [(first + row) * length % (len(tokens) - length) for row in range(rows)]
            batch = torch.from_numpy(np.stack([tokens[start : start + length].astype(np.int64) for start in starts]))
        batch = batch.to(engine.device)
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()
    if rank == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
if arguments.save:
    engine.save_checkpoint(arguments.save)
