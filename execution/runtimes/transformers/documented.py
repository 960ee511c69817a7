"""Keys that trainers on transformers document and that change no plan, by trainer; beside those that are read or refused.

axolotl: `axolotl/utils/schemas` and the arguments of its plugins (0.18, 2026). LLaMA-Factory: `llamafactory/hparams` (0.9.6,
2026). transformers: its TrainingArguments of versions 4.40 to 5.23, and TRL's scripts.
"""

from __future__ import annotations

from trainplan.profiling.models.families.fields import names

# Options of FSDP, in a table of their own or alone, with or without `fsdp_`.
FSDP_OPTIONS = names(
    """
    backward_prefetch backward_prefetch_policy cpu_offload_pin_memory cpu_ram_efficient_loading final_state_dict_type
    forward_prefetch limit_all_gathers min_num_params state_dict_type sync_module_states transformer_cls_names_to_wrap
    transformer_layer_cls_to_wrap use_orig_params xla xla_fsdp_grad_ckpt xla_fsdp_v2
    """
)
FSDP = frozenset(f"{table}{name}" for table in ("fsdp_config.", "fsdp_config.fsdp_", "fsdp_") for name in FSDP_OPTIONS)

# Keys of axolotl.
AXOLOTL = FSDP | names(
    """
    accelerator_config adam_beta1 adam_beta2 adam_beta3 adam_epsilon adam_epsilon2 adaptive_max_tokens
    added_tokens_overrides additional_special_tokens advantage_estimator alignment_coef auto_resume_from_checkpoints
    axolotl_config_path base_model_config batch_flattening bench_dataset bench_split bnb_config_kwargs bos_token
    capabilities ce_coef center_rewards_coefficient chat_template chat_template_jinja chat_template_kwargs
    chunked_cross_entropy_num_chunks cls_model_config comet_api_key comet_experiment_config comet_experiment_key
    comet_mode comet_online comet_project_name comet_workspace context_length cosine_constant_lr_ratio
    cosine_min_lr_ratio cpo_alpha curriculum_sampling dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_prefetch_factor dataset_exact_deduplication dataset_keep_in_memory dataset_num_proc dataset_prepared_path
    dataset_processes dataset_shard_idx dataset_shard_num datasets ddp ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_timeout deepcompile default_system_message device dion_lr dion_momentum
    dion_rank_fraction dion_rank_multiple_of diversity_coef do_bench_eval do_causal_lm_eval dpo_beta
    dpo_generate_during_eval dpo_label_smoothing dpo_loss_type dpo_loss_weights dpo_norm_loss dpo_padding_free
    dpo_use_liger_kernel dpo_use_logits_to_keep dpo_use_weighting dsv4_bf16_all dsv4_fp4_grouped_mode
    dsv4_fp8_lora_kernel dsv4_fp8_nonexpert_mode dsv4_shared_mlp_lora_kernel dynamic_checkpoint eaft_alpha eaft_k
    early_stopping_patience embed_method embedding_lr embedding_lr_scale embeddings_skip_upcast end env_capabilities
    eos_token eot_tokens eval_batch_size eval_causal_lm_metrics eval_max_new_tokens eval_sample_packing
    eval_sequence_len eval_steps eval_strategy eval_table_size evals_per_epoch evaluation_strategy
    excess_length_strategy experimental_skip_move_to_device expert_backend experts_implementation feature_layers
    fix_untrained_tokens flash_attn_cross_entropy flash_attn_d512 flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum
    flex_attn_compile_kwargs float32 fp32_norm_classes fp32_norms fp8_enable_fsdp_float8_all_gather freeze_mm_modules
    fsdp_final_state_dict_type fused_attn_kernel gc_collect_steps gc_steps gemma4_fp8_nonexpert gemma4_hybrid_attn_impl
    gemma4_nf4_nonexpert generate_max_len generate_samples generation_do_sample generation_max_new_tokens
    generation_prompt_ratio generation_temperature generation_top_k generation_top_p gradient_checkpointing_kwargs
    gradio_max_new_tokens gradio_server_name gradio_server_port gradio_share gradio_temperature gradio_title
    greater_is_better group_by_length gt_length_multiplier heads_k_stride hf_mlflow_log_artifacts hf_use_auth_token
    hub_model_id hub_revision hub_strategy image_resize_algorithm image_size include_end include_start include_tkps
    include_tokens_per_second is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_preprocess
    is_qwen_derived_model jagged_restart_anneal_steps jagged_restart_steps jagged_restart_warmup_steps
    kto_desirable_weight kto_undesirable_weight large_head_attention learning_rate liger_cross_entropy
    liger_glu_activation liger_layer_norm liger_rms_norm liger_rms_norm_gated liger_rope liger_swiglu
    liger_use_token_scaling lisa_layers_attribute lisa_n_layers lisa_step_interval llama4_linearized_experts
    load_best_model_at_end local_rank loftq_bits loftq_config logging_steps lora_alpha lora_alpha_pattern lora_dropout
    lora_embedding_kernel lora_fan_in_fan_out lora_mlp_kernel lora_modules_to_save lora_o_kernel lora_on_cpu
    lora_qkv_kernel lora_r lora_rank_pattern lora_target_linear lora_target_modules lora_target_parameters
    loraplus_lr_embedding loraplus_lr_ratio loss_watchdog_patience loss_watchdog_threshold low_cpu_mem_usage lr
    lr_div_factor lr_groups lr_quadratic_warmup lr_scheduler lr_scheduler_kwargs max_grad_norm max_packed_sequence_len
    max_prompt_len max_steps mean_resizing_embeddings merge_lora merge_method metric_for_best_model
    min_completion_prefix min_sample_len mlflow_experiment_name mlflow_run_name mlflow_tracking_uri mode
    model_quantization_config_kwargs modules moe_bnb_fast moe_dequant_chunk_size moe_grouped_backend
    multipack_real_batches n_samples_per_prompt name neftune_noise_alpha noisy_embedding_alpha nonexpert_quantization
    num_dataset_shards_to_save num_epochs num_generation_samples nvfp4_merge_aware nvfp4_merge_aware_start_step offload
    optim_args optim_target_modules orpo_alpha otel_metrics_host otel_metrics_port output_dir pad_to_multiple_of
    pad_token peft peft_autocast_adapter_dtype peft_ensure_weight_tying peft_init_lora_weights peft_layer_replication
    peft_layers_pattern peft_layers_to_transform peft_trainable_token_indices peft_use_dora peft_use_rslora
    pose_max_context_len pose_num_chunks pose_split_on_token_ids precompute_ref_log_probs preprocess_iterable
    pretrain_multipack_attn pretrain_multipack_buffer_size pretraining_sample_concatenation processor_kwargs
    processor_type profiler_steps profiler_steps_start push_dataset_to_hub qgalore_cos_threshold qgalore_gamma_proj
    qgalore_proj_bits qgalore_proj_group_size qgalore_proj_quant qgalore_proj_type qgalore_queue_size qgalore_rank
    qgalore_scale qgalore_update_proj_gap qlora_sharded_model_loading quantization ray_num_workers ray_run_name
    recompute_layer_types reinit_weights relora_cpu_offload relora_prune_method relora_prune_ratio remove_unused_columns
    resize_token_embeddings_to_32x resources_per_worker resume_from_checkpoint revision_of_model ring_attn_func rl_beta
    rl_coef role role_boundaries rope_scaling rpo_alpha s2_attention sample_packing_bin_size sample_packing_eff_est
    sample_packing_group_size sample_packing_mp_start_method sample_packing_sequentially save save_first_step
    save_only_model save_safetensors save_sliding_window save_steps save_strategy save_total_limit saves_per_epoch
    scaling_softmax scaling_softmax_bias scaling_softmax_factor sdpa_varlen seed shrink_embeddings
    shuffle_before_merging_datasets shuffle_merged_datasets simpo_gamma skip_prepare_dataset special_tokens start
    streaming streaming_multipack_buffer_size strict stride swanlab_api_host swanlab_api_key
    swanlab_completion_log_interval swanlab_completion_max_buffer swanlab_description swanlab_experiment_name
    swanlab_lark_secret swanlab_lark_webhook_url swanlab_log_completions swanlab_log_model swanlab_mode swanlab_project
    swanlab_web_host swanlab_workspace temperature test_datasets tf32 tiled_mlp_num_shards tiled_mlp_use_original_mlp
    tokenizer_config tokenizer_legacy tokenizer_save_jinja_files tokenizer_type tokenizer_use_fast
    tokenizer_use_mistral_common tokens top_p torch_compile_backend torch_compile_mode torch_compile_options
    torch_empty_cache_steps torchdistx_path total_num_tokens total_supervised_tokens trackio_project_name
    trackio_run_name trackio_space_id train_on_inputs trainer_cls trust_remote_code type_of_model unk_token use_comet
    use_dsv4_kernels use_eaft use_glm_dsa_kernels use_kernels use_mlflow use_otel_metrics use_ray use_scattermoe
    use_sonicmoe use_swanlab use_tensorboard use_trackio use_wandb use_whitening val_set_size vllm wandb_entity
    wandb_log_model wandb_mode wandb_name wandb_project wandb_run_id wandb_watch warmup_ratio warmup_steps weight_decay
    world_size debug model_type
    """
)

