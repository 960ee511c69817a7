"""Scripts read as bash reads them, and the reports about those that depend on unstated values."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainplan.execution.launch_files.run_configuration import RunConfiguration, UserSettings
from trainplan.execution.launch_files.shell import command_of_text, words_of_command
from trainplan.execution.runtimes.megatron.reader import of_command, read
from trainplan.profiling.models.model import model_from_config

import trainplan as tp
from tests.helpers import bash
from tests.helpers.refusals import Facts, refused

SIZES = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 2 --global-batch-size 64 --vocab-size 50257 --bf16"
)
RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}"
TP = "--tensor-model-parallel-size $TP"


def values(text: str, folder: Path = Path("."), **message: str) -> dict[str, object]:
    command = command_of_text(text, message, str(folder / "run.sh"), folder)
    assert not command.open
    return dict(command.values)


def of(text: str, folder: Path = Path("."), **message: str) -> RunConfiguration:
    return of_command(command_of_text(text, message, "run.sh", folder), "run.sh", UserSettings(message))


SWITCHED = f"""SIZE=${{SIZE:-small}}
FP8=${{FP8:-0}}
if [[ $SIZE == small ]]; then L=24; elif [[ $SIZE == large ]]; then L=80; fi
ARGS="--num-layers $L"
if [ "$FP8" -eq 1 ]; then
  ARGS="$ARGS --fp8-format hybrid"
fi
{RUN} $ARGS
"""


def test_one_branch_is_taken() -> None:
    assert values(SWITCHED)["--num-layers"] == "24" and "--fp8-format" not in values(SWITCHED)
    assert values(SWITCHED, SIZE="large")["--num-layers"] == "80"
    assert values(SWITCHED, FP8="1")["--fp8-format"] == "hybrid"


def test_what_no_branch_sets_is_no_value() -> None:
    """As bash has it: the argument stands alone, and the reader refuses it."""
    assert values(SWITCHED, SIZE="huge")["--num-layers"] is True


@pytest.mark.parametrize(
    ("condition", "variable", "example"),
    [
        ('[ "$MODE" = wide ]', "MODE", "wide"),
        ("[[ $MODE == w* ]]", "MODE", "w"),
        ("(( MODE > 2 ))", "MODE", "1"),
        ('[ -n "$MODE" ]', "MODE", "VALUE"),
        ('test "$MODE" -eq 3', "MODE", "3"),
        ("[[ ${MODE,,} =~ ^wide ]]", "MODE", "wide"),
        ('[ "$1" = 4 ]', "1", "4"),
    ],
)
def test_conditions_that_cannot_be_decided_are_refused_with_their_variable(condition: str, variable: str, example: str) -> None:
    script = f"TP=1\nif {condition}; then\n  TP=2\nfi\n{RUN} --tensor-model-parallel-size $TP\n"
    problem = (1, 2, f"${variable}", "run.sh:2")
    with refused("--tensor-model-parallel-size", where="run.sh", problem=problem, fix=f"--set {variable}={example}"):
        of(script)


def test_conditions_that_bear_on_nothing_are_passed_over() -> None:
    script = f"""if [ -n "$WANDB_API_KEY" ]; then LOG="--wandb-project x"; else LOG=; fi
