"""Measurements that need a GPU, as three commands of at most nine minutes each, to be run in this order on a machine with one
GPU:

    python -m tests.gpu.correctness    results, under delays too; what makes the host wait
    python -m tests.gpu.resources      memory, overlap, bandwidth, attention kernels
    python -m tests.gpu.speed          ranks that share the GPU, NCCL, step and host time

Each writes one JSON line a result, as soon as it is there, to `tests/gpu/measured/COMMAND-GPU-DATE.jsonl`, so that nothing is
lost where a machine ends early. The first line says what the machine is. A part begins only while there is time for it; one
that does not, or that fails, has a line that says so. The exit code is 1 where one failed or a result is not what it must be.

Without a GPU they say so and do nothing. `--device cpu` runs what needs none: there the back-end `threads` stands for
`streams`, and what is about streams, CUDA's memory or its kernels has a line "needs a GPU".
"""