# Tables of axolotl all of whose keys are such.
AXOLOTL_TABLES = names(
    """
    accelerator_config. added_tokens_overrides. bnb_config_kwargs. chat_template_kwargs. comet_ flex_attn_compile_kwargs.
    gradient_checkpointing_kwargs. lora_ loraplus_ lr_scheduler_kwargs. mlflow_ optim_args. peft. peft_ processor_kwargs.
    quantization. special_tokens. strict swanlab_ torch_compile_ trackio_ vllm. wandb_
    """
)

# Keys of LLaMA-Factory's own.
LLAMA_FACTORY = names(
    """
    adapter_folder add_special_tokens add_tokens additional_target apollo_layerwise apollo_proj apollo_proj_type
    apollo_rank apollo_scale apollo_scale_front apollo_scale_type apollo_target apollo_update_interval asft_alpha
    audio_sampling_rate badam_mask_mode badam_mode badam_start_block badam_switch_interval badam_switch_mode
    badam_update_ratio badam_verbose block_diag_attn buffer_size cache_dir compute_accuracy compute_dtype
    create_new_adapter crop_to_patches data_shared_file_system dataset dataset_dir default_system device_map
    disable_shuffling do_sample double_quantization dpo_label_smoothing eaft_alpha early_stopping_steps enable_thinking
    enable_torch_profiler eval_dataset eval_num_beams eval_on_each_dataset export_device export_dir export_hub_model_id
    export_legacy_format export_quantization_bit export_quantization_dataset export_quantization_maxlen
    export_quantization_nsamples export_size fp8_backend fp8_enable_fsdp_float8_all_gather freeze_extra_modules
    freeze_language_model freeze_multi_modal_projector freeze_trainable_layers freeze_trainable_modules
    freeze_vision_tower galore_layerwise galore_proj_type galore_rank galore_scale galore_target galore_update_interval
    hf_hub_token hyper_parallel_cp_size ignore_pad_token_for_loss image_do_pan_and_scan image_max_pixels
    image_min_pixels include_effective_tokens_per_second infer_backend infer_dtype init_special_tokens interleave_probs
    kt_cpu_activation kt_expert_checkpoint_path kt_lora_expert_intermediate_size kt_lora_expert_num
    kt_non_expert_weight_path kt_use_lora_experts kt_weight_path kto_chosen_weight kto_rejected_weight ld_alpha
    length_penalty lora_alpha lora_dropout lora_rank lora_target loraplus_lr_embedding loraplus_lr_ratio
    low_cpu_mem_usage mask_history master_addr master_port max_length max_new_tokens max_samples media_dir
    megatron_bridge_args mix_strategy model_max_length model_revision module_dropout moe_aux_loss_coef ms_hub_token
    new_special_tokens_config num_beams offload_folder oft_block_size oft_rank oft_target om_hub_token overwrite_cache
    pissa_convert pissa_init pissa_iter plot_loss ppo_buffer_size ppo_epochs ppo_score_norm ppo_target
    ppo_whiten_rewards pref_bco_weight pref_beta pref_ftx pref_loss preprocessing_batch_size preprocessing_num_workers
    preserve_thinking print_param_status profile_modules profiler_active_steps profiler_output_dir
    profiler_profile_memory profiler_record_shapes profiler_repeat profiler_wait_steps profiler_warmup_steps
    profiler_with_stack quantization_device_map quantization_type ray_init_kwargs ray_num_workers ref_model
    ref_model_adapters ref_model_quantization_bit repetition_penalty resize_vocab reward_model reward_model_adapters
    reward_model_quantization_bit reward_model_type rope_scaling sglang_config sglang_lora_backend sglang_maxlen
    sglang_mem_fraction sglang_tp_size simpo_gamma skip_special_tokens split_special_tokens streaming swanlab_api_key
    swanlab_lark_secret swanlab_lark_webhook_url swanlab_logdir swanlab_mode swanlab_project swanlab_run_name
    swanlab_workspace temperature template tokenized_path tool_format top_k top_p train_from_scratch train_on_prompt
    trust_remote_code upcast_layernorm upcast_lmhead_output use_asft_loss use_audio_in_video use_dft_loss use_dora
    use_eaft_loss use_fast_tokenizer use_kv_cache use_reentrant_gc use_rslora use_swanlab use_v1_kernels val_size
    video_fps video_max_pixels video_maxlen video_min_pixels vllm_config vllm_enforce_eager vllm_gpu_util
    vllm_max_lora_rank vllm_maxlen
    """
)

