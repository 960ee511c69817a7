"""Launchers, batch systems and containers set variables and arguments of the programs that they start."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainplan.execution.launch_files.run_configuration import UserSettings
from trainplan.execution.launch_files.shell import Command, command_of, command_of_text
from trainplan.execution.runtimes.megatron.reader import of_command
from trainplan.profiling.base.errors import InputError

from tests.helpers import bash

SIZES = "--num-layers 1 --hidden-size 8"
TP = "--tensor-model-parallel-size"


def command(text: str) -> Command:
    return command_of_text(text, {}, "run.sh", Path("."))


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("docker run -e TP=2 img", "2"),
        ("docker run --rm --env TP=2 --gpus all img", "2"),
        ("docker run --env=TP=2 img", "2"),
        ("export TP=4; docker run img", "1"),  # containers have their own variables
        ("export TP=4; docker run -e TP img", "4"),
        ("TP=4 docker exec -it name", "1"),
        ("TP=4 srun -N 1", "4"),
        ("export TP=4; srun --export=NONE", "1"),
        ("export TP=4; srun --export=ALL,X=1", "4"),
        ("export TP=4; srun --export=ALL,TP=2", "2"),
        ("export TP=4; apptainer exec --nv x.sif", "4"),
        ("export TP=4; singularity exec --cleanenv x.sif", "1"),
        ("export APPTAINERENV_TP=2; apptainer exec --nv x.sif", "2"),
        ("apptainer exec --env X=1,TP=2 x.sif", "2"),
        ("mpirun -np 2 -x TP=2", "2"),
        ("mpiexec -n 2 -genv TP 2", "2"),
        ("export TP=4; ssh host", "1"),
    ],
)
def test_variables_are_those_that_are_handed_on(start: str, expected: str) -> None:
    text = f"{start} bash -c 'python pretrain_gpt.py {SIZES} {TP} ${{TP:-1}}'"
    if "ssh" in start:
        text = f'{start} "python pretrain_gpt.py {SIZES} {TP} \\${{TP:-1}}"'
    assert command(text).values[TP] == expected


def test_sbatch_hands_on_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -N 2\npython pretrain_gpt.py {SIZES} {TP} $TP --x $SLURM_NNODES\n")
    (tmp_path / "run.sh").write_text("sbatch -N 4 --export=ALL,TP=2 job.sh\n")
    assert command_of(tmp_path / "run.sh", {}).values.items() >= {TP: "2", "--x": "4"}.items()


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("jsrun -n 4 -a 6 -g 6 python", 24),
        ("jsrun --nrs=8 --tasks_per_rs 1 python", 8),
        ("jsrun -p 12 python", 12),
        ("jsrun -n ALL_HOSTS -a 6 python", None),
        ("aprun -n 16 -N 8 python", 16),
        ("#SBATCH -N 2\nmpirun -N 4 python", 8),
        ("#PBS -l select=2:ncpus=64:ngpus=4:mpiprocs=4\nmpiexec python", 8),
        ("#PBS -l nodes=3:ppn=8:gpus=8\nmpirun python", 24),
        ("#PBS -l select=1:ngpus=4+1:ngpus=4\nmpirun -np $(cat $PBS_NODEFILE | wc -l) python", 2),
        ("#PBS -l select=2:ngpus=8\ntorchrun --nnodes $(sort -u $PBS_NODEFILE | wc -l) --nproc_per_node 8", 16),
        ("#PBS -l select=4:ngpus=8\nmapfile -t H < $PBS_NODEFILE\ntorchrun --nnodes ${#H[@]} --nproc_per_node 8", 32),
        ("#BSUB -nnodes 4\njsrun -n $(grep -v batch $LSB_DJOB_HOSTFILE | sort -u | wc -l) -a 6 python", 24),
        ('#BSUB -n 16\n#BSUB -R "span[ptile=8]"\n#BSUB -gpu "num=8:mode=exclusive_process"\nmpirun python', 16),
        ("qsub -l select=2:mpiprocs=8 -- /bin/true; torchrun --nproc_per_node 8", 8),
        ("#SBATCH --nodes=4\nH=($(scontrol show hostnames $SLURM_JOB_NODELIST))\n"
         "torchrun --nnodes ${#H[@]} --nproc_per_node 8", 32),
        ("#SBATCH --nodes=4\nN=$(scontrol show hostname | wc -l)\ntorchrun --nnodes $N --nproc_per_node 8", 32),
        ("torchrun --nnodes=1:4 --nproc_per_node 8", None),
        ("torchrun --nnodes=2:2 --nproc_per_node 8", 16),
        ("nice -n 10 torchrun --nproc_per_node 8", 8),
        ("#SBATCH -N 2 --ntasks-per-node=8\nsrun nice -n 3 numactl -N 0 python", 16),
    ],
)  # fmt: skip
def test_devices_are_those_that_a_batch_system_gives(text: str, devices: int | None) -> None:
    assert command(f"{text} pretrain_gpt.py {SIZES}\n").devices == devices


GETOPT = """O=$(getopt {options} -- "$@") || exit 1
eval set -- "$O"
while true; do case $1 in -t|--tp) TP=$2; shift 2 ;; -v|--verbose) V=1; shift ;; -s|--seq) S=$2; shift 2 ;; --) shift; break ;; esac; done
python pretrain_gpt.py --num-layers 1 --hidden-size 8 --tp $TP --v "$V" --s "$S" --n $# --rest "$*"
"""  # noqa: E501


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-o t:vs: --long tp:,verbose,seq:", ["--tp", "2", "-vs", "4096", "more", "words"]),
        ("--options t:v --longoptions tp:,verbose,seq: --name x", ["-t4", "--ver", "--seq=9", "--", "-t", "5"]),
        ("-o '' -l tp: -l seq:", ["a b", "--tp", "it's"]),
        ("t:vs:", ["-v", "-t", "8"]),
        ("-o +t: -l tp:,seq:", ["-t", "3", "x", "--tp", "5"]),
    ],
)
def test_getopt_sorts_options_from_words(options: str, words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(GETOPT.replace("{options}", options))
    ours = command_of(script, {str(n): word for n, word in enumerate(words, 1)})
    if bash.bash() is None:
        return
    programs = bash.stubs(tmp_path / "programs")
    (programs / "getopt").symlink_to("/usr/bin/getopt")
    bash.opened(tmp_path)
    for ran in bash.runs(script, programs, words=words) or []:
        assert ran[2:] == list(ours.words)


def test_programs_that_prepare_or_try_out_are_not_the_one_that_trains() -> None:
    text = f"python tools/checkpoint/convert.py {SIZES} {TP} 8\ntorchrun pretrain_gpt.py {SIZES} {TP} 2\n"
    text += f"python tasks/main.py {SIZES}\n"
    assert command(text).values[TP] == "2"
    with pytest.raises(InputError, match="M"):
        command(f"if [ $M = x ]; then python tasks/main.py {SIZES}; else torchrun pretrain_gpt.py {SIZES}; fi")


def test_a_script_that_submits_itself_goes_on_in_its_job() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=8\n"
    guard = 'if [ -z "$SLURM_JOB_ID" ]; then sbatch "$0"; exit; fi\n'
    run = f"srun python pretrain_gpt.py {SIZES}\n"
    assert command(head + guard + run).devices == 16
    assert command(head + f"if [[ -n ${{SLURM_JOB_ID:-}} ]]; then {run} else sbatch $0; fi").devices == 16


def test_a_script_that_is_not_here_starts_the_command_after_it(tmp_path: Path) -> None:
    run = f"./affinity.sh python -u pretrain_gpt.py {SIZES} {TP} 2\n"
    assert command(f"srun -N 2 --ntasks-per-node=8 {run}").values[TP] == "2"
    assert command(f"srun -N 2 --ntasks-per-node=8 {run}").devices == 16
    assert command(f"srun -N 2 --ntasks-per-node=1 {run}").devices is None  # it may start several on each node
    (tmp_path / "affinity.sh").write_text(f'exec "$@" {TP} 4\n')
    (tmp_path / "run.sh").write_text(run)
    assert command_of(tmp_path / "run.sh", {}).values[TP] == "4"


@pytest.mark.parametrize(
    "program",
    [
        "tools/run_text_generation_server.py",
        "tools/checkpoint/convert.py",
        "tools/preprocess_data.py",
        "text_generation_ptq.py",
        "examples/inference/gpt/gpt_static_inference.py",
        "evaluate.py",
        "quantize.py",
    ],
)
def test_programs_that_train_nothing_have_no_prediction(program: str) -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --max-position-embeddings 64 --bf16"
    text = f"torchrun --nproc_per_node 1 {program} {sizes} --micro-batch-size 1 --global-batch-size 1"
    with pytest.raises(InputError, match="trains nothing"):
        of_command(command(text), "run.sh", UserSettings())
