"""What batch systems give a script: nodes, tasks and devices, by its header or by options, and the variables that say so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trainplan.execution.launch_files.shell.marks import MARK

SLURM = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
PBS = re.compile(r"^#PBS\s+(.*)$", re.MULTILINE)
LSF = re.compile(r"^#BSUB\s+(.*)$", re.MULTILINE)
HEADER = re.compile(r"^#(?:SBATCH|PBS|BSUB)\s", re.MULTILINE)
SHORT = {"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-G": "gpus", "-np": "ntasks", "--np": "ntasks", "--n": "ntasks"}
COUNTS = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "gpus-per-node",
    "gpus-per-task",
    "gpus",
    "gres",
    "tasks-per-node",
    "npernode",
    "ppn",
)
PER_NODE = ("tasks-per-node", "npernode", "ppn")
# Launchers whose -N says tasks on each node.
OF_TASKS = ("mpirun", "mpiexec", "orterun", "aprun", "mpiexec.hydra")
# A job has a number, so that scripts which submit themselves where they have none go on.
JOBS = {"SLURM": {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1"}, "PBS": {"PBS_JOBID": "1"}, "LSF": {"LSB_JOBID": "1"}}
NODEFILE, HOSTFILE = "/var/spool/pbs/nodefile", "/var/spool/lsf/hostfile"


def counts(words: Sequence[str], launcher: str = "") -> dict[str, str]:
    """Nodes, tasks and devices that options of Slurm, MPI or another launcher say."""
    if launcher == "jsrun":
        return _resource_sets(words)
    if launcher not in ("", "srun", "sbatch", "salloc", "prun", "horovodrun", "ibrun", "flux", *OF_TASKS):
        return {}
    made: dict[str, str] = {}
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        name = SHORT.get(name, name.removeprefix("--").removeprefix("-") if name.startswith("-") else "")
        if not sign:
            value = words[index + 1] if index + 1 < len(words) else ""
            short = re.fullmatch(r"-([NnG])(\d+)", word)
            if short:
                name, value = SHORT[f"-{short[1]}"], short[2]
        if name in COUNTS and value:
            name = "ntasks-per-node" if name in PER_NODE or (name == "nodes" and launcher in OF_TASKS) else name
            if name == "gres":
                gpus = re.search(r"(?:gpu|dcu|npu)(?::[a-zA-Z][\w.-]*)?(?::(\d+))?", value)
                name, value = "gpus-per-node", (gpus[1] or "1") if gpus else ""
            number = re.search(r"(\d+)$", value) if not MARK.search(value) else None
            made[name] = number[1] if number else value if MARK.search(value) else ""
    return {name: value for name, value in made.items() if value}


def _resource_sets(words: Sequence[str]) -> dict[str, str]:
    """Tasks of jsrun: resource sets, and the tasks of each; empty where they are not numbers."""
    said: dict[str, str] = {}
    names = {"-n": "sets", "--nrs": "sets", "-a": "tasks", "--tasks-per-rs": "tasks", "-p": "ntasks", "--np": "ntasks"}
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        short = re.fullmatch(r"(-[nap])(\S+)", word)
        name, value = (short[1], short[2]) if short else (name, value or "".join(words[index + 1 : index + 2]))
        if name.replace("_", "-") in names:
            said[names[name.replace("_", "-")]] = value
    tasks, sets, each = said.get("ntasks", ""), said.get("sets", ""), said.get("tasks", "1")
    if not tasks and sets.isdecimal() and each.isdecimal():
        tasks = str(int(sets) * int(each))
    return {"ntasks": tasks or "?"}  # where it is not known, what the job has does not say it either


def batch_of(text: str) -> dict[str, str]:
    """What lines of a script say to Slurm, PBS or LSF, and the variables and files by which these say it to the script."""
    made: dict[str, str] = {}
    for pattern, of in ((SLURM, _slurm), (PBS, pbs), (LSF, _lsf)):
        if lines := pattern.findall(text):
            made |= of([word for line in lines for word in re.sub(r"\s#.*", "", line).split()])
    return made


def _slurm(words: Sequence[str]) -> dict[str, str]:
    return changed({}, {"nodes": "1", **counts(words)})


def changed(batch: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """What Slurm gives where options of `sbatch` or `srun` stand behind a header: counts, and the variables that say them."""
    made = {**batch, **options}
    nodes, per_node, tasks = made.get("nodes", ""), made.get("ntasks-per-node", ""), made.get("ntasks", "")
    if not tasks and per_node.isdecimal() and nodes.isdecimal():
        tasks = str(int(nodes) * int(per_node))
    gpus = made.get("gpus-per-node", "")
    variables = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node, "SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus,
    }  # fmt: skip
    return made | {name: value for name, value in variables.items() if value} | JOBS["SLURM"]


def pbs(words: Sequence[str]) -> dict[str, str]:
    """Of `-l select=2:ngpus=8:mpiprocs=8`, and of `-l nodes=2:ppn=8:gpus=8`."""
    nodes, tasks, lines = 0, 0, list[str]()
    gpus, per_node = set[str](), set[str]()
    said = re.search(r"(?:^|[\s,])(select|nodes)=([^\s,]+)", " ".join(words))
    for chunk in said[2].split("+") if said else []:
        count, *parts = chunk.split(":")
        fields = {name: value for name, _, value in (part.partition("=") for part in parts)}
        each = fields.get("mpiprocs", fields.get("ppn", ""))
        number = int(count) if re.fullmatch(r"\d{1,5}", count) else 1
        gpus.add(fields.get("ngpus", fields.get("gpus", "")))
        per_node.add(each)
        procs = int(each) if re.fullmatch(r"\d{1,4}", each) else 1
        lines += [f"node{nodes + n:03d}\n" * procs for n in range(number)]
        nodes, tasks = nodes + number, tasks + number * procs
    if not said:
        return {}
    made = JOBS["PBS"] | {
        "nodes": str(nodes), "PBS_NODEFILE": NODEFILE, f"file {NODEFILE}": "".join(lines), "PBS_NUM_NODES": str(nodes),
        "PBS_NNODES": str(nodes),
    }  # fmt: skip
    if len(gpus) == 1 and (each := gpus.pop()):
        made["gpus-per-node"] = each
    if len(per_node) == 1 and (each := per_node.pop()):
        made |= {"ntasks-per-node": each, "PBS_NP": str(tasks), "PBS_NUM_PPN": each}
    return made


def _lsf(words: Sequence[str]) -> dict[str, str]:
    """Of `-nnodes 4`, or of `-n 32 -R "span[ptile=8]" -gpu "num=8"`."""
    text = " ".join(words)
    patterns = r"(?:^|\s)-nnodes\s+", r"(?:^|\s)-n\s+", r"\bptile=", r"-gpu\s+\S*num="
    nodes, tasks, each, gpus = ("".join(re.findall(rf"{pattern}(\d{{1,6}})\b", text)[:1]) for pattern in patterns)
    made = dict(JOBS["LSF"])
    hosts = int(nodes) if nodes else -(-int(tasks) // int(each)) if tasks and each and int(each) else 0
    if tasks:
        made |= {"ntasks": tasks, "LSB_DJOB_NUMPROC": tasks}
    if gpus:
        made["gpus-per-node"] = gpus
    if hosts:
        lines = ["batch1\n"] * bool(nodes) + [f"host{n:03d}\n" * int(each or 1) for n in range(hosts)]
        made |= {"nodes": str(hosts), "LSB_DJOB_HOSTFILE": HOSTFILE, f"file {HOSTFILE}": "".join(lines)}
    return made


def hostnames(batch: dict[str, str]) -> str | None:
    """What `scontrol show hostnames` prints of the nodes of a job; None where nobody has said how many these are."""
    nodes = batch.get("SLURM_NNODES", batch.get("nodes", ""))
    return "".join(f"node{n:03d}\n" for n in range(int(nodes))) if re.fullmatch(r"\d{1,5}", nodes) else None
