"""Keys that runtimes document and that change no plan, by runtime; beside those that are read, all that is known of them.

Megatron-LM: `megatron/training/arguments.py` (core 0.15, 2025). torchtitan: `torchtitan/config/job_config.py` (2025).
DeepSpeed: its page on the JSON configuration, and `runtime/zero/config.py` (0.19, 2026). Accelerate: `accelerate config`
(1.15, 2026).
"""

from __future__ import annotations

from trainplan.profiling.models.families.fields import names

# Arguments of Megatron-LM: data, optimizer, logs, checkpoints, kernels.
MEGATRON = names(
    """
    --adam-beta1 --adam-beta2 --adam-eps --add-qkv-bias --align-grad-reduce --align-param-gather --apply-layernorm-1p
    --apply-query-key-layer-scaling --async-save --attention-backend --attention-softmax-in-fp32
    --auto-detect-ckpt-format --bert-no-binary-head --cache-dataset --check-for-nan-in-loss-and-grad --ckpt-format
    --ckpt-fully-parallel-load --clip-grad --clone-scatter-output-in-embedding --cross-entropy-fusion-impl
    --cross-entropy-loss-fusion --cuda-graph-scope --data-cache-path --data-path --dataloader-type
    --ddp-average-in-collective --ddp-bucket-size --ddp-num-buckets --ddp-pad-buckets-for-high-nccl-busbw
    --decoder-seq-length --deterministic-mode --dist-ckpt-format --dist-ckpt-strictness
    --distributed-backend --distributed-timeout-minutes --empty-unused-memory-level
    --end-weight-decay --eod-mask-loss --eval-interval --eval-iters --exit-duration-in-mins --exit-interval
    --exit-on-missing-checkpoint --exit-signal-handler --finetune --fp8-amax-compute-algo --fp8-amax-history-len
    --fp8-interval --fp8-margin --fp8-wgrad --hysteresis --init-method-std
    --init-method-xavier-uniform --initial-loss-scale --iter-per-epoch --kv-channels
    --legacy-tokenizer --load --local-rank --log-interval --log-memory-to-tensorboard --log-num-zeros-in-grad
    --log-params-norm --log-progress --log-straggler --log-throughput --log-timers-to-tensorboard
    --log-validation-ppl-to-tensorboard --log-world-size-to-tensorboard --logging-level --loss-scale --loss-scale-window
    --lr --lr-decay-init --lr-decay-iters --lr-decay-samples --lr-decay-style --lr-warmup-fraction --lr-warmup-init
    --lr-warmup-iters --lr-warmup-samples --lr-wsd-decay-iters --lr-wsd-decay-style --manual-gc --manual-gc-eval
    --manual-gc-interval --mask-prob --max-tokens-to-oom --memory-snapshot-path --merge-file --mid-level-dataset-surplus
    --min-loss-scale --min-lr --mmap-bin-files --mock-data --nccl-communicator-config-path
    --no-barrier-with-level-1-timing --no-bias-dropout-fusion
    --no-check-for-nan-in-loss-and-grad
    --no-create-attention-mask-in-dataloader --no-initialization --no-load-optim
    --no-load-rng --no-masked-softmax-fusion --no-mmap-bin-files --no-one-logger --no-overlap-p2p-communication
    --no-persist-layer-norm --no-query-key-layer-scaling --no-rope-fusion --no-save-optim --no-save-rng
    --muon-extra-scale-factor --muon-fp32-matmul-prec --muon-momentum --muon-no-split-qkv --muon-scale-mode
    --muon-use-nesterov --num-dataset-builder-threads --num-layers-at-end-in-bf16 --num-layers-at-start-in-bf16
    --num-workers --one-logger-async
    --overlap-param-gather-with-optimizer-step --override-opt-param-scheduler --per-split-data-args-path
    --calculate-per-token-loss
    --per-token-loss --perform-initialization --profile --profile-ranks --profile-step-end --profile-step-start
    --pytorch-profile --record-memory-history --rerun-mode --reset-position-ids
    --reuse-grad-buf-for-mxfp8-param-ag
    --result-rejected-tracker-filename --retro-cyclic-train-iters --rope-impl --rotary-seq-len-interpolation-factor
    --save --save-interval --save-retain-interval --seed --sgd-momentum --skip-train --split --start-weight-decay
    --swap-dataset --tensorboard-dir --tensorboard-log-interval --tensorboard-queue-size --test-data-path --test-mode
    --tiktoken-num-special-tokens --tiktoken-pattern --tiktoken-special-tokens --timing-log-level --timing-log-option
    --tokenizer-model --tokenizer-prompt-format --tp-comm-bootstrap-backend --tp-comm-overlap-ag --tp-comm-overlap-cfg
    --tp-comm-overlap-rs --train-data-path --train-iters --train-samples --train-sync-interval --transformer-impl
    --use-checkpoint-opt-param-scheduler --use-cpu-initialization --use-dist-ckpt --use-flash-attn
    --use-fused-weighted-squared-relu --use-mcore-models --use-one-sent-docs --use-persistent-ckpt-worker
    --use-pytorch-profiler --use-te --valid-data-path
    --vocab-extra-ids --vocab-file --wandb-entity --wandb-exp-name --wandb-project --wandb-save-dir --weight-decay
    --weight-decay-incr-style --weight-decay-style
    --adlr-autoresume --adlr-autoresume-interval --aml-data-download-path --app-tag-run-name --app-tag-run-version
    --apply-residual-connection-post-layernorm --ckpt-drop-redundant-extra-state
    --ckpt-fully-parallel-save --ckpt-step --contigious-checkpointing --cpu-torch-adam --data-args-path
    --data-impl --data-parallel-random-init --dataset --DDP-impl --decoupled-lr
    --decoupled-min-lr --deepspeed-activation-checkpointing --deepspeed-config --disable-mem-efficient-ln
    --disable-tp-comm-bulk-dgrad --disable-tp-comm-bulk-wgrad --disable-tp-comm-overlap-ag --disable-tp-comm-overlap-rs
    --disable-tp-comm-split-ag --disable-tp-comm-split-rs
    --ds-fused-adam --dist-ckpt-workers --eval-dev
    --head-lr-mult --lazy-mpu-init --load-tag
    --log-batch-size-to-tensorboard --log-optimizer-states-to-tensorboard --lr-decay-tokens --lr-warmup-tokens
    --max-padding-length --mmap-warmup --no-contiguous-buffers-in-local-ddp --no-data-sharding
    --no-load-lr-state --no-log-learnig-rate-to-tensorboard --no-log-loss-scale-to-tensorboard
    --no-position-embedding --no-scatter-gather-tensors-in-pipeline --non-persistent-ckpt-type
    --non-persistent-local-ckpt-algo --non-persistent-local-ckpt-dir --non-persistent-save-interval --onnx-safe
    --openai-gelu --patch-tokenizer-type --pretrained-checkpoint --profile-backward
    --profile-steps --repeated-dataloader --short-seq-prob --synchronize-each-layer --topk --train-mode --train-tokens
    --trust-remote-code --universal-checkpoint --use-pin-memory --use-ring-exchange-p2p --version --warmup
    --use-contiguous-buffers-in-local-ddp --use-legacy-models --wgrad-deferral-limit --zero-allgather-bucket-size
    --zero-contigious-gradients --zero-reduce-bucket-size --zero-reduce-scatter
    --sync-tp-duplicated-parameters --create-moe-param-group --fsdp-db-use-persist-buf-on-alloc-fail
    --fsdp-manual-registration --init-model-with-meta-device --suggested-communication-unit-size --norm-target-loss --mup
    --mup-attn-mult --mup-input-mult --mup-output-mult --mup-base-shapes --inference
    --abort-on-unmet-fused-kernel-constraints --kill-switch-path
    --ckpt-fully-parallel-load-exchange-algo --ckpt-fully-parallel-load-per-rank-objects
    --ckpt-fully-parallel-load-process-group --disable-gloo-process-groups --dump-param-to-param-group-map
    --enable-gloo-process-groups --eval-global-batch-size --eval-micro-batch-size --grad-norm-skip-threshold
    --high-priority-stream-groups --muon-coefficient-type --muon-nesterov --muon-use-syrk --otel-span-groups
    --sharp-enabled-group
    """
)

