"""Train a model with Megatron-Bridge as bridge.yaml next to this file says: the sections and fields of its ConfigContainer.

    torchrun --nproc-per-node GPUS train.py [--steps 100] [--data PREFIX --tokenizer NAME] [--weights FOLDER] [--save FOLDER]

data: a prefix of Megatron's preprocess_data.py, without .bin or .idx; made-up data without it. tokenizer: a Hugging Face name
or folder. weights: a checkpoint of Megatron-Bridge, as AutoBridge.import_ckpt makes of a Hugging Face model; random ones
without it. Needs megatron-bridge, which needs Transformer Engine.
"""

import argparse
from pathlib import Path

import torch
import yaml
from megatron.bridge.models import GPTModelProvider
from megatron.bridge.training import config as bridge
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.core.activations import squared_relu

HERE = Path(__file__).parent
ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "squared_relu": squared_relu}
DATASET = {"random_seed": 1234, "reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}


def configuration(chosen: argparse.Namespace) -> bridge.ConfigContainer:
    """Megatron-Bridge's ConfigContainer for the sections of bridge.yaml and the command line's options; a field that a section
    does not have is an error of its class."""
    sections = yaml.safe_load((HERE / "bridge.yaml").read_text())
    model, precision, tokenizer = sections["model"], sections.get("mixed_precision"), sections["tokenizer"]
    model["activation_func"] = ACTIVATIONS[model["activation_func"]]
    if "window_size" in model:
        model["window_size"] = tuple(model["window_size"])
    if precision is not None:
        dtypes = {name: getattr(torch, precision[name]) for name in ("params_dtype", "pipeline_dtype")}
        precision = MixedPrecisionConfig(**{**precision, **dtypes})
    if chosen.tokenizer:
        tokenizer = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": chosen.tokenizer}
    blend = {"blend": ([chosen.data], None), "split": "99,1,0"} if chosen.data else {"blend": None, "split": "1,1,1"}
    checkpoint = {"save": chosen.save, "load": chosen.save, "save_interval": 1000, "pretrained_checkpoint": chosen.weights}
    return bridge.ConfigContainer(
        model=GPTModelProvider(**model),
        train=bridge.TrainingConfig(**sections["train"], train_iters=chosen.steps, eval_iters=0),
        ddp=bridge.DistributedDataParallelConfig(**sections["ddp"]),
        optimizer=bridge.OptimizerConfig(**sections["optimizer"]),
        scheduler=bridge.SchedulerConfig(lr_decay_style="cosine", start_weight_decay=0.1, end_weight_decay=0.1),
        dataset=bridge.GPTDatasetConfig(**sections["dataset"], **DATASET, **blend, dataloader_type="single"),
        logger=bridge.LoggerConfig(log_interval=1, log_throughput=True),
        tokenizer=bridge.TokenizerConfig(**tokenizer),
        checkpoint=bridge.CheckpointConfig(**checkpoint),
        mixed_precision=precision,
    )


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of this training script, parsed. arguments: the words of a command line; None for those of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    for name in ("data", "tokenizer", "weights", "save"):
        parser.add_argument(f"--{name}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(configuration(options()), forward_step)