[ -f data.idx ] || {{ echo missing; exit 1; }}
case $HOST_KIND in a) DIR=/a;; *) DIR=/b;; esac
{RUN} --save $DIR $LOG --data-path $DATA
"""
    command = command_of_text(script, {}, "run.sh", Path("."))
    assert set(command.open) == {"--wandb-project", "--save", "--data-path"}
    assert of_command(command, "run.sh", UserSettings()).sequence == 2048


@pytest.mark.parametrize(
    ("line", "field", "problem", "fix"),
    [
        (f"{RUN} {TP}", "--tensor-model-parallel-size", ("$TP", "run.sh:1"), "--set TP=8"),
        (f"{RUN} --seq-length $SEQ", "--seq-length", ("$SEQ", "run.sh:1"), "--set SEQ=4096"),
        (f"{RUN} --recompute-granularity $AC", "--recompute-granularity", ("$AC", "run.sh:1"), "--set AC=full"),
        (f"{RUN} $EXTRA_ARGS", "", ("$EXTRA_ARGS", "run.sh:1"), "--set EXTRA_ARGS=''"),
        (f"GBS=$((8 * NNODES))\n{RUN} --global-batch-size $GBS", "--global-batch-size", "$NNODES", "--set NNODES=2"),
        (
            f"GPUS=$(nvidia-smi -L | wc -l)\n{RUN} --global-batch-size $((GPUS * 4))",
            "--global-batch-size", ("$GPUS", "wc"), "--set GPUS=8",
        ),
        (
            f"[ -z $VP ] || A='--num-layers-per-virtual-pipeline-stage 2'\n{RUN} $A",
            "--num-layers-per-virtual-pipeline-stage", (2, "$VP"), ("--set VP=VALUE", "--set VP= "),
        ),
        (f"TP=$(python pick.py)\n{RUN} {TP}", "--tensor-model-parallel-size", ("$TP", "python"), "--set TP=8"),
        (
            f"for n in 1 2; do {RUN} --tensor-model-parallel-size $n; done",
            "--tensor-model-parallel-size", (1, 2, "several commands", "run.sh:1"), "--command",
        ),
        (f"bash other.sh; if false; then {RUN}; fi", "", ("other.sh", "run.sh:1"), "script"),
        (f"exit 1\n{RUN}", "", "run.sh:1", ("--set NAME=VALUE", "1=VALUE")),
        ("if [ 1 = 1 ]; then", "", "bash", "--command"),
        ('echo "', "", ("quote", "bracket"), "--command"),
        (f"source sizes.sh\nTP=${{TP:-2}}\n{RUN} {TP}", "--tensor-model-parallel-size", ("$TP", "sizes.sh"), "--set TP=8"),
    ],
)  # fmt: skip
def test_what_is_open_is_named_with_what_to_give(line: str, field: str, problem: Facts, fix: Facts) -> None:
    with refused(field, problem=problem, fix=fix):
        of(line)


@pytest.mark.parametrize(
    "text",
    [
        "while true; do {run}; sleep 5; done",
        "until {run}; do sleep 1; done",
        "for node in a b; do ssh $node '{run}' & done; wait",
        "( exit 1 ) || {run}",
        "time {run}",
        "run() ( {run} )\nrun",
        "A+=' --seed 3'; {run} $A",
        "nohup env X=1 CUDA_VISIBLE_DEVICES=0 {run} > log 2>&1 &",
    ],
)
def test_runs_are_found_wherever_they_are_started(text: str) -> None:
    assert values(text.replace("{run}", RUN))["--num-layers"] == "24"


def test_what_is_given_by_name_decides() -> None:
    """Before a script's own value, and in place of what is not known; a name that nobody uses is refused."""
    assert values(f"TP=4\n{RUN} --tensor-model-parallel-size $TP", TP="2")["--tensor-model-parallel-size"] == "2"
    assert values(f"TP=$(ask)\n{RUN} --tensor-model-parallel-size $TP", TP="2")["--tensor-model-parallel-size"] == "2"
    assert values(f'ARGS="$ARGS --fp16"\n{RUN} $ARGS', ARGS="--seed 1")["--seed"] == "1"
    assert values(f"for n in 1 2; do {RUN} --tensor-model-parallel-size $n; done", n="2")["--tensor-model-parallel-size"] == "2"
    with refused("set", problem=("SZIE", "run.sh"), fix="SIZE"):
        values(f"SIZE=${{SIZE:-1}}\n{RUN}", SZIE="2")


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (f"torchrun --nnodes 4 --nproc-per-node=8 pretrain_gpt.py {SIZES}", 32),
        (f"torchrun --nnodes 1:4 --nproc-per-node=gpu pretrain_gpt.py {SIZES}", None),
        (f"torchrun --nnodes $NNODES --nproc-per-node=8 pretrain_gpt.py {SIZES}", None),
        (f"python -m torch.distributed.launch --nproc_per_node 4 pretrain_gpt.py {SIZES}", 4),
        (f"deepspeed --include node0:0,1,2@node1:4 pretrain_gpt.py {SIZES}", 4),
        (f"deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py {SIZES}", 16),
        (f"accelerate launch --num_processes 16 --num_machines 2 pretrain_gpt.py {SIZES}", 16),
        (f"mpirun --bind-to none -np 24 -x A=1 python pretrain_gpt.py {SIZES}", 24),
        (f"srun -N 2 --ntasks-per-node 8 python pretrain_gpt.py {SIZES}", 16),
        (f"#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun -l bash -c 'python3 pretrain_gpt.py {SIZES}'", 32),
        (f"#SBATCH -N 4\n#SBATCH --gres=gpu:a100:4\nsrun python3 pretrain_gpt.py {SIZES}", 16),
        (f"#SBATCH -N 3\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 pretrain_gpt.py {SIZES}", 24),
        (f"ssh node0 'cd /x && torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}'", 8),
        (f"pdsh -w node[0-3] torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py {SIZES}", 32),
        (f"singularity exec --nv image.sif torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES}", 8),
    ],
)
def test_devices_are_those_that_the_launcher_starts(text: str, devices: int | None) -> None:
    command = command_of_text(text, {}, "run.sh", Path("."))
    assert command.devices == devices and command.program == "pretrain_gpt.py" and command.values["--num-layers"] == "24"


