"""Files that a script copies, edits and deletes before it reads them, and programs that print parts of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trainplan.execution.launch_files.run_configuration import UserSettings
from trainplan.execution.launch_files.shell import command_of, values_of
from trainplan.profiling.base.errors import InputError

from tests.helpers import bash
from trainplan.imported_runs.commands import read

SIZES = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
BASE = 'TP=1\nPP=1\nLAYERS=24\nDROP="--bf16"\nSEQ=2048\n'
RUN = 'source ./conf.sh\npython pretrain_gpt.py --num-layers $LAYERS --hidden-size 8 --tp "$TP" --pp "$PP" --seq $SEQ\n'


def folder(tmp_path: Path, text: str) -> Path:
    (tmp_path / "base.sh").write_text(BASE)
    (tmp_path / "sizes.txt").write_text("# model layers hidden\nsmall 12 768\nlarge 40 5120\nlarge 48 6144\n")
    (tmp_path / "run.sh").write_text(text)
    return tmp_path / "run.sh"


@pytest.mark.parametrize(
    "edits",
    [
        "cp base.sh conf.sh",
        "cp base.sh conf.sh; sed -i 's/^TP=.*/TP=4/' conf.sh",
        "X=8; cp base.sh conf.sh; sed -i -e \"s/TP=1/TP=$X/g\" -e '/^DROP/d' conf.sh",
        "sed -e 's/\\([A-Z]*\\)=1/\\1=2/; 3s|24|48|' base.sh > conf.sh",
        "sed -E 's/^(TP|PP)=([0-9]+)$/\\1=\\22/;$s/2048/4096/' base.sh > conf.sh",
        "mv base.sh conf.sh; sed -i '/^TP/,/^PP/s/=1/=&1/' conf.sh",
        "sed -n '/TP/p;3p;/PP/p;$p' base.sh >conf.sh",
        "sed '/^TP=/c TP=16' base.sh | sed '/^PP/a LAYERS=7\n/^LAYERS=24/d' > conf.sh",
        "cat base.sh > conf.sh; echo TP=5 >> conf.sh; sed -i 's/5/6/2;s/tp=\\(.\\)/PP=\\1/I' conf.sh",
        "cp base.sh conf.sh; echo TP=5 >> conf.sh",
        "cp base.sh c2.sh; mkdir -p x; cp c2.sh x/; cp x/c2.sh conf.sh; rm -f c2.sh; echo PP=3 >> conf.sh",
        "echo TP=9 > conf.sh; rm conf.sh; grep -v '^PP' base.sh >> conf.sh; echo PP=2 | tee -a conf.sh; echo PP=3 >> conf.sh",
        "grep '[TP]P' base.sh > conf.sh; printf 'SEQ=%s\\nLAYERS=%s\\n' "
        "\"$(awk '/^large/{print $3}' sizes.txt | sort -n | head -n 1)\""
        " $(awk '$1==\"small\"{print $2}' sizes.txt) >> conf.sh",
        "cp base.sh conf.sh; for i in 1 2; do echo x; done | while read l; do echo SEQ=$(wc -l < base.sh) >> conf.sh; done",
        "cp base.sh conf.sh; echo z | { read l; echo SEQ=$(sed -n 3p sizes.txt | awk 'NR==1{print $2}') >> conf.sh; }",
    ],
)  # fmt: skip
def test_files_are_read_as_the_script_leaves_them(edits: str, tmp_path: Path) -> None:
    script = folder(tmp_path, edits + "\n" + RUN)
    command = command_of(script, {})
    assert not command.open
    if bash.bash() is not None:
        programs = bash.stubs(tmp_path / "programs")
        (programs / "tee").unlink()
        (programs / "tee").symlink_to("/usr/bin/tee")
        bash.opened(tmp_path)
        for ran in bash.runs(script, programs) or []:
            assert values_of(ran[2:]) == command.values


@pytest.mark.parametrize(
    ("edits", "named"),
    [
        ("cp base.sh conf.sh; sed -i 's/TP=1/&\\U2/' conf.sh", "conf.sh"),
        ("cp base.sh conf.sh; perl -pi -e 's/TP=1/TP=2/' conf.sh", "conf.sh"),
        ("cp other.sh conf.sh", "conf.sh"),
    ],
)
def test_a_file_that_is_edited_in_a_way_which_is_not_followed_is_not_known(edits: str, named: str, tmp_path: Path) -> None:
    script = folder(
        tmp_path,
        edits + f"\nsource ./conf.sh\npython pretrain_gpt.py {SIZES} --bf16 --tensor-model-parallel-size ${{TP:-1}}",
    )
    with pytest.raises(InputError) as error:
        read(script, UserSettings())
    assert named in str(error.value) and "--set TP=" in error.value.command_text


@pytest.mark.parametrize(
    ("edits", "stage"),
    [
        ("sed -i 's/\"stage\": 3/\"stage\": 1/' ds.json", 1),
        ("sed \"s/TRAIN_STAGE/$STAGE/\" t.json | sed \"s/3/3/\" > ds.json", 2),
        ("export STAGE; envsubst < e.json > ds.json", 2),
        ("jq '.zero_optimization.stage = 1' ds.json > d && mv d ds.json", 1),
        ("jq --argjson s $STAGE '.zero_optimization.stage=$s | .steps_per_print = 5' ds.json > d; cp d ds.json", 2),
    ],
)  # fmt: skip
def test_configurations_are_read_as_the_script_edits_them(edits: str, stage: int, tmp_path: Path) -> None:
    settings = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(settings | {"zero_optimization": {"stage": 3}}))
    for name, value in (("t.json", "TRAIN_STAGE"), ("e.json", "${STAGE}")):
        (tmp_path / name).write_text(json.dumps(settings | {"zero_optimization": {"stage": 77}}).replace("77", value))
    script = folder(
        tmp_path,
        f"STAGE=2\n{edits}\ndeepspeed --num_gpus 8 pretrain_gpt.py {SIZES} --micro-batch-size 2 --global-batch-size 64 --bf16"
        " --deepspeed --deepspeed_config ds.json --zero-stage $(jq -r .zero_optimization.stage ds.json) --vocab-size 50257"
        " --no-pipeline-parallel\n",
    )
    assert read(script, UserSettings()).zero == stage


TOML = """[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
"""
LAUNCHED = (
    "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
)


@pytest.mark.parametrize("writes", [True, False])
def test_files_of_torchtitan_and_accelerate_are_read_as_the_script_writes_them(writes: bool, tmp_path: Path) -> None:
    """Not as a file of that name happens to be elsewhere."""
    folder = tmp_path / "inner"
    folder.mkdir()
    script = folder / "run.sh"
    for name, text, edit, run in (
        ("c.toml", TOML, "degree = 2/degree = 4", "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file ./c.toml"),
        ("c.yaml", LAUNCHED, "FULL_SHARD/SHARD_GRAD_OP", "accelerate launch --config_file c.yaml train.py --bf16 --output_dir x"
         " --per_device_train_batch_size 1 --gradient_checkpointing true --model_name_or_path meta-llama/Llama-2-7b-hf"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text.replace("FULL_SHARD", "NO_SHARD"))
        if not writes:
            (folder / name).write_text(text)
        written = f"cat > {name} <<EOF\n{text}EOF\n" if writes else ""
        script.write_text(f"{written}sed -i 's/{edit}/' {name}\n{run}\n")
        made = read(script, UserSettings(model="llama2-7b" if "accelerate" in run else None))
        assert made.tp == 4 if "torchtitan" in run else made.zero == 2


def test_paths_of_scripts_are_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths follow from the script by `$0`, however it is given, and from a file that is sourced by BASH_SOURCE."""
    run = "python pretrain_gpt.py --num-layers $LAYERS --hidden-size 8\n"
    (tmp_path / "jobs" / "lib").mkdir(parents=True)
    (tmp_path / "jobs" / "lib" / "common.sh").write_text('source "$(dirname "${BASH_SOURCE[0]}")/sizes.sh"\n')
    (tmp_path / "jobs" / "lib" / "sizes.sh").write_text("LAYERS=4\n")
    (tmp_path / "jobs" / "sizes.sh").write_text("LAYERS=8\n")
    (tmp_path / "jobs" / "run.sh").write_text('D=$(cd "$(dirname "$0")" && pwd)\nsource "$D/lib/common.sh"\n' + run)
    monkeypatch.chdir(tmp_path)
    for path in (Path("jobs/run.sh"), tmp_path / "jobs" / "run.sh"):
        assert command_of(path, {}).values["--num-layers"] == "4"
