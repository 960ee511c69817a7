"""Time, money and energy of a training: against examples by hand, over units, and with bad prices and sizes refused."""

from __future__ import annotations

import json
from functools import cache
from math import ceil, isclose
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainplan.profiling.base.quantities import format_power, format_span, parse_count
from trainplan.profiling.clusters.sheets import sheets

import trainplan as tp
from tests.helpers.calls import call
from tests.helpers.refusals import refused
from trainplan.planning.result import PlanningResult
from trainplan.prediction.training_costs import HOST_SHARE, LOAD_SHARE, CostRates, training_costs
from trainplan.screens.near import costs_rows

H100, L4 = sheets()["h100"].name, sheets()["l4"].name
REQUEST: dict[str, Any] = {"model": "gpt2", "batch": 16, "sequence": 1024, "for_": "megatron"}


@cache
def planned(cluster: str = "h100:2") -> PlanningResult:
    return tp.plan(cluster=cluster, comparisons=False, **REQUEST)


def test_an_example_by_hand() -> None:
    # 512 samples of 8192 tokens in a step of 10 s on 64 H100 at 2.50 an hour; 1.0e12 / 4,194,304 = 238,418.6 steps.
    costs = training_costs(10e9, 512 * 8192, {H100: 64}, CostRates(price=2.5, tokens="1T", pue=1.2))
    assert costs.training_steps == 238_419 and costs.training_seconds == 2_384_190
    assert costs.training_money is not None and isclose(costs.training_money, 2_384_190 / 3600 * 64 * 2.5)
    watts = 64 * 700 * (1 + 0.82) * 0.76 * 1.2  # 74.4 kW
    assert costs.step_energy_j is not None and isclose(costs.step_energy_j, 10 * watts)
    assert costs.training_energy_kwh is not None and isclose(costs.training_energy_kwh, 2_384_190 / 3600 * watts / 1000)
    assert costs.columns == {
        "price_per_device_hour": 2.5,
        "training_tokens": 10**12,
        "training_seconds": 2_384_190,
        "training_money": costs.training_money,
        "training_energy_kwh": costs.training_energy_kwh,
        "step_energy_j": costs.step_energy_j,
    }


def test_a_node_at_its_rating_has_the_power_of_its_data_sheet() -> None:
    at_rating = training_costs(1e9, 1, {H100: 8}, CostRates(load_share=1))  # a DGX H100 has at most 10.2 kW
    assert at_rating.step_energy_j is not None and isclose(at_rating.step_energy_j, 10_200, rel_tol=0.01)
    assert (HOST_SHARE, LOAD_SHARE) == (0.82, 0.76)


def test_devices_of_several_kinds_have_the_power_of_their_own_sheets() -> None:
    both = training_costs(1e9, 1, {H100: 2, L4: 3}, CostRates(load_share=1, host_share=0))
    assert both.step_energy_j == 2 * 700 + 3 * 72 and both.devices == 5


def test_the_given_power_is_that_at_load_and_needs_no_data_sheet() -> None:
    costs = training_costs(2e9, 1, {"a device of ours": 4}, CostRates(watts=250, host_share=0.5))
    assert costs.step_energy_j == 2 * 4 * 250 * 1.5 and costs.load_share is None and not costs.unknown_power


def test_without_a_data_sheet_there_is_no_energy_and_the_line_says_so() -> None:
    costs = training_costs(1e9, 100, {"a device of ours": 4}, CostRates(price=1, tokens=1000))
    assert costs.training_energy_kwh is None and costs.step_energy_j is None and costs.unknown_power == ("a device of ours",)
    assert costs.training_money is not None and isclose(costs.training_money, 10 * 4 / 3600)
    assert any("a device of ours" in text and "--watts" in text for text in costs.words())