@pytest.mark.parametrize(
    ("line", "tool", "file"),
    [
        ("torchrun train.py --deepspeed ds.json --bf16 --per_device_train_batch_size 4", "transformers", "ds.json"),
        (
            "torchrun -m torchtitan.train --job.config_file x.toml --parallelism.tensor_parallel_degree 4",
            "torchtitan",
            "x.toml",
        ),
        ("accelerate launch --config_file fsdp.yaml -m axolotl.cli.train x.yml", "axolotl", "x.yml"),
        ("axolotl train x.yml", "axolotl", "x.yml"),
        ("llamafactory-cli train x.yaml", "llamafactory-cli", "x.yaml"),
        ("torchrun --nproc_per_node 8 run_train.py --config-file config_llama.yaml", "nanotron", "config_llama.yaml"),
        ("composer train.py config.yaml", "composer", "config.yaml"),
    ],
)
def test_commands_of_other_tools_are_refused_as_what_they_are(line: str, tool: str, file: str) -> None:
    with refused("", problem=(tool, "run.sh:1", "Megatron-LM"), fix=file):
        of(line)


def test_sources_are_the_lines_at_which_arguments_are_written(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f'A="--tensor-model-parallel-size 2"\nB=(\n  --sequence-parallel\n)\n{RUN} $A "${{B[@]}}"\n')
    taken = {setting.key: setting.source for setting in read(path, UserSettings()).taken}
    assert taken["--tensor-model-parallel-size"] == f"{path}:1"
    assert taken["--sequence-parallel"] == f"{path}:3" and taken["--num-layers"] == f"{path}:5"


def test_lines_of_arguments_are_commands() -> None:
    command = words_of_command(f"srun {RUN} --save 'a b'")
    assert command.values["--save"] == "a b" and command.devices == 8


def test_other_files_are_read_where_the_script_finds_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "sizes.sh").write_text("TP=8\n")
    (tmp_path / "in" / "more.sh").write_text("TP=4\n")
    for line, tp_degree in ((". ./in/more.sh", "4"), ('source "$(dirname "$0")/sizes.sh"', "8"), ("cd in; . more.sh", "4")):
        text = f"{line}\n{RUN} --tensor-model-parallel-size $TP"
        assert values(text, tmp_path)["--tensor-model-parallel-size"] == tp_degree
    text = f"source ../sizes.sh\n{RUN} --tensor-model-parallel-size $TP"
    assert values(text, tmp_path / "in")["--tensor-model-parallel-size"] == "8"
    with refused("--tensor-model-parallel-size", problem="$TP", fix="--set TP=8"):
        of(f"source /sizes.sh\n{RUN} --tensor-model-parallel-size $TP", tmp_path)


# One run, by pieces that may be written in many ways.
PAIRS = [("--num-layers", "24"), ("--hidden-size", "2048"), ("--seq-length", "2048"), ("--micro-batch-size", "2")]
ALONE = ["--bf16", "--use-distributed-optimizer"]


