# %% [markdown]
# # Studies and the library: methods on many instances
#
# The library has instances of all planning problems, each with its best known solution, its bound, and evidence that a checker
# of plain Python follows. A study solves each cell in a process of its own, keeps the results in a folder, and goes on where it
# ended.

# %%
# %matplotlib inline
from tempfile import mkdtemp

import trainplan as tp

library = tp.library()
library.frame().groupby(["problem", "status"]).size().unstack(fill_value=0)

# %% [markdown]
# ## Two methods on ten instances
#
# H3T's dynamic program rounds memory to a grid; label-setting is exact. Both choose what every layer recomputes and offloads.

# %%
known = [row["name"] for row in library.rows() if row["problem"] == "memory-switches" and not row["infeasible"]][:10]
study = tp.study(
    {
        "name": "h3t",
        "instances": [f"library:{name}" for name in known],
        "methods": ["exact", "h3t-dp"],
        "limits": {"time_limit": 20},
    },
    folder=mkdtemp(),
    jobs=2,
)
study

# %% [markdown]
# A performance profile (Dolan and Moré): for each method, the share of instances on which its step is within a factor of the
# best.

# %%
study.picture("profile", measure="value")

# %%
study.summary()

# %% [markdown]
# Any question to the results is a query. The exact method never does worse than what the library knows.

# %%
study.sql("select method, count(*) as cells, avg(seconds) as mean_seconds, max(gap) as largest_gap from cells group by all")

# %%
best = {entry.name: entry.upper_bound.value for entry in map(library.__getitem__, known)}
exact = {row["library"]: row["value_ns"] for row in study.rows() if row["method"] == "exact"}
assert exact == best
