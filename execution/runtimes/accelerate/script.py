"""Train a Hugging Face model with Accelerate as accelerate.yaml and run.json next to this file say.

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
from accelerate import Accelerator, init_empty_weights
from accelerate.utils import DistributedType
from safetensors import safe_open
from torch.distributed.tensor import distribute_tensor

HERE = Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--data")
parser.add_argument("--weights")
parser.add_argument("--save")
arguments = parser.parse_args()
run = json.loads((HERE / "run.json").read_text())

accelerator = Accelerator(gradient_accumulation_steps=run["micro_batches"])
rank, world, device = accelerator.process_index, accelerator.num_processes, accelerator.device
sharded = accelerator.distributed_type == DistributedType.FSDP
torch.manual_seed(0)
config = transformers.AutoConfig.for_model(**run["model"], use_cache=False)


def filled(model: torch.nn.Module) -> None:
    """Give memory to this rank's shards, and the stored values or those that the model begins with: no rank ever has all."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    if not arguments.weights:
        for module in model.modules():
            module._is_hf_initialized = False
        model.init_weights()
        return
    files = [safe_open(path, "pt") for path in Path(arguments.weights).glob("*.safetensors")]
    stored = {name.removeprefix("transformer."): (file, name) for file in files for name in file.keys()}  # noqa: SIM118
    for name, parameter in model.named_parameters():
        file, key = stored[name.replace("_checkpoint_wrapped_module.", "").removeprefix("transformer.")]
        value = file.get_tensor(key).to(device, parameter.dtype)
        with torch.no_grad():  # every rank reads, and keeps its part
            parameter.copy_(distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None))


bare = sharded and not config.tie_word_embeddings  # a tied matrix trains otherwise once it is filled anew
if bare:
    with init_empty_weights():  # on no device: hosts would have to hold a whole model for each of their ranks
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
elif arguments.weights:
    device_map = {} if sharded else {"device_map": device}
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.weights, dtype=torch.float32, **device_map)
else:
    with torch.device("cpu") if sharded else device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
if run["recompute"] and not sharded:  # FSDP's own is in accelerate.yaml
    model.gradient_checkpointing_enable({"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
if bare:
    filled(model)
    # `prepare` tells parameters apart by their addresses, and without memory they have none.
    optimizer.param_groups[0]["params"] = list(model.parameters())

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
        batch = batch.to(device)
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
if arguments.save:
    accelerator.save_state(arguments.save)
