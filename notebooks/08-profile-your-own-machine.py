# %% [markdown]
# # Profile your own machine: measure, plan, run, compare
#
# So far costs were estimated from data sheets. Here they are measured: a small GPT-2 on processes of this machine. The plan is
# made from the measured times, then run, and its prediction is compared with what its steps took. All numbers below are of the
# machine on which the notebook last ran; on yours they are others.

# %%
# %matplotlib inline
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

import trainplan as tp

machine = tp.detect(processes=2, gpus=lambda: None)  # two processes, also where there are GPUs
config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 512}
with TemporaryDirectory() as folder:
    path = Path(folder, "config.json")
    path.write_text(json.dumps({**config, "torch_dtype": "float32"}))
    profile = tp.profile(model=path, cluster=machine, rows=(1, 2), tp=(1,), measured=True, budget_seconds=4)
tp.draw_profile(profile)

# %% [markdown]
# Forward and backward time of every layer above, its memory below. `trainplan profile measure` writes such a profile to a file;
# `profile=` takes it wherever a model and a cluster are given.

# %%
planned = tp.plan(profile=profile, batch=2, pipeline=1, micro_batches=1, tp=1, comparisons=False, gap=1e-2)
planned

# %% [markdown]
# ## Predicted and measured
#
# The plan runs for some steps on two processes, back-end `serial`, and each step is timed. *Spread* is the half-width of the
# middle half of the steps. Layers were measured alone; where the cores are busy with other work, or the processes wait for each
# other's turn on them, a step of milliseconds takes many times longer, and the spread is large: look at it first.

# %%
trials = tp.trial([planned.plan], steps=6, warmup=2)
assert [trial.status for trial in trials.trials] == ["ran"]
trials

# %%
trials.picture(title="the plan, predicted and measured")

# %% [markdown]
# ## It computes what one process computes
#
# A run compares the gradients of all ranks with one process that has the whole batch.

# %%
report = tp.run(planned.plan, steps=2, dtype="float64")
assert report.gradient_difference < 1e-9
pd.Series({"gradients": report.gradient_difference, "parameters": report.parameter_difference}, name="difference").to_frame()