@st.composite
def spelt(draw: st.DrawFn) -> str:
    """A script of one run: its arguments in variables, arrays, functions and loops; its command in what does not change it."""
    lines, words = ["#!/bin/bash"], []
    for number, (name, value) in enumerate(PAIRS):
        variable = f"V{number}"
        form = draw(
            st.sampled_from(["plain", "quoted", "default", "assigned", "sum", "case", "substituted", "cut", "function"])
        )
        lines += {
            "plain": [f"{variable}={value}"],
            "quoted": [f"{variable}='{value}' # a comment with 'quotes"],
            "default": [f'{variable}="${{{variable}:-{value}}}"'],
            "assigned": [f': "${{{variable}:={value}}}"'],
            "sum": [f"{variable}=$(( {value} / 2 + {value} - {value} / 2 ))"],
            "case": [f"case a{number} in", f"  b*) {variable}=7 ;;", f"  a[0-9]) {variable}={value} ;;", "esac"],
            "substituted": [f"{variable}=$(echo x{value} | tr -d x)"],
            "cut": [f"{variable}=pre-{value}.post", f"{variable}=${{{variable}#*-}}", f"{variable}=${{{variable}%.*}}"],
            "function": [f"f{number}() {{ local y=$1; {variable}=$y; return 0; }}", f"f{number} {value}"],
        }[form]
        joined = draw(st.sampled_from([f"{name} ${variable}", f'{name}="${variable}"', f'{name} "${{{variable}}}"']))
        words.append(joined)
    words += ALONE
    words = draw(st.permutations(words))
    held = draw(st.sampled_from(["line", "text", "array", "appended", "loop", "positional", "heredoc"]))
    many = " \\\n  ".join(words)
    if held == "line":
        rest = many
    elif held == "text":
        lines.append('ARGS="' + " ".join(words).replace('"', "") + '"')
        rest = "$ARGS"
    elif held == "array":
        lines.append("ARGS=(\n" + "\n".join(f"  {word}  # of {n}" for n, word in enumerate(words)) + "\n)")
        rest = draw(st.sampled_from(['"${ARGS[@]}"', "${ARGS[@]}", "${ARGS[*]}"]))
    elif held == "appended":
        lines += ["ARGS=()", *(f"ARGS+=({word})" for word in words)]
        rest = '"${ARGS[@]}"'
    elif held == "loop":
        lines += ["ARGS=", f"for w in {' '.join(words)}; do", '  ARGS="$ARGS $w"', "done"]
        rest = "${ARGS}"
    elif held == "positional":
        lines.append(f"set -- {' '.join(words)}")
        rest = '"$@"'
    else:
        lines += ["cat > all.args <<END", " ".join(words).replace('"', ""), "END"]
        rest = "$(cat all.args)"
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {rest}"
    wrap = draw(st.sampled_from(["bare", "if", "else", "brace", "subshell", "and", "function", "eval", "once", "tee", "not"]))
    lines += {
        "bare": [command],
        "if": ["if true; then", command, "fi"],
        "else": ["if [ 1 -gt 2 ]; then", "  echo no; exit 1", "elif false; then :; else", command, "fi"],
        "brace": ["{", command, "}"],
        "subshell": ["(", command, ")"],
        "and": [f"[[ 1 == 1 ]] && {command}"],
        "function": ["main() {", command if "$@" not in rest else f"  {command}", "}", 'main "$@"'],
        "eval": ["eval '" + command.replace("'", "") + "'"],
        "once": ["for _ in 1; do", command, "done"],
        "tee": [f"{command} 2>&1 | tee out.log"],
        "not": [f"! false && {command} || exit 1"],
    }[wrap]
    return "\n".join(lines) + "\n"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=spelt())
def test_one_run_is_read_alike_however_it_is_written(script: str) -> None:
    command = command_of_text(script, {}, "run.sh", Path("."))
    expected = {**dict(PAIRS), **dict.fromkeys(ALONE, True)}
    assert dict(command.values) == expected and not command.open and command.devices == 8


@pytest.mark.skipif(bash.bash() is None, reason="there is no bash")
def test_the_spellings_are_those_of_bash(tmp_path: Path) -> None:
    """Bash agrees on some of the scripts that the property is tested with."""
    bash.opened(tmp_path)
    programs = bash.stubs(tmp_path / "bin")
    found: list[int] = []

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(script=spelt())
    def held(script: str) -> None:
        folder = tmp_path / f"run{len(found)}"
        folder.mkdir(exist_ok=True)
        (folder / "run.sh").write_text(script)
        bash.opened(folder)
        theirs = bash.runs(folder / "run.sh", programs)
        command = command_of_text(script, {}, "run.sh", folder)
        assert theirs == [[*command.launcher, command.program, *command.words]], script
        found.append(1)
        shutil.rmtree(folder)

    held()
    assert len(found) >= 25


