"""Plans as models of torch: what torch's own pieces carry of a plan, built of them and nothing else.

A unit u of a plan is a function of hidden states and parameters. Of a batch B of samples with T tokens each, cut into
micro-batches b and within each into the blocks of the unit's data-parallel ranks d, the gradient of the mean cross-entropy is

    g_u  =  sum over b  sum over d  sum over the rows r of block (b, d)  of  d loss(r) / d theta_u  /  (B T)

Every division is in 1 / (B T), which the head applies once. So all that ranks and micro-batches do with gradients is to add
them up, and units of unlike data degrees fit together; an average over each unit's own ranks would give each unit another
factor. Tensor parallelism writes the function itself as a sum over ranks: columns of the first matrices and rows of the last.

    field of the plan                      API of torch                                                          module
    stages, batch.micro_batches            pipelining.PipelineStage, on the ranks of one place of all stages     stages
    schedule 1f1b, gpipe, interleaved      Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B; 1f1b with fewer
                                           micro-batches than stages: _PipelineScheduleRuntime with its order    stages
    layout.levels tp                       parallelize_module: ColwiseParallel, RowwiseParallel; loss_parallel   parallel
    layout.sequence_parallel               SequenceParallel, and Shard(1) before and after the matrices          parallel
    layout.levels sdp, dp with sdp         fully_shard on the (dp, sdp) slice of a DeviceMesh, with sums         parallel
    layout.levels dp alone                 register_post_accumulate_grad_hook, all_reduce                        parallel
    states.zero 1, 2, 3; kept_whole        reshard_after_forward, set_reshard_after_backward,
                                           set_requires_gradient_sync, set_requires_all_reduce                   parallel
    unlike layouts of neighbours           DTensor.from_local(..).redistribute(..).to_local(..)                  stages
    activations.recompute                  torch.utils.checkpoint, of the unit or from one matrix to the next    blocks, ends
    precision                              MixedPrecisionPolicy(param_dtype, reduce_dtype) over fp32 parameters  parallel
    gathering ahead                        set_modules_to_forward_prefetch, set_modules_to_backward_prefetch     stages

Whatever else a plan has is refused by field (`refusals`), and run by its program. Modules are built on the meta device, cut
and sharded there, and given memory and the values of their seed last, so that no rank ever holds more than its part, except for
one tensor at a time. Programs and lowered models take the same samples, initial values and masks of dropout: each is the
other's oracle, and `benchmarks.lowered` holds them against each other and against one process.

One thing differs from programs: under ZeRO-1 and 2 FSDP holds a rank's shard of the parameters in addition to all of them.
"""
