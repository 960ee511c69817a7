"""Train a Hugging Face model with Accelerate as accelerate.yaml and run.json beside this file say.

    accelerate launch --config_file accelerate.yaml train.py [--steps 100] [--data tokens.bin] [--weights FOLDER]

tokens.bin: token ids one after the other, uint16 (uint32 where the vocabulary is larger); random tokens without it. weights: a
Hugging Face checkpoint; random weights without it. Needs torch, transformers 5 and accelerate.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import DistributedType

HERE = Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--data")
parser.add_argument("--weights")
parser.add_argument("--save")
asked = parser.parse_args()
run = json.loads((HERE / "run.json").read_text())

accelerator = Accelerator(gradient_accumulation_steps=run["micro_batches"])
rank, world = accelerator.process_index, accelerator.num_processes
torch.manual_seed(0)
config = transformers.AutoConfig.for_model(**run["model"], use_cache=False)
if asked.weights:
    model = transformers.AutoModelForCausalLM.from_pretrained(asked.weights, dtype=torch.float32)
else:
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
if run["recompute"] and accelerator.distributed_type != DistributedType.FSDP:  # whose own is in accelerate.yaml
    model.gradient_checkpointing_enable({"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr, betas=(0.9, 0.95), weight_decay=0.1)
model, optimizer = accelerator.prepare(model, optimizer)

length, rows, vocabulary = run["sequence"], run["micro_batch_samples"], run["model"]["vocab_size"]
tokens = np.memmap(asked.data, np.uint16 if vocabulary <= 2**16 else np.uint32, "r") if asked.data else None
for step in range(asked.steps):
    for part in range(run["micro_batches"]):
        first = ((step * run["micro_batches"] + part) * world + rank) * rows  # sample by sample, over all ranks
        if tokens is None:
            source = torch.Generator().manual_seed(first)
            batch = torch.randint(vocabulary, (rows, length), generator=source)
        else:
            places = [(first + row) * length % (len(tokens) - length) for row in range(rows)]
            batch = torch.from_numpy(np.stack([tokens[place : place + length].astype(np.int64) for place in places]))
        batch = batch.to(accelerator.device)
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
if asked.save:
    accelerator.save_state(asked.save)