# Keys of torchtitan, of 0.2 and of versions since April 2024.
TORCHTITAN = names(
    """
    activation_checkpoint.determinism_check activation_checkpoint.early_stop
    activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns activation_checkpoint.preserve_rng_state
    activation_checkpoint.debug activation_checkpoint.visualize_memory_budget_pareto compile.backend
    compile.model_backend_override experimental.custom_args_module experimental.custom_import fault_tolerance.group_size
    fault_tolerance.min_replica_size fault_tolerance.process_group fault_tolerance.process_group_timeout_ms
    fault_tolerance.replica_id fault_tolerance.semi_sync_method model.hf_assets_path model.name model.print_after_conversion
    model.tokenizer_path parallelism.context_parallel_load_balancer parallelism.context_parallel_rotate_method
    parallelism.context_parallel_ptrr_mask_key parallelism.enable_fsdp_symm_mem parallelism.spmd_backend
    training.disable_cuda_graphs parallelism.enable_compiled_autograd parallelism.expert_parallel_comm_backend
    parallelism.pipeline_parallel_expert_parallel_overlap quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp
    quantize.linear.mx.mxfp8_dim1_cast_kernel_choice float8.force_recompute_fp8_weight_in_bwd
    mx.use_fp8_dim1_cast_triton_kernel mx.moe_fqns_prototype float8.moe_fqns_prototype training.dataset
    training.dataset_path training.debug_moe_force_load_balance training.deterministic training.gc_debug training.gc_freq
    training.max_norm training.seed training.steps training.warmup_steps training.checkpoint_folder
    training.checkpoint_interval training.checkpoint_interval_type optimizer.beta1 optimizer.beta2 optimizer.eps
    optimizer.fused optimizer.implementation optimizer.lr optimizer.weight_decay
    """
)