# Arguments of transformers' Trainer, and of TRL's scripts.
TRAINING_ARGUMENTS = FSDP | names(
    """
    accelerator_config activation_checkpointing_kwargs adam_beta1 adam_beta2 adam_epsilon assistant_only_loss
    average_tokens_across_devices batch_eval_metrics benchmarks bf16_full_eval bnb_4bit_quant_storage
    bnb_4bit_quant_type callbacks chat_template chat_template_path completion_only_loss data_seed dataloader_drop_last
    dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory dataloader_prefetch_factor dataset_config dataset_kwargs dataset_mixer dataset_mixture
    dataset_name dataset_num_proc dataset_streaming dataset_test_split dataset_text_field dataset_train_split datasets
    ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug
    disable_tqdm dispatch_batches do_eval do_predict do_train enable_jit_checkpoint eos_token eval_accumulation_steps
    eval_delay eval_do_concat_batches eval_on_start eval_packing eval_steps eval_strategy eval_use_gather_object
    evaluation_strategy fp16_backend fp16_full_eval fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap
    full_determinism generation_config generation_max_length generation_num_beams gradient_checkpointing_kwargs
    greater_is_better group_by_length half_precision_backend hub_always_push hub_model_id hub_model_revision
    hub_private_repo hub_revision hub_strategy hub_token ignore_bias_buffers ignore_data_skip include_for_metrics
    include_inputs_for_metrics include_num_input_tokens_seen include_tokens_per_second jit_mode_eval label_names
    label_smoothing_factor learning_rate length_column_name liger_kernel_config load_best_model_at_end local_rank
    log_level log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules lora_task_type
    lr_scheduler_kwargs lr_scheduler_type max_eval_samples max_grad_norm max_steps max_train_samples
    metric_for_best_model model_init_kwargs model_revision neftune_noise_alpha num_train_epochs num_train_samples
    optim_args optim_target_modules output_dir output_router_logits overwrite_output_dir packing_strategy
    pad_to_multiple_of pad_token padding_free past_index per_device_eval_batch_size prediction_loss_only
    preprocessing_num_workers project push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token
    ray_scope remove_unused_columns report_to restore_callback_states_from_checkpoint resume_from_checkpoint run_name
    save_on_each_node save_only_model save_safetensors save_steps save_strategy save_total_limit script_args seed
    shuffle_dataset skip_memory_metrics skip_prepare_dataset sortish_sampler split_batches streaming system_prompt tf32
    tokenizer_name torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo tpu_num_cores
    trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy truncation_mode trust_remote_code
    use_bnb_nested_quant use_cache use_dora use_ipex use_mps_device use_rslora wandb_entity wandb_project warmup_ratio
    warmup_steps weight_decay
    """
)

# Tables of such arguments all of whose keys are such.
TRAINING_TABLES = names(
    """
    accelerator_config. activation_checkpointing_kwargs. dataset_kwargs. dataset_mixer. dataset_mixture.
    gradient_checkpointing_kwargs. liger_kernel_config. lr_scheduler_kwargs. optim_args. ray_ vllm_
    """
)