@settings(deadline=None)
@given(st.integers(1, 10**15), st.integers(1, 10**8), st.floats(1e3, 1e12), st.integers(1, 10**5), st.floats(0.01, 1e4))
def test_totals_are_whole_steps_of_the_costs_of_one(
    tokens: int, a_step: int, step_ns: float, devices: int, price: float
) -> None:
    costs = training_costs(step_ns, a_step, {H100: devices}, CostRates(price=price, tokens=tokens))
    assert costs.training_steps is not None and (costs.training_steps - 1) * a_step < tokens <= costs.training_steps * a_step
    assert costs.training_money is not None and costs.step_money is not None and costs.training_energy_kwh is not None
    assert costs.training_seconds is not None and costs.step_energy_j is not None
    assert isclose(costs.training_money, costs.training_steps * costs.step_money)
    assert isclose(costs.training_energy_kwh * 3.6e6, costs.training_steps * costs.step_energy_j)
    assert isclose(costs.training_money, costs.training_seconds / 3600 * devices * price)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1T", 10**12), ("15.6T", 15_600 * 10**9), ("300b", 3 * 10**11), ("1e12", 10**12), ("5_000", 5000), ("8,000", 8000)],
)
def test_numbers_of_training_tokens_are_decimal(text: str, count: int) -> None:
    assert parse_count(text, "--tokens") == count == CostRates(tokens=text).training_tokens


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"price": -1}, "price"),
        ({"price": float("nan")}, "price"),
        ({"tokens": "many"}, "tokens"),
        ({"tokens": "0.5"}, "tokens"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": "9e30"}, "tokens"),
        ({"pue": 0.9}, "pue"),
        ({"watts": 0}, "watts"),
        ({"load_share": 1.5}, "load_share"),
        ({"host_share": -0.1}, "host_share"),
    ],
)
def test_bad_rates_are_refused(values: dict[str, Any], field: str) -> None:
    with refused(field, fix=r"" if field == "tokens" else "such as"):
        CostRates(**values)


def test_spans_and_powers_as_text() -> None:
    assert [format_span(seconds) for seconds in (0.5, 90, 7300, 3 * 86400, 5 * 365.25 * 86400)] == [
        *("0.5 s", "90 s", "2.03 h", "3 days", "5 years"),
    ]
    assert [format_power(watts) for watts in (700, 7752, 2.3e6)] == ["700 W", "7.752 kW", "2.3 MW"]


def test_a_plans_costs_are_of_its_own_predicted_step_and_tokens() -> None:
    answer = planned()
    costs = answer.training_costs(price=2, tokens="10B")
    assert costs is not None and answer.step_ns is not None and costs.training_money is not None
    steps = ceil(10**10 / (16 * 1024))
    assert costs.training_steps == steps and costs.training_seconds == steps * (answer.step_ns / 1e9)
    assert isclose(costs.training_money, steps * answer.step_ns / 1e9 / 3600 * 2 * 2)
    with pytest.raises(TypeError):
        answer.training_costs(prices=2)


def test_the_line_on_the_screen_is_one_and_its_json_has_the_numbers() -> None:
    costs = planned().training_costs(price=2, tokens="10B")
    assert costs is not None
    [(label, lines)] = costs_rows(costs)
    assert label == "COST" and len(lines) == 1 and lines[0][0].startswith("10B tokens: 610,352 steps")
    words = ("plan", "gpt2", "h100:2", "--batch", "16", "--seq", "1k", "--for", "megatron", "--json")
    done = call(*words, "--price", "2", "--tokens", "10B")
    assert json.loads(done.stdout)["costs"] == json.loads(json.dumps(costs.to_dict()))


def test_without_these_options_a_plan_has_no_costs() -> None:
    assert not CostRates().given
    done = call("plan", "gpt2", "h100:2", "--batch", "16", "--seq", "1k", "--for", "megatron", "--json")
    assert "costs" not in json.loads(done.stdout)


def test_the_command_refuses_before_it_plans() -> None:
    done = call("plan", "gpt2", "h100:2", "--batch", "16", "--seq", "1k", "--tokens", "lots")
    assert done.returncode == 2 and "--tokens" in done.stderr and not done.stdout