def test_a_run_of_places_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"TP=$1\nSEQ=${{2}}\n{RUN} --tensor-model-parallel-size $TP --seq-length $SEQ --max-position-embeddings $SEQ\n"
    )
    with refused(fix="--set 1=8"):
        tp.import_run(path, cluster="h100:8", search=False)
    run = tp.import_run(path, cluster="h100:8", search=False, variables={"1": "2", "2": "4096"})
    assert run.configuration.tp == 2 and run.configuration.sequence == 4096 and run.configuration.devices == 8


@pytest.mark.parametrize("start", ["bash", "sbatch", "cat <<EOF | bash", "cat <<'EOF' > x.sh; bash x.sh", "tee x.sh"])
def test_scripts_that_are_written_are_read(start: str) -> None:
    """Fed to a shell, to Slurm, through a pipe or by a file; where it is only written, nothing is started."""
    begin, _, after = start.partition("; ")
    begin = begin if "<<" in begin else f"{begin} <<EOF"
    text = f"{begin}\n#SBATCH --nodes=2\n{RUN}\nEOF\n{after}\n"
    if start == "tee x.sh":
        with refused("", fix="starts training"):
            of(text)
    else:
        assert values(text)["--num-layers"] == "24"


def test_command_lines_and_standard_input_are_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alike; one of the two, or a file."""
    given = tp.import_run(line=f"srun -N 1 {RUN} --tensor-model-parallel-size 2", cluster="h100:8", search=False)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"TP=2\n{RUN} --tensor-model-parallel-size $TP\n"))
    read_in = tp.import_run("-", cluster="h100:8", search=False)
    assert given.plan.units == read_in.plan.units and given.judged.step_ns == read_in.judged.step_ns
    assert given.configuration.tp == 2 and read_in.configuration.where == "standard input"
    with refused("file", fix="--command"):
        tp.import_run(cluster="h100:8")


DEEPSPEED = f"""deepspeed --num_nodes=2 --num_gpus=8 pretrain_gpt.py {SIZES.replace("--bf16", "--fp16")} \\
 --checkpoint-activations \\
 --deepspeed --zero-stage 3 --deepspeed_config ds.json --deepspeed-activation-checkpointing
"""


def test_megatron_deepspeed_is_read_with_its_file(tmp_path: Path) -> None:
    """Stage, batch and precision of the file; layers recomputed as arguments say."""
    path = tmp_path / "ds.sh"
    path.write_text(DEEPSPEED)
    engine = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "fp16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(engine))
    made = read(path, UserSettings())
    assert (made.zero, made.recomputed.of, made.devices, made.unknown) == (3, "full", 16, ())
    assert made.software == "megatron-deepspeed" and made.dtype == "float16" and made.buffers.attention == "eager"
    assert next(setting.source for setting in made.taken if setting.key == "zero_optimization.stage") == "ds.json:1"
    (tmp_path / "ds.json").write_text(json.dumps({**engine, "train_micro_batch_size_per_gpu": 4}))
    with refused("--micro-batch-size", problem=("2", "ds.json", "4")):
        read(path, UserSettings())
    (tmp_path / "ds.json").unlink()
    for text in (DEEPSPEED, DEEPSPEED.replace("--zero-stage 3", "")):
        path.write_text(text)
        with refused("--deepspeed-config", problem="ds.json", fix="DeepSpeed"):
            read(path, UserSettings())
    path.write_text(DEEPSPEED.replace("--deepspeed_config ds.json", ""))
    with refused("--deepspeed-config", fix=("DeepSpeed", "ZeRO")):
        read(path, UserSettings())


def test_zero_2_and_3_need_the_run_without_pipelines(tmp_path: Path) -> None:
    """As DeepSpeed's PipelineEngine asserts; Megatron-DeepSpeed has one unless --no-pipeline-parallel is given."""
    settings = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    (tmp_path / "ds.json").write_text(json.dumps(settings | {"fp16": {"enabled": True}}))
    script = tmp_path / "run.sh"
    for more, noted in (("", True), (" --no-pipeline-parallel", False)):
        script.write_text(DEEPSPEED.strip() + more)
        assert any("--no-pipeline-parallel" in note for note in read(script, UserSettings()).notes) == noted
    script.write_text(DEEPSPEED.strip() + " --pipeline-model-parallel-size 2")
    with refused("--zero-stage", problem="3", fix=("0", "1", "--no-pipeline-parallel")):
        read(script, UserSettings())


