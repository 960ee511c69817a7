# %% [markdown]
# # Solvers compared: one instance, every method
#
# Galvatron-BMW chooses a strategy for every layer by a dynamic program on a grid of memory levels (Algorithm 3). The same
# instance can be solved exactly: by label-setting in whole bytes and nanoseconds, by a MILP on HiGHS, by CP-SAT, and, where
# it is small, by trying every choice. Methods that share no code must not contradict each other.

# %%
# %matplotlib inline
import trainplan as tp

instance = tp.build(model="bert-huge-48", cluster="rtx-titan-8", batch=8, memory="8GiB")
instance

# %% [markdown]
# ## Every method on a small part
#
# Three layers of it under a limit that binds. `tp.compare` gives results and contradictions; there must be none, and the
# methods that prove their answer agree to the nanosecond.

# %%
content = instance.to_dict()
part = tp.load({**content, "layers": content["layers"][:3], "transitions_ns": content["transitions_ns"][:2]})
least = tp.solve(part.with_memory(2**20)).reason.least_memory_bytes
limit = round(1.1 * least)
compared = tp.compare(part.with_memory(limit), time_limit=None)
proven = [result for result in compared.results if result.status == "optimal"]
assert compared.contradictions == [] and len({result.objective for result in proven}) == 1
compared

# %% [markdown]
# How far each method's answer (dot) and its bound (bar) are from the best. A method without a proof has only what it found.

# %%
compared.picture(title=f"3 layers of BERT-Huge-48 within {limit / 2**30:.2f} GiB")

# %% [markdown]
# ## The whole model
#
# All 50 layers: trying every choice is out of the question. A frame of pandas takes the rows further.

# %%
whole = tp.compare(instance, ["exact", "galvatron-dp"], time_limit=None)
assert whole.contradictions == []
whole.frame()[["method", "status", "time_ns", "bound_ns", "gap", "above", "peak_bytes"]]

# %% [markdown]
# ## Where nothing fits
#
# The answer to an impossible question is the reason: the least memory that would do, and where in the step it is needed.

# %%
refused = tp.solve(instance.with_memory(2**30))
refused

# %% [markdown]
# ## Over memory limits
#
# From the least memory on: the optimum is proven at every point, and falls. The paper's dynamic program rounds each layer's
# memory up to its grid, so it finds nothing at the tightest limits and pays a little at others. Nothing in it says how much;
# the lower part of the picture, against the bound, does.

# %%
lowest = refused.reason.least_memory_bytes
free = tp.solve(instance.with_memory(2**47)).evaluation["peak_bytes"]
limits = [round(lowest * (1.02 * free / lowest) ** (step / 11)) for step in range(12)]
points = tp.frontier(instance, limits, ["exact", "galvatron-dp"], time_limit=None)
best = [point.result for point in points if point.result.method != "galvatron-dp"]
assert all(result.status == "optimal" for result in best)
points.picture(title="BERT-Huge-48 on 8 TITAN RTX")

# %%
points
