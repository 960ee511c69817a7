# %% [markdown]
# # H3T: memory switches against the memory limit
#
# Every layer has seven switches (H3T, Section 3.2): recompute what its backward pass needs (`ckpt`), move its input to the host
# (`offload_hidden`), gather its parameters a second time (`partition`), keep no shard of them on the device (`lazy_prefetch`),
# two economical orders of its copies (`eco_forward`, `eco_backward`), and wait for all streams (`segment_sync`). Each trades
# memory against time. The paper solves it by dynamic programming on a grid of $m$ memory levels; the same chain can be solved
# in whole bytes, with proof.

# %%
# %matplotlib inline

import pandas as pd

import trainplan as tp

instance = tp.build("memory-switches", model="bert-1.8b", cluster="h3t-2080ti-8", batch=32, dtype="float16")
refused = tp.solve(instance.with_memory(2**27))
refused

# %% [markdown]
# Below a certain memory nothing fits, by proof. From there to what the device has, every method under each limit:

# %%
least = refused.reason.least_memory_bytes
assert tp.solve(instance.with_memory(least - 1)).status == "infeasible"
limits = [round(least * (instance.memory_bytes / least) ** (step / 6)) for step in range(7)]
methods = ["exact", "h3t-dp", "h3t-greedy", "random", "manual", "zero-2", "zero-3"]
points = tp.frontier(instance, limits, methods, time_limit=None)
best = {point.memory_bytes: point.result for point in points[: len(limits)]}
assert all(result.status == "optimal" for result in best.values())
for point in points:  # no method is below the optimum, and none needs more than the limit
    found = point.result
    assert found.objective is None or found.objective >= best[point.memory_bytes].bound
    assert found.objective is None or found.evaluation["peak_bytes"] <= point.memory_bytes
points.picture(title="BERT-1.8B on 8 RTX 2080 Ti, batch 32")

# %% [markdown]
# The optimum is the black line, and a line begins where its method first finds anything. The lower part is the distance to the
# proven bound, which the paper's program cannot know of itself.

# %%
frame = points.frame()
frame["memory_gib"] = (frame["memory_bytes"] / 2**30).round(2)
(frame.pivot_table(index="method", columns="memory_gib", values="time_ns", sort=False) / 1e6).round(1)

# %% [markdown]
# ## The streams of one step
#
# The optimum and the paper's DP under one limit: operations on the streams, the memory that the device holds with its limit
# dashed, and the switches of each layer. The DP rounds memory up to the next of 128 levels in every layer, so it leaves memory
# unused; the optimum fills it with layers that are not recomputed.

# %%
limit = limits[5]
limited = instance.with_memory(limit)
dp = next(point.result for point in points if point.result.method == "h3t-dp" and point.memory_bytes == limit)
tp.draw_switches(limited, best[limit].solution, title="optimum")

# %%
tp.draw_switches(limited, dp.solution, title="the paper's DP")

# %%
both = {"optimum": best[limit].evaluation, "the paper's DP": dp.evaluation}
pd.DataFrame({name: {"unused_mib": (limit - one["peak_bytes"]) / 2**20, **one["layers_on"]} for name, one in both.items()})

# %% [markdown]
# ## Several solvers on one instance
#
# Embedding and three layers under a limit that binds: methods that share no search agree.

# %%
small = instance.part(0, 4)
low = tp.solve(small.with_memory(2**27)).reason.least_memory_bytes
compared = tp.compare(small.with_memory(round(1.1 * low)), ["brute-force", "exact", "milp", "cpsat", "h3t-dp"], time_limit=None)
assert compared.contradictions == [] and len({result.objective for result in compared.results[:4]}) == 1
compared