# Tables of torchtitan all of whose keys are such.
TORCHTITAN_TABLES = names(
    """
    checkpoint. comm. debug. job. lr_scheduler. memory_estimation. metrics. profiling. quantize.grouped_mm. quantize.moe.
    training.dataloader. validation.
    """
)

# Keys of DeepSpeed: buffers, logs, the optimizer's numbers.
DEEPSPEED = names(
    """
    bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states bf16.check_grad_overflow bf16.immediate_grad_update
    checkpoint_tag_validation dataloader_drop_last disable_allgather dump_state fp16.auto_cast
    fp16.consecutive_hysteresis fp16.fp16_master_weights_and_grads fp16.hysteresis fp16.initial_scale_power
    fp16.loss_scale fp16.loss_scale_window fp16.min_loss_scale fp32_allreduce gradient_clipping log_level
    managed_gradient_accumulation use_data_before_expert_parallelism vocabulary_size
    gradient_allreduce_op gradient_predivide_factor graph_harvesting load_universal_checkpoint memory_breakdown
    prescale_gradients seed
    seq_parallel_communication_data_type sparse_gradients steps_per_print use_node_local_storage wall_clock_breakdown
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization.allgather_bucket_size
    zero_optimization.allgather_partitions zero_optimization.allgather_sequential zero_optimization.compute_grad_norm
    zero_optimization.contiguous_gradients zero_optimization.cpu_offload_use_pin_memory
    zero_optimization.elastic_checkpoint zero_optimization.enable_sanity_checks
    zero_optimization.gather_16bit_weights_on_model_save zero_optimization.ignore_unused_parameters
    zero_optimization.legacy_stage1 zero_optimization.load_from_fp32_weights zero_optimization.log_trace_cache_warnings
    zero_optimization.max_live_parameters zero_optimization.max_reuse_distance
    zero_optimization.memory_efficient_linear zero_optimization.mics_hierarchical_params_gather
    zero_optimization.model_persistence_threshold zero_optimization.module_granularity_threshold
    zero_optimization.offload_optimizer.buffer_count zero_optimization.offload_optimizer.buffer_size
    zero_optimization.offload_optimizer.cpuadam_cores_perc zero_optimization.offload_optimizer.fast_init
    zero_optimization.offload_optimizer.max_in_cpu zero_optimization.offload_optimizer.nvme_path
    zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_optimizer.pipeline_read
    zero_optimization.offload_optimizer.pipeline_write zero_optimization.offload_optimizer.ratio
    zero_optimization.offload_optimizer.super_offload zero_optimization.offload_param.buffer_count
    zero_optimization.offload_param.buffer_size zero_optimization.offload_param.fast_init
    zero_optimization.offload_param.max_in_cpu zero_optimization.offload_param.nvme_path
    zero_optimization.offload_param.pin_memory zero_optimization.offload_param.pipeline_read
    zero_optimization.offload_param.pipeline_write zero_optimization.offload_param.ratio
    zero_optimization.offload_param.super_offload zero_optimization.overlap_comm
    zero_optimization.override_module_apply zero_optimization.param_persistence_threshold
    zero_optimization.parameter_alignment zero_optimization.pipeline_loading_checkpoint
    zero_optimization.prefetch_bucket_size zero_optimization.reduce_bucket_size zero_optimization.reduce_scatter
    zero_optimization.round_robin_gradients zero_optimization.save_muon_momentum_buffer_in_memory
    zero_optimization.stage3_allgather_sequential zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.stage3_gather_fp16_weights_on_model_save zero_optimization.stage3_max_live_parameters
    zero_optimization.stage3_max_reuse_distance zero_optimization.stage3_model_persistence_threshold
    zero_optimization.stage3_module_granularity_threshold zero_optimization.stage3_param_persistence_threshold
    zero_optimization.stage3_prefetch_bucket_size zero_optimization.stage3_use_all_reduce_for_fetch_params
    zero_optimization.sub_group_size zero_optimization.use_all_reduce_for_fetch_params
    zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.zero_quantized_gradients
    zero_optimization.zero_quantized_nontrainable_weights zero_optimization.zero_quantized_weights
    zero_optimization.zeropp_loco_param
    """
)

