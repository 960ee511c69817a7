# %% [markdown]
# # Start here: Llama-3 8B on 64 H100, from a question to a launch
#
# You have a model and a cluster. Which layout trains fastest, does it fit, how far is it from the best possible, and what do
# you start? A model and a cluster have names (`trainplan model`, `trainplan cluster` list them), or files of your own. The
# numbers below are predictions from shapes and data sheets: nothing here needs a GPU.

# %%
# %matplotlib inline
import pandas as pd
from IPython.display import Markdown

import trainplan as tp

request = {"model": "llama3-8b", "cluster": "h100:8x8", "batch": 512, "sequence": 8192}
planned = tp.plan(**request, for_="megatron", gap=1e-3)
planned

# %% [markdown]
# This is the best plan that Megatron-LM can run (`for_`). Read it from above: the *predicted time* simulates the programs that
# would run, and everything printed as predicted comes from it. The *solver's objective* is what was minimised; its *bound* is
# proven: no plan of this problem is below it. The *price of for megatron* says how much a plan free of Megatron-LM's limits
# could save. *One strategy* is the best plan that treats all layers alike, the usual recipe.

# %%
tp.draw_plan(planned.plan, planned.performance)

# %% [markdown]
# Tokens per second, the share of the devices' peak that the model uses (MFU), and where the device's time goes:

# %%
performance = planned.performance
shown = ["tokens_per_s", "tokens_per_s_per_device", "mfu", "compute", "exposed_communication", "bubble"]
pd.Series({name: getattr(performance, name) for name in shown}, name="predicted").to_frame()

# %% [markdown]
# Where the memory of a device goes, in GiB, stage by stage. Activations are what micro-batches in flight keep for their
# backward pass.

# %%
stages = pd.DataFrame([vars(stage) for stage in performance.stages]).set_index("stage")
(stages / 2**30).round(2).rename(columns=lambda name: name.replace("_bytes", "_gib"))

# %% [markdown]
# ## One strategy for all, next to the optimum
#
# Here the best plan has one strategy itself. With slow links, little memory and sub-layers that differ, it does not: for GPT-2
# 345M on 16 RTX 3090, stages and sub-layers differ, and the usual recipe takes the share longer that `above` gives.

# %%
mixed = tp.plan(model="gpt2-345m", dtype="float32", cluster="autopipe-3090-16", batch=16, gap=1e-4)
plans = {"optimum": mixed, "one strategy for all": mixed.uniform}
rows = [{"plan": name, **vars(result.performance)} for name, result in plans.items()]
compared = pd.DataFrame(rows)[["plan", "step_ns", "samples_per_s", "mfu", "bubble"]]
compared.assign(above=compared["step_ns"] / compared["step_ns"][0] - 1)

# %%
tp.draw_plan(mixed.plan, mixed.performance)

# %% [markdown]
# ## The files to start
#
# The plan as Megatron-LM's arguments: a launch script, one for Slurm, and a page that says what the runtime decides by
# itself. `trainplan export plan.json --to megatron -o folder` writes the same files.

# %%
exported = tp.export(planned.plan, "megatron")
assert exported.left_out == ()
Markdown(exported.files["README.md"].replace("\n## ", "\n#### ").replace("# llama3", "### llama3", 1))

# %%
print(exported.files["launch.sh"])
print("\n".join(exported.files["megatron_args.sh"].splitlines()[21:36]))
