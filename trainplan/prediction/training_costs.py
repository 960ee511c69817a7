"""Time, money and energy of a whole training, from the predicted step of a plan.

    steps    tokens to train / (samples of a step x tokens of a sample), rounded up: the last step is a whole one
    time     steps x step; restarts, evaluation and checkpoints are not counted
    money    time x devices x price of a device-hour, in whatever currency the price is in
    power    devices x their rated power x (1 + HOST_SHARE) x LOAD_SHARE x PUE
    energy   time x power

A device's rated power is that of its data sheet (`power_watts`). HOST_SHARE is the rated power of the rest of a node, for each
watt of its devices: a DGX H100 has at most 10.2 kW (NVIDIA's data sheet, 2023), of which eight devices of 700 W are 5.6 kW.
LOAD_SHARE is the share of a node's rated power that training draws: 76 % of 10.2 kW for computationally intensive workloads on
nodes of eight H100 (arXiv 2506.14551); the most was 8.4 kW (arXiv 2412.08602). Both shares are used for devices of all kinds,
and can be replaced. PUE (power usage effectiveness) is the power of the building over that of its nodes, 1 unless given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from trainplan.formulations.plan.plan import Plan
from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown
from trainplan.profiling.base.quantities import format_count, format_power, format_span, parse_count
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.clusters.sheets import sheets

LOAD_SHARE = 0.76
HOST_SHARE = round(10_200 / (8 * 700) - 1, 2)
HOUR_S, KWH_J = 3600, 3_600_000
MOST_TOKENS = 10**18
RANGES = {  # least and largest value of each rate, and an example
    "price": (0.0, 1e6, "2.5 for 2.50 a device-hour"),
    "pue": (1.0, 10.0, "1.2"),
    "watts": (1.0, 1e5, "700"),
    "load_share": (0.01, 1.0, "0.76"),
    "host_share": (0.0, 10.0, "0.82"),
}


@dataclass(frozen=True, kw_only=True)
class CostRates:
    """Numbers from which the costs of a training follow: a price, power, and the tokens to train on.

    Attributes:
        price: Money for one device-hour, such as 2.5, in any currency.
        tokens: Tokens to train on, such as 1T or 300B (thousands are decimal).

            Or a number.
        pue: Power of the building over that of its nodes. (default: 1).
        watts: Power of a device in W at load, without its host (default: that of its data sheet, at 76 %).
        load_share: share of the rated power that training draws; not applied to `watts`.
        host_share: power of the rest of a node for each watt of its devices.
    """

    price: float | None = None
    tokens: str | int | None = None
    pue: float | None = None
    watts: float | None = None
    load_share: float = LOAD_SHARE
    host_share: float = HOST_SHARE

    def __post_init__(self) -> None:
        """Raise InputError for a rate outside of its range (RANGES), and for a number of tokens that cannot be read."""
        for name, (least, most, example) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and least <= value <= most):
                problem = f"is {shown(value)}"
                raise InputError(
                    COMMAND_LINE, f"--{name.replace('_', '-')}", problem, f"give {least:g} to {most:g}, such as {example}"
                )
        self.training_tokens  # noqa: B018 (raises for bad texts)

    @property
    def training_tokens(self) -> int | None:
        """The tokens to train on, as a number; None if they are not given."""
        count = parse_count(self.tokens, "--tokens") if isinstance(self.tokens, str) else self.tokens
        if count is not None and not 1 <= count <= MOST_TOKENS:
            raise InputError(COMMAND_LINE, "--tokens", f"is {shown(self.tokens)}", "give 1 to 10^18, such as 1T or 300B")
        return count

    @property
    def given(self) -> bool:
        """Whether a price, tokens, a power or a PUE is given, so that costs are wanted."""
        return any(value is not None for value in (self.price, self.tokens, self.pue, self.watts))


@dataclass(frozen=True)
class TrainingCosts:
    """Time, money and energy of a step and of a whole training; fields are None for what follows from no given number.

    Attributes:
        devices: the number of devices.
        price_per_device_hour: money for one device-hour.
        training_tokens: tokens to train on.
        training_steps: steps that the training takes, the last one whole.
        training_seconds: time of all steps.
        training_money: price of all devices in that time.
        training_energy_kwh: energy in that time, with hosts and building.
        step_money: price of all devices in one step.
        step_energy_j: energy of one step in joules, with hosts and building.
        device_watts: mean power of a device with its share of the host and of the building, in W.
        pue: power of the building over that of its nodes.
        load_share: share of rated power that is drawn; None if the power at load was given.
        host_share: power of the rest of a node for each watt of its devices.
        unknown_power: kinds of device whose power is not known, so that no energy is.
    """

    devices: int
    price_per_device_hour: float | None
    training_tokens: int | None
    training_steps: int | None
    training_seconds: float | None
    training_money: float | None
    training_energy_kwh: float | None
    step_money: float | None
    step_energy_j: float | None
    device_watts: float | None
    pue: float
    load_share: float | None
    host_share: float
    unknown_power: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The costs as a JSON-ready dict. Keys: `devices`, `price_per_device_hour`, `training_tokens`, `training_steps`,
        `training_seconds`, `training_money`, `training_energy_kwh`, `step_money`, `step_energy_j` (J), `device_watts`, `pue`,
        `load_share`, `host_share` (fractions) and `unknown_power` (names of kinds of device)."""
        return asdict(self) | {"unknown_power": list(self.unknown_power)}

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a study's row that the costs fill, by name; those that were not requested are None."""
        names = ("price_per_device_hour", "training_tokens", "training_seconds", "training_money", "training_energy_kwh")
        return {name: getattr(self, name) for name in (*names, "step_energy_j")}

    def words(self) -> list[str]:
        """The costs as texts that are printed on one line with dots between them: of the whole training if its tokens are
        given, else of a step."""
        energy = self._energy_words()
        price = "" if self.price_per_device_hour is None else f" at {self.price_per_device_hour:g} a GPU-hour"
        if self.training_seconds is None or self.training_steps is None or self.training_tokens is None:
            money = [] if self.step_money is None else [f"{self.step_money:.4g} a step{price}"]
            return money + energy
        time = (
            f"{format_count(self.training_tokens)} tokens: {self.training_steps:,} steps, {format_span(self.training_seconds)}"
        )
        money = (
            []
            if self.training_money is None
            else [f"{self.training_money:,.{0 if self.training_money >= 1000 else 2}f}{price}"]
        )
        return [time, *money, *energy]

    def _energy_words(self) -> list[str]:
        """The energy as a list of one text, with what it assumes."""
        if self.step_energy_j is None or self.device_watts is None:
            return [f"no energy: the power of {', '.join(self.unknown_power)} is not known (--watts)"]
        joules = self.step_energy_j if self.training_energy_kwh is None else self.training_energy_kwh * KWH_J
        text = f"{joules:.4g} J a step" if self.training_energy_kwh is None else f"{format_power(joules / HOUR_S)}h"
        return [f"{text} ({self.device_watts:.0f} W a GPU with its host, PUE {self.pue:g})"]


