# %% [markdown]
# # The joint problem: everything chosen together, with proof
#
# Galvatron-BMW fixes where stages may be cut, AMP gives all layers one layout, AutoPipe cuts what has one strategy, and H3T has
# one stage. The joint problem decides all of it at once on equal devices: the number of stages $P$, cuts at any sub-layer,
# micro-batches $m$, and the strategy $s_l$ of every sub-layer, for the least *simulated* step:
#
# $$\min \max_x \; (\mathrm{end}_x + g_x + o_x) \qquad \text{subject to} \qquad
# \sum_{l \in x} \mathrm{state}_l + (n_x - 1) \sum_{l \in x} \mathrm{kept}_l + \max_{l \in x} \Big( \sum_{k \le l}
# \mathrm{kept}_k + \mathrm{work}_l \Big) \le E$$
#
# where $\mathrm{end}_x$ is when stage $x$ ends its last backward pass, $g_x$ reduces gradients, $o_x$ is the optimizer, and
# $n_x$ micro-batches are in flight. That is the predicted step of the plan's programs, so all planners' plans can be
# judged alike: by the prediction, not by what they minimise.

# %%
# %matplotlib inline
import pandas as pd

import trainplan as tp

GIB = 2**30
REQUEST = {"model": "gpt2-345m", "cluster": "autopipe-3090-16", "batch": 128}
planned = tp.plan(**REQUEST, pipeline=4, zero="0,1", gap=1e-4)
planned

# %% [markdown]
# Two constraints were set here, four stages and ZeRO 0 or 1, and each has its *price*: what the best plan without it would
# save, by the bounds of both. A price of nearly nothing says that a constraint may stay.

# %%
tp.draw_plan(planned.plan, planned.performance)

# %% [markdown]
# ## The certificate
#
# `certify` puts the evidence of the bound into the plan; `check` follows it without any solver, and says what it shows.

# %%
certified = tp.certify(planned)
checked = tp.check(certified.plan)
assert not checked.violations
pd.Series(vars(checked.claim), name="shown").to_frame()

# %% [markdown]
# ## What each paper's planner loses
#
# *Above* is how much longer its step takes than the joint optimum's; the *gap to bound* is against what is proven of any plan.
# H3T keeps states on the host, which the joint problem does not contain here.

# %%
rivals = tp.compare_planners(**REQUEST, gap=1e-4)
assert all(rival.above >= 0 for rival in rivals if rival.above is not None and rival.outside is None)
rivals

# %%
rivals.picture(title="GPT-2 345M, 16 x RTX 3090, 128 samples")

# %% [markdown]
# With other models and clusters other planners lose: BERT-Huge-32 on 8 TITAN RTX of 12 GiB each, and BERT-1.8B on 8 A100.

# %%
tp.compare_planners(model="bert-huge-32", cluster="rtx-titan-8", batch=64, memory="12GiB", gap=1e-4)

# %%
tp.compare_planners(model="bert-1.8b", cluster="h3t-a100-8", batch=128, dtype="float16", gap=1e-4)

# %% [markdown]
# ## Memory against step: the Pareto front
#
# BERT-Huge-48 on 8 devices, from 4 GiB to 24 GiB. Every point is proven, and the line falls: this is what a GiB more is worth.

# %%
instance = tp.build("joint", model="bert-huge-48", cluster="rtx-titan-8", batch=128)
front = tp.frontier(instance, [size * GIB for size in (4, 6, 8, 16, 24)], ["exact"], gap=1e-3, time_limit=None)
steps = list(front.frame()["time_ns"])
assert all(point.result.status == "optimal" for point in front) and steps == sorted(steps, reverse=True)
front.picture(title="BERT-Huge-48, 8 devices, 128 samples")

# %%
front