def test_files_that_a_script_writes_are_read() -> None:
    text = f"""STAGE=2
cat <<EOF > ds.json
{{"zero_optimization": {{"stage": $STAGE, "offload_optimizer": {{"device": "cpu"}}}}, "bf16": {{"enabled": true}}}}
EOF
deepspeed --num_gpus 8 pretrain_gpt.py {SIZES} --deepspeed --deepspeed_config ds.json --ds-sequence-parallel-size 2
"""
    made = of_command(command_of_text(text, {}, "run.sh", Path(".")), "run.sh", UserSettings())
    assert (made.zero, made.host, made.cp, made.exchange) == (2, ("optimizer",), 2, "heads")


NAMED_BY_THE_JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
cd $CODE/training
CONFIG="./ds_config.$SLURM_JOB_ID.json"
STAGE=2
cat <<EOT > $CONFIG
{{"zero_optimization": {{"stage": $STAGE}}, "train_micro_batch_size_per_gpu": {micro}, "fp16": {{"enabled": true}}}}
EOT
srun python pretrain_gpt.py {sizes} --deepspeed --deepspeed_config {config}
"""


def test_files_that_are_named_by_the_job_are_one_file() -> None:
    """An unknown value stands in the name where it is written, and where it is requested."""
    sizes = SIZES.replace("bf16", "fp16")
    text = NAMED_BY_THE_JOB.format(micro=2, sizes=sizes, config="$CONFIG")
    assert of_command(command_of_text(text, {}, "run.sh", Path(".")), "run.sh", UserSettings()).zero == 2
    other = NAMED_BY_THE_JOB.format(micro=2, sizes=sizes, config="ds_config.$JOB.json")
    with refused(fix="--set JOB=8"):
        of(other)
    with refused(fix="--set MICRO=VALUE"):
        of(NAMED_BY_THE_JOB.format(micro="$MICRO", sizes=sizes, config="$CONFIG"))


@pytest.mark.parametrize(
    ("older", "name", "value"),
    [
        ("--model-parallel-size 2", "tp", 2),
        ("--ds-sequence-parallel-size 4", "cp", 4),
        ("--pipe-parallel-size 4", "pp", 4),
        ("--num-experts 1 --moe-expert-parallel-size 1 --moe-loss-coeff 0.01 --no-pipeline-parallel", "tp", 1),
        ("--rampup-batch-size 16 16 2_000_000", "samples", 64),
        ("--rampup-batch-size 16 16 1000", "samples", 64),
        ('--step-batch-size-schedule "0:8 1B:32 2B:64"', "samples", 64),
    ],
)
def test_older_arguments_and_schedules_are_read(older: str, name: str, value: int) -> None:
    made = of_command(words_of_command(f"{RUN} {older}"), "run.sh", UserSettings())
    assert getattr(made, name) == value and made.unknown == ()
    assert bool(made.notes) == (name == "samples")


@pytest.mark.parametrize(
    ("words", "family"),
    [
        ("", "gpt2"),
        ("--position-embedding-type alibi --embed-layernorm", "bloom"),
        ("--position-embedding-type rotary", "gpt_neox"),
        ("--use-rotary-position-embeddings --normalization layernorm", "gpt_neox"),
        ("--position-embedding-type rope --disable-bias-linear --swiglu --normalization rmsnorm", "llama"),
        ("--use-llama2-rotary-position-embeddings --disable-bias-linear --swiglu --normalization RMSNorm", "llama"),
        (
            "--position-embedding-type rope --disable-bias-linear --swiglu --normalization RMSNorm --sliding-window 4096",
            "mistral",
        ),
    ],
)
def test_layers_are_those_of_a_family(words: str, family: str) -> None:
    made = of_command(words_of_command(f"{RUN} {words}"), "run.sh", UserSettings())
    assert made.config is not None and made.config["model_type"] == family and not made.notes
    assert model_from_config(made.config, "the arguments").layers == 24


@pytest.mark.parametrize(
    ("words", "field", "problem", "fix"),
    [
        (
            "--position-embedding-type rope --swiglu", "--disable-bias-linear", "LayerNorm",
            ("--position-embedding-type rope", "--disable-bias-linear", "--model"),
        ),
        (
            "--glu-activation swiglu", "--position-embedding-type", ("learned_absolute", "LayerNorm"),
            ("--position-embedding-type rope", "--disable-bias-linear", "--model"),
        ),
        ("--bitfit", "--bitfit", "biases", ()),
        ("--freeze-embeddings", "--freeze-embeddings", "part", ()),
        ("--use-bnb-optimizer", "--use-bnb-optimizer", "8 bits", ("AdamW", "Muon")),
        (
            "--pp-partition-method uniform --pipeline-model-parallel-size 2", "--pp-partition-method", "uniform",
            ("type:transformer", "type:transformer|embedding"),
        ),
    ],
)  # fmt: skip
def test_what_no_family_has_is_refused(words: str, field: str, problem: Facts, fix: Facts) -> None:
    with refused(field, problem=problem, fix=fix):
        of(f"{RUN} {words}")


def test_stages_of_deepspeed_may_count_the_embedding() -> None:
    """22 layers with the embedding at both ends are 24 of equal weight: the ends have one layer less."""
    words = "--pipeline-model-parallel-size 4 --pp-partition-method 'type:transformer|embedding'"
    run = RUN.replace("--num-layers 24", "--num-layers 22")
    assert of_command(words_of_command(f"{run} {words}"), "run.sh", UserSettings()).cuts == (11, 23, 35)
    with refused("--num-layers"):
        of(f"{run} {words.split(' --pp')[0]}")


def test_defaults_are_of_the_tool_that_runs() -> None:
    file = 'echo \'{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}\' > ds.json\n'

    def sources(words: str) -> str:
        made = of_command(command_of_text(f"{file}{RUN} {words}", {}, "run.sh", Path(".")), "run.sh", UserSettings())
        return " ".join(dict.fromkeys(setting.source for setting in made.taken if "default" in setting.source))

    assert sources("") == "default of Megatron-LM core 0.15"
    assert "default of Megatron-DeepSpeed of 2024" in sources("--deepspeed --deepspeed_config ds.json --zero-stage 1")
    assert sources("--checkpoint-activations") == "default of Megatron-LM before core 0.4"


@pytest.mark.parametrize(
    ("words", "attention"),
    [
        ("--checkpoint-activations", "eager"),
        ("--DDP-impl local", "eager"),
        ("--DDP-impl local --use-flash-attn", "flash"),
        ("", None),
        ("--attention-backend unfused", "eager"),
        ("--attention-backend local", "eager"),
        ("--attention-backend flash", "flash"),
        ("--attention-backend fused", "flash"),
        ("--use-flash-attn", "flash"),
        ("--transformer-impl local", "eager"),
        ("--transformer-impl local --use-flash-attn", "flash"),
    ],
)
def test_which_attention_runs_is_what_arguments_say(words: str, attention: str | None) -> None:
    assert of_command(words_of_command(f"{RUN} {words}"), "run.sh", UserSettings()).buffers.attention == attention


BIASED = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336"
    " --num-attention-heads 32"
    " --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1"
    " --global-batch-size 64 --untie-embeddings-and-output-weights --bf16 --vocab-size 128256"
)


@pytest.mark.parametrize(
    ("words", "field", "noted"),
    [
        ("--swiglu --normalization RMSNorm --position-embedding-type rope", "--disable-bias-linear", "biases"),
        ("--normalization RMSNorm --position-embedding-type rope --disable-bias-linear", "--normalization", "--normalization"),
        ("--swiglu --normalization RMSNorm --disable-bias-linear", "--position-embedding-type", "--position-embedding-type"),
    ],
)
def test_a_model_that_is_named_stands_for_layers_that_differ_a_little(words: str, field: str, noted: str) -> None:
    line = f"{BIASED} {words}"
    with refused(field, problem="RMSNorm", fix="--model"):
        of_command(words_of_command(line), "run.sh", UserSettings())
    made = of_command(words_of_command(line), "run.sh", UserSettings(model="llama3-8b"))
    assert len(made.notes) == 1 and noted in made.notes[0] and "llama3-8b" in made.notes[0]
    with refused("--num-layers", problem=(32, "llama3-70b", 80), fix="--model"):
        of_command(words_of_command(line), "run.sh", UserSettings(model="llama3-70b"))


DECODER = ("command", "dense decoder")


@pytest.mark.parametrize(
    ("program", "words", "field", "problem", "fix"),
    [
        ("examples/multimodal/train.py", "", "", ("examples/multimodal/train.py", "images", "text"), DECODER),
        ("/code/train.py", "--vision-model-type clip --img-h 336", "--vision-model-type", ("clip", "images"), DECODER),
        ("pretrain_qwen2_vl.py", "", "", ("pretrain_qwen2_vl.py", "images", "text"), DECODER),
        ("pretrain_vision_classify.py", "", "", ("pretrain_vision_classify.py", "images"), DECODER),
        ("tasks/main.py", "", "", ("tasks/main.py", "evaluation", "classification"), DECODER),
        ("/code/finetune.py", "--task MNLI", "--task", ("MNLI", "finetune.py"), DECODER),
        ("pretrain_bert.py", "", "", ("pretrain_bert.py", "BERT"), DECODER),
        ("pretrain_t5.py", "", "", ("pretrain_t5.py", "T5"), DECODER),
        ("tools/retro/sft/sft_retro.py", "", "", ("tools/retro/sft/sft_retro.py", "RETRO"), DECODER),
        ("pretrain_gpt.py", "--retro-add-retriever", "--retro-add-retriever", "RETRO", DECODER),
        ("pretrain_ict.py", "", "", ("pretrain_ict.py", "retriever"), DECODER),
        ("pretrain_mamba.py", "", "", ("pretrain_mamba.py", "Mamba"), DECODER),
        ("pretrain_prefix_lm.py", "", "", ("pretrain_prefix_lm.py", "prefixes"), DECODER),
        ("pretrain_gpt.py", "--load-teacher model", "--load-teacher", ("model", "learns"), DECODER),
        ("pretrain_gpt.py", "--enable-zbh1-pipeline", "--enable-zbh1-pipeline", "ZB-H1", ()),
        ("pretrain_qwen.py", "--disable-vision-class-token", "--disable-vision-class-token", "images", DECODER),
        (
            "pretrain_qwen.py", "--patch-tokenizer-type Qwen2VLTokenizer", "--patch-tokenizer-type",
            ("Qwen2VLTokenizer", "images"), DECODER,
        ),
        ("pretrain_gpt.py", "${TEACHER:+--kd} $OTHER", "", "$OTHER", "--set OTHER=''"),
    ],
)  # fmt: skip
def test_programs_that_train_something_else_are_refused_as_what_they_are(
    program: str, words: str, field: str, problem: Facts, fix: Facts
) -> None:
    with refused(field, problem=problem, fix=fix):
        of(f"torchrun --nproc_per_node 8 {program} {SIZES} {words}")


@pytest.mark.parametrize(
    "program", ["pretrain_gpt.py", "my_train.py", "/omni/train_gpt_v2.py", "finetune_gpt.py", "bin/run.py"]
)
def test_decoders_of_text_are_read_by_whatever_name(program: str) -> None:
    assert of_command(words_of_command(RUN.replace("pretrain_gpt.py", program)), "run.sh", UserSettings()).devices == 8


MANY_PLACES = f"""ENV=$1
MODEL_SIZE=$2
export TP=${{3}}   # tensor parallel
AC=$4
SAVE=${{10}}
if [ $ENV = local ]; then NNODES=1; elif [ $ENV = cloud ]; then NNODES=${{WORLD_SIZE}}; fi
case $MODEL_SIZE in 7B|8B) LAYERS=24 ;; 70B) LAYERS=80 ;; esac
if [ $AC = full ]; then
  again="--recompute-granularity full --recompute-method uniform"
elif [ $AC = none ]; then
  again=""
fi
torchrun --nnodes $NNODES --nproc_per_node 8 pretrain_gpt.py {SIZES.replace("layers 24", "layers $LAYERS")} \\
  --tensor-model-parallel-size $TP $again --save $SAVE
"""


def test_all_values_that_are_taken_by_position_are_requested_at_once() -> None:
    fix = "--set 1=local (ENV) --set 2=7B (MODEL_SIZE) --set 3=8 (TP) --set 4=full (AC) --set 10=/path (SAVE)"
    with refused("", problem=5, fix=fix):
        of(MANY_PLACES)
    some = {"1": "local", "2": "70B", "3": "4"}
    with refused("", problem=2, fix="--set 4=full (AC) --set 10=/path (SAVE)") as error:
        of(MANY_PLACES, **some)
    assert "--set 3" not in error.value.fix
    made = of_command(command_of_text(MANY_PLACES, some | {"4": "none"}, "run.sh", Path(".")), "run.sh", UserSettings())
    assert (made.tp, made.devices, made.recomputed.of) == (4, 8, "none")