def training_costs(step_ns: float, tokens_per_step: int, devices: Mapping[str, int], rates: CostRates) -> TrainingCosts:
    """Time, money and energy of a step and of a training.

    Args:
        step_ns: the predicted time of a step in ns.
        tokens_per_step: samples of a step times tokens of a sample.
        devices: by the name of a kind of device, how many of it there are; a data sheet of this name gives its power.
        rates: price, tokens to train on, and power.

    Raises:
        InputError: for tokens that are no number.
    """
    count, tokens, seconds = sum(devices.values()), rates.training_tokens, step_ns / 1e9
    steps = None if tokens is None else -(-tokens // tokens_per_step)
    rated = {described.name: described.power_watts for described in sheets().values()}
    unknown = () if rates.watts is not None else tuple(kind for kind in devices if rated.get(kind) is None)
    at_load = [n * (rates.watts or (rated.get(kind) or 0) * rates.load_share) for kind, n in devices.items()]
    pue = 1.0 if rates.pue is None else rates.pue
    watts = None if unknown else sum(at_load) * (1 + rates.host_share) * pue
    step_money = None if rates.price is None else seconds / HOUR_S * count * rates.price
    step_energy_j = None if watts is None else watts * seconds
    return TrainingCosts(
        devices=count,
        price_per_device_hour=rates.price,
        training_tokens=tokens,
        training_steps=steps,
        training_seconds=None if steps is None else steps * seconds,
        training_money=None if steps is None or step_money is None else steps * step_money,
        training_energy_kwh=None if steps is None or step_energy_j is None else steps * step_energy_j / KWH_J,
        step_money=step_money,
        step_energy_j=step_energy_j,
        device_watts=None if watts is None else watts / count,
        pue=pue,
        load_share=None if rates.watts is not None else rates.load_share,
        host_share=rates.host_share,
        unknown_power=unknown,
    )


def plan_costs(plan: Plan, step_ns: float, cluster: Cluster | None, rates: CostRates) -> TrainingCosts:
    """Time, money and energy of a plan's step and of a training with it.

    Args:
        plan: the training plan; paid for are the devices that it uses.
        step_ns: its predicted step in ns.
        cluster: the devices; None if they are known by a profile only, whose power is not known.
        rates: price, tokens to train on, and power.
    """
    kinds = ["the measured devices"] * plan.world if cluster is None else cluster.device_kinds
    used = Counter(kinds[device] for device in plan.placement or range(plan.world))
    return training_costs(step_ns, plan.batch.global_samples * plan.planned_model().tokens, used, rates)
