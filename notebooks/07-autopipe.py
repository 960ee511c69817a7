# %% [markdown]
# # AutoPipe against the optimum: pipelines cut at sub-layers
#
# A model is a chain of sub-layers. Cut it into `p` stages and send `m` micro-batches through them under 1F1B (AutoPipe, Section
# III). Stage $x$ takes $f_x$ for a forward and $b_x$ for a backward pass, and $c_x$ for a message from the stage before:
#
# $$t(x, y, 0) = \max\{\, t(x-1, y-1, 0) + f_{x-1},\; t(x, y-1, 1) + b_x \,\} + c_x$$
# $$t(x, y, 1) = \max\{\, t(x+1, y, 1) + b_{x+1},\; t(x, y, 0) + f_x \,\} + c_{x+1}$$
#
# Each maximum may fall to either side in every block, so the step is a longest path through all passes. No formula over stage
# times gives it: every partition has to be simulated, and a proof has to bound what is not.

# %%
# %matplotlib inline
from itertools import pairwise

import pandas as pd

import trainplan as tp

METHODS = ["exact", "autopipe", "algorithm-1", "megatron", "piper", "dapple"]


def build(stages, model="gpt2-345m", **options):
    shape = {"pipeline": stages, "micro_batches": 2 * stages, "dp": 1, "tp": 1, "batch": 8 * stages}
    options = {"recompute": True, "ignore_memory": True, **options}
    return tp.build("pipeline-partition", model=model, dtype="float32", cluster="autopipe-3090-16", **shape, **options)


instance = build(4)
compared = tp.compare(instance, METHODS, time_limit=None)
assert compared.contradictions == [] and compared.results[0].status == "optimal"
compared

# %%
compared.picture(title="GPT-2 345M, 4 stages, 8 micro-batches")

# %% [markdown]
# At four stages AutoPipe and Piper find the optimum, and cannot know it: their bars reach below. Even numbers of layers, as
# Megatron-LM has them, cost most, since the head takes as long as several layers. The step of the optimum and of these even
# stages, pass by pass; the critical path is outlined:

# %%
steps = {name: tp.simulate(instance, method=name) for name in ("exact", "megatron")}
tp.draw_timelines({name: step.timeline for name, step in steps.items()})

# %% [markdown]
# ## Over depths
#
# How far each planner is above the proven optimum. No heuristic is the best at every depth, and the deeper the
# pipeline, the less an even cut fits.

# %%
depths = {}
for stages in (2, 4, 6, 8):
    one = tp.compare(build(stages), METHODS, time_limit=None)
    assert one.contradictions == [] and one.results[0].status == "optimal"
    depths[stages] = one.frame().set_index("method")["above"]
pd.DataFrame(depths).rename_axis(columns="stages").style.format("{:.2%}")

# %% [markdown]
# ## Slicing micro-batches
#
# The slicer cuts the forward passes of the first micro-batches in two, so that the last stage begins after halves. How many
# have to be cut? Start-up needs one. The step gains most if the whole micro-batch after the halves comes in time, too.

# %%
sliced = [tp.simulate(instance, solution=compared.results[0].solution, sliced=count).timeline for count in range(4)]
assert all(after.time_ns <= before.time_ns for before, after in pairwise(sliced))
pd.DataFrame([{"sliced": n, "startup_ns": one.startup_ns, "step_ns": one.time_ns} for n, one in enumerate(sliced)])

# %%
tp.draw_timelines({f"{count} sliced": sliced[count] for count in (0, 1, 3)})

# %% [markdown]
# ## Memory
#
# The first stage holds the most micro-batches in flight. AutoPipe's search knows no memory, so where there is little it may
# find nothing that fits; the optimum keeps the limit as it searches, and says when nothing does. Eight stages without
# recomputation:

# %%
roomy = build(8, "gpt2-1.3b", recompute=False, ignore_memory=False)
most = tp.solve(roomy).evaluation["peak_bytes"]
limits = [int(share * most) for share in (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)]
points = tp.frontier(roomy, limits, ["exact", "autopipe", "piper"], time_limit=None)
points.picture(title="GPT-2 1.3B, 8 stages")

# %%
points
