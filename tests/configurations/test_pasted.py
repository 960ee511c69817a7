"""Commands as people paste them: from documents, from `ps`, from a terminal's history, through a pipe."""

from __future__ import annotations

import base64
import io
import json
import os
import threading
from pathlib import Path

import pytest

import trainplan as tp
from tests.helpers.refusals import refused
from trainplan.imported_runs.to_plan import read, read_text

SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 2 --global-batch-size 64 --vocab-size 51200 --bf16 --tensor-model-parallel-size 4"
)
RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}"


@pytest.mark.parametrize("dash", ["\u2013", "\u2014", "\u2013-", "\u2013\u2013", "\u2212\u2212", "\u2011\u2011", "-\u2013"])
@pytest.mark.parametrize(
    "quoted", [RUN, RUN.replace(SIZES, "") + f'--data-path "a b" {SIZES}', f'ARGS="{SIZES}"\ntorchrun pretrain_gpt.py $ARGS']
)
def test_dashes_of_documents_are_reported_with_what_to_write(dash: str, quoted: str) -> None:
    code = f"U+{ord(dash.strip('-')[0]):04X}"
    with refused("", problem=(f"{dash}tensor-model-parallel-size", code), fix="--tensor-model-parallel-size"):
        read_text(quoted.replace("--tensor", f"{dash}tensor"), "command line")


def test_blanks_and_quotes_of_documents_are_reported() -> None:
    with refused("", where="command line:1", problem=("blank", "U+00A0"), fix="blank"):
        read_text(RUN.replace("--bf16 ", "--bf16\u00a0"), "command line")
    with refused("", where="command line:1", problem=("quote", "U+201C"), fix='"'):
        read_text(f"{RUN} --save \u201c/a\u201d", "command line")
    harmless = f'# layers \u2013 and more\necho "a \u2013 b \u201cc\u201d d\u00a0e"  # f \u2014g\n{RUN}\n'
    assert read_text(harmless, "command line").tp == 4


@pytest.mark.parametrize("after", [" ", "  ", "\t"])
def test_a_blank_after_a_backslash_ends_the_command_and_is_reported(tmp_path: Path, after: str) -> None:
    text = RUN.replace(" --", " \\\n    --").replace("\\\n    --hidden", f"\\{after}\n    --hidden")
    with refused("", where="command line:3", problem=("backslash", "blank"), fix="blank"):
        read_text(text, "command line")
    (tmp_path / "run.sh").write_text(text)
    with refused("", where=f"{tmp_path / 'run.sh'}:3", problem=("backslash", "blank")):
        read(tmp_path / "run.sh")
    assert read_text(RUN.replace(" --", " \\\r\n    --"), "command line").tp == 4


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        (f"root 123 101 2.5 1234 987 ? Rl 10:00 12:34 /usr/bin/python -u {RUN.partition('8 ')[2]}", None),
        (f"/opt/conda/bin/python3.10 /opt/conda/bin/torchrun --nproc_per_node=8 --nnodes=2 {RUN.partition('8 ')[2]}", 16),
        (f"env A=B CUDA_DEVICE_MAX_CONNECTIONS=1 {RUN}", 8),
        (f"CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG=INFO {RUN}", 8),
        (f"srun -N 4 --ntasks-per-node 8 --container-image x.sqsh python -u {RUN.partition('8 ')[2]}", 32),
    ],
)
def test_lines_of_ps_and_of_launchers_are_runs(line: str, devices: int | None) -> None:
    configuration = read_text(line, "command line")
    assert (configuration.devices, configuration.tp, configuration.samples) == (devices, 4, 64)
    assert not configuration.unknown


def test_deepspeeds_processes_have_their_hosts_in_their_command() -> None:
    world = base64.urlsafe_b64encode(json.dumps({"a": [0, 1, 2, 3], "b": [0, 1]}).encode()).decode()
    line = (
        f"/usr/bin/python3.10 -u -m deepspeed.launcher.launch --world_info={world} --master_port=29500 pretrain_gpt.py {SIZES}"
    )
    assert read_text(line, "command line").devices == 6
    assert read_text(line.replace(world, "e30x"), "command line").devices is None


def test_a_script_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(RUN,))
    writer.start()
    assert read(pipe).tp == 4
    writer.join()


def test_a_log_on_standard_input_is_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = (Path(__file__).parent / "logs" / "megatron-2026-08.log").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data + b"\xff caf\xe9\n")))
    judged = tp.import_run("-", cluster="h100:8x2", search=False)
    assert judged.configuration.devices == 16 and judged.configuration.where == "standard input"
