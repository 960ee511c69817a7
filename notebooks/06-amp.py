# %% [markdown]
# # AMP against the optimum: mixed devices, models and shares
#
# A step runs on `pp` stages x `dp` pipelines x `tmp` tensor-parallel ranks, in micro-batches of `mbs` samples. It takes as long
# as the slowest pipeline and the slowest synchronisation of gradients (AMP, Eq. 4); a pipeline is held up by its slowest stage
# (Eq. 5):
#
# $$T = \max_i T_i + \max_d D_d, \qquad T_i = (gas_i - 1) \max_j t_{j,i} + \sum_j e_{j,i} + \sum_j t_{j,i}$$
#
# AMP's Algorithm 1 enumerates the degrees, places devices by a rule and cuts the layers at best. The optimum decides all of it
# together and proves that nothing is faster.

# %%
# %matplotlib inline
import pandas as pd

import trainplan as tp

METHODS = ["exact", "amp", "megatron", "random", "simulated-annealing"]
request = {"model": "amp-gpt2", "batch": 32, "dtype": "float16", "tied": False}
alike = tp.build("cluster-strategy", cluster="amp-homogeneous-16", **request)
compared = tp.compare(alike, METHODS, time_limit=None)
assert compared.contradictions == []
compared

# %% [markdown]
# GPT-2 with 24 layers on four nodes of four T4 each (Section 4.3). Next to equal devices little is left to gain. On three nodes
# of V100 and one of T4 there is more:

# %%
mixed = tp.build("cluster-strategy", cluster="amp-heterogeneous-16", **request)
found = tp.compare(mixed, METHODS, time_limit=None)
assert found.contradictions == [] and found.results[0].status == "optimal"
found

# %%
found.picture(title="GPT-2 on 12 V100 and 4 T4")

# %% [markdown]
# Where AMP's heuristic leaves the slow node, and where the optimum puts it:

# %%
solutions = {result.method: result.solution for result in found.results[:2]}
tp.draw_placements(mixed, solutions)

# %%
tp.draw_placement(mixed, found.results[0].solution, title="optimum")

# %% [markdown]
# What each step brings. The published code averages mixed devices into one kind when it cuts layers; the paper's heuristic puts
# devices on ranks in the order of the nodes. Both can be lifted, one after the other; every time is that of the real mix.

# %%
steps = {
    "AMP, average layer times": tp.solve(mixed, "amp", layer_times="average"),
    "AMP, times of each device": found.results[1],
    "placement and cuts together": found.results[0],
}
lifted = pd.DataFrame([result.row() for result in steps.values()], index=list(steps))[["time_ns", "bound_ns", "peak_bytes"]]
lifted.assign(speed=lifted["time_ns"].iloc[0] / lifted["time_ns"])

# %% [markdown]
# ## A model of unlike layers
#
# TransGAN's generator has layers of two sizes (Table 5): here the assignment of layers to stages matters. For stages and
# micro-batches that are given, the paper's dynamic program (Eq. 6 to 8) finds the proven optimum; uniform stages do not.

# %%
gan = {"model": "amp-transgan", "cluster": "amp-p3-16", "batch": 64, "dtype": "float16"}
stages = tp.build("stage-assignment", pipeline=8, micro_batches=32, **gan)
cuts = tp.compare(stages, ["exact", "amp-dp", "uniform-layers", "uniform-parameters"], time_limit=None)
assert cuts.contradictions == [] and cuts.results[1].objective == cuts.results[0].bound
cuts

# %%
cuts.picture(title="TransGAN's layers on 8 stages")

# %% [markdown]
# ## Memory
#
# AMP models no memory. Here each device has a tenth less than AMP's favourite needs: Algorithm 1 ranks it first all the same
# and answers with the first candidate that fits, however far down. The optimum keeps the limit as it searches.

# %%
wanted = compared.results[1].evaluation["peak_bytes"]
tight = tp.build("cluster-strategy", cluster="amp-homogeneous-16", memory=int(0.9 * wanted), **request)
blind = tp.compare(tight, ["exact", "amp"], time_limit=None)
blind

# %%
candidates = pd.DataFrame(blind.results[1].statistics["candidates"])
candidates[["pp", "dp", "tmp", "mbs", "time_ns", "peak_bytes", "fits"]].head(8)