# Tables of DeepSpeed all of whose keys are such.
DEEPSPEED_TABLES = names(
    """
    activation_checkpointing. aio. amp. autotuning. checkpoint. comet. compression_training. datastates.
    expert_parallel. hybrid_engine. progressive_layer_drop. quantize_training. sparse_attention. torch_autocast.
    weight_quantization. msamp. comms_logger. compile. csv_monitor.
    curriculum_learning. data_efficiency. data_types. eigenvalue. elasticity. flops_profiler. monitor_config. nebula.
    optimizer. pipeline. scheduler. tensor_parallel. tensorboard. timers. wandb. zero_optimization.leaf_module.
    zero_optimization.zenflow.
    """
)

# Keys of Accelerate.
ACCELERATE = names(
    """
    command_file commands compute_environment debug deepspeed_hostfile deepspeed_multinode_launcher downcast_bf16
    enable_cpu_affinity fsdp_config.fsdp_auto_wrap_policy fsdp_config.fsdp_backward_prefetch
    fsdp_config.fsdp_backward_prefetch_policy fsdp_config.fsdp_cpu_ram_efficient_loading
    fsdp_config.fsdp_forward_prefetch fsdp_config.fsdp_limit_all_gathers fsdp_config.fsdp_min_num_params
    fsdp_config.fsdp_state_dict_type fsdp_config.fsdp_sync_module_states fsdp_config.fsdp_transformer_cls_names_to_wrap
    fsdp_config.fsdp_transformer_layer_cls_to_wrap
    fsdp_config.fsdp_use_orig_params gpu_ids machine_rank main_process_ip main_process_port main_training_function
    num_machines parallelism_config.parallelism_config_cp_backend
    parallelism_config.parallelism_config_cp_comm_strategy parallelism_config.parallelism_config_sp_attn_implementation
    parallelism_config.parallelism_config_sp_backend parallelism_config.parallelism_config_sp_seq_length
    parallelism_config.parallelism_config_sp_seq_length_is_variable rdzv_backend same_network tpu_env tpu_name
    tpu_use_cluster tpu_use_sudo tpu_zone use_cpu
    """
)

# Tables of Accelerate all of whose keys are such.
ACCELERATE_TABLES = names(
    """
    dynamo_config. fp8_config. ipex_config. mpirun_config. tpu_
    """
)
