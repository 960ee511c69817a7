"""Cases of Hetu-Galvatron's own tests of its search (test_parallelsim_optimization.py), and one more, by its switches.

Expected is what its published engine (2.4.0 from PyPI, with both orders of ranks) answers: its tests' own numbers are of other
versions.
Its profile is a made one: times of a parabola through eight sequence lengths, memory at 8192 tokens with the parameters of 512.
28 layers of hidden size 3584, 64 samples on 8 devices of 36 GiB, gradients reduced with every micro-batch.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import trainplan as tp
from tests.helpers.refusals import refused

LAYER_MS = [12.4057201385498, 28.454231262207003, 39.43479309082031, 52.60663909912111]
LAYER_MS += [70.75289154052746, 82.6971145629883, 106.13850097656245, 123.1998901367187]
ENDS_MS = [31.97360305786134, 56.27244796752933, 86.6235107421875, 121.2523483276367]
ENDS_MS += [141.90354614257797, 177.68662719726558, 197.4156311035157, 225.79444885253918]
KEPT = {"1": 2088.28955078125, "2": 1044.144775390625, "4": 522.0723876953125, "8": 261.03619384765625, "checkpoint": 56.0}
PARAMETER_MIB = 973.771484375
ENDS = {
    "off": ([16768.54296875, 8384.271484375, 4192.1357421875, 2096.06787109375], 5487.8828125),
    "on_first": ([8351.5009765625, 4175.75048828125, 2087.875244140625, 1043.9376220703125], 787.1483154296875),
    "on_last": ([8351.5556640625, 4175.77783203125, 2087.888916015625, 1043.9444580078125], 5073.4478759765625),
}
BANDWIDTHS = {"8_consec_1": 160.445, "4_consec_1": 164.272, "4_consec_0": 165.493, "2_consec_1": 155.647, "2_consec_0": 153.933}
MESSAGE_MS = {  # of 1, 2, 4, .. 1024 MB
    8: [0.07895, 0.1094, 0.1333, 0.1827, 0.2941, 0.4157, 0.6519, 1.2826, 2.3584, 4.6768, 8.1409],
    4: [0.07981, 0.09109, 0.1091, 0.1581, 0.2183, 0.3205, 0.5848, 1.0725, 2.0709, 3.7352, 7.1874],
    2: [0.0703, 0.07932, 0.09008, 0.1084, 0.1434, 0.2281, 0.3924, 0.7417, 1.3887, 2.6886, 5.1594],
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    times = {f"layertype_0_bsz1_seq{4096 * i}": ms for i, ms in enumerate(LAYER_MS, 1)}
    times |= {f"layertype_other_bsz1_seq{4096 * i}": ms for i, ms in enumerate(ENDS_MS, 1)}
    memory: dict[str, Any] = {
        "layertype_0_sp": {"8192": {"parameter_size": 973.0283203125, "tp_activation_per_bsz_dict": KEPT}}
    }
    for end, (states, activation) in ENDS.items():
        by_tp = {str(1 << i): value for i, value in enumerate(states)}
        halves = {str(1 << i): activation / (1 << i) for i in range(4)}
        memory[f"other_memory_pp_{end}_sp"] = {"8192": {"model_states": by_tp, "activation": halves}}
    contents = {
        "computation_profiling_bf16_llama": times,
        "memory_profiling_bf16_llama": memory,
        "allreduce_bandwidth_1nodes_8gpus_per_node": {f"allreduce_size_{key}": value for key, value in BANDWIDTHS.items()},
        "p2p_bandwidth_1nodes_8gpus_per_node": {"pp_size_2": 147.32, "pp_size_4": 133.469, "pp_size_8": 108.616},
        "overlap_coefficient": {"overlap_coe": 1.1534195950157762},
        "sp_time_1nodes_8gpus_per_node": {
            f"allreduce_size_{ranks}_{1 << i}MB_time": ms for ranks, row in MESSAGE_MS.items() for i, ms in enumerate(row)
        },
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("switches", "throughput", "names", "choice"),
    [
        (
            {"micro_batches": 32, "async_grad_reduce": False},
            2.807425752146092,
            ["tp8-ckpt"] * 8 + ["tp8"] * 20,
            {"vocabulary_tp": 8, "sharded": False},
        ),
        (
            {"micro_batches": 8, "async_grad_reduce": False, "uniform": True},
            2.5234175322885535,
            ["sdp8-ckpt"] * 28,
            {"vocabulary_tp": 1, "sharded": True},
        ),
        (
            {"micro_batches": 16, "most_tp": 2, "most_stages": 2},
            2.549458309299406,
            ["sdp4-tp2-ckpt"] * 25 + ["sdp4-tp2"] * 3,
            {"vocabulary_tp": 2, "sharded": True},
        ),
    ],
    ids=["fine-grained", "uniform", "narrow"],
)
def test_the_engines_golden_cases(
    files: Path, switches: dict[str, Any], throughput: float, names: list[str], choice: dict[str, Any]
) -> None:
    shape = {"layers": 28, "sequence": 8192, "hidden_size": 3584, "parameter_mib": PARAMETER_MIB, "both_orders": True}
    instance = tp.build("galvatron-engine", engine_files=files, batch=64, memory="36GiB", **switches, **shape)
    result = tp.solve(instance, "published")
    assert result.objective is not None
    assert 64e9 / result.objective == pytest.approx(throughput, rel=1e-7)
    configuration = instance.configurations[result.solution["configuration"]]
    assert [configuration.tables.strategies[s] for s in result.solution["choice"]] == names
    reported = instance.provenance["choices"][result.solution["configuration"]]
    assert {name: reported[name] for name in choice} == choice


def test_switches_narrow_the_space(files: Path) -> None:
    given: dict[str, Any] = {"layers": 28, "sequence": 8192, "hidden_size": 3584, "micro_batches": 8}

    def built(**switches: Any) -> Any:
        return tp.build("galvatron-engine", engine_files=files, batch=64, memory="36GiB", **given, **switches)

    narrow = built(most_tp=2, most_stages=2)
    assert {configuration.stages for configuration in narrow.configurations} == {1, 2}
    assert {name for c in narrow.configurations for name in c.tables.strategies if "tp" in name and "tp2" not in name} == set()
    assert max(choice["most_tp"] for choice in narrow.provenance["choices"]) == 2
    apart = built(sequence_parallel=False)
    index = next(i for i, c in enumerate(apart.configurations) if c.stages == 1 and "tp8-ckpt" in c.tables.strategies)
    tables, shared = (one.configurations[index].tables for one in (apart, built()))
    tp8 = tables.strategies.index("tp8-ckpt")
    assert (tables.forward_bytes[1, tp8], shared.forward_bytes[1, tp8]) == (8 * 56 * 2**20, 56 * 2**20)
    assert (tables.backward_bytes < shared.backward_bytes).all()
    for options, problem in (
        ({"micro_batches": 3}, ("micro_batches", 3, "--batch 64")),
        ({"most_tp": 0}, ("most_tp", 0, 1)),
        ({"parameter_mib": -1.0}, ("parameter_mib", -1, "1e-06")),
    ):
        with refused(*problem):
            tp.build("galvatron-engine", engine_files=files, batch=64, memory="36GiB", **given | options)


def test_several_types_of_layers_are_refused(files: Path) -> None:
    path = files / "computation_profiling_bf16_llama.json"
    times = {f"layertype_{i}_bsz1_seq8192": 2.0 for i in range(2)} | {"layertype_other_bsz1_seq[8192,8192]": 1.0}
    path.write_text(json.dumps(times))
    with refused("", problem=2, fix="`trainplan profile import`"):
        tp.build("galvatron-engine", engine_files=files, batch=64, memory="36GiB", layers=28, hidden_size=3584)
