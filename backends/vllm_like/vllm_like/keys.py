"""Known keys of `model.json`, for every engine: a misspelled key is an error, not a silently ignored setting."""

from __future__ import annotations

import difflib
from typing import Any, Dict, FrozenSet, Iterable, Mapping


def _words(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


OURS = _words("engine engine_options engine_paths chat_template tool_call_parser")
"""Keys that this backend adds."""

VLLM = _words("""
model model_weights served_model_name tokenizer hf_config_path runner convert task skip_tokenizer_init
enable_prompt_embeds tokenizer_mode trust_remote_code allowed_local_media_path allowed_media_domains download_dir
safetensors_load_strategy load_format config_format dtype kv_cache_dtype seed max_model_len cudagraph_capture_sizes
max_cudagraph_capture_size cuda_graph_sizes distributed_executor_backend pipeline_parallel_size master_addr
master_port nnodes node_rank tensor_parallel_size prefill_context_parallel_size decode_context_parallel_size
data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address
data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb data_parallel_backend enable_expert_parallel
moe_backend enable_dbo eplb_config enable_eplb expert_placement_strategy max_parallel_loading_workers block_size
enable_prefix_caching prefix_caching_hash_algo disable_sliding_window disable_cascade_attn offload_backend
cpu_offload_gb cpu_offload_params gpu_memory_utilization kv_cache_memory_bytes max_num_batched_tokens
max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold max_num_seqs max_logprobs
logprobs_mode disable_log_stats aggregate_engine_logging revision code_revision hf_token hf_overrides
tokenizer_revision quantization quantization_config allow_deprecated_quantization enforce_eager
disable_custom_all_reduce language_model_only limit_mm_per_prompt enable_mm_embeds interleave_mm_strings
media_io_kwargs mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type mm_encoder_only mm_encoder_tp_mode
mm_encoder_attn_backend io_processor_plugin skip_mm_profiling video_pruning_rate enable_lora max_loras max_lora_rank
default_mm_loras fully_sharded_loras max_cpu_loras lora_dtype ray_workers_use_nsight num_gpu_blocks_override
model_loader_extra_config ignore_patterns enable_chunked_prefill disable_chunked_mm_input
disable_hybrid_kv_cache_manager structured_outputs_config reasoning_parser reasoning_parser_plugin speculative_config
show_hidden_metrics_for_version otlp_traces_endpoint collect_detailed_traces kv_cache_metrics kv_cache_metrics_sample
cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details
enable_mm_processor_stats scheduling_policy scheduler_cls pooler_config compilation_config attention_config
mamba_config kernel_config enable_flashinfer_autotune worker_cls worker_extension_cls profiler_config
kv_transfer_config kv_events_config ec_transfer_config generation_config enable_sleep_mode override_generation_config
model_impl attention_backend mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode
additional_config use_tqdm_on_load pt_load_map_location logits_processors async_scheduling stream_interval
kv_sharing_fast_prefill optimization_level performance_mode kv_offloading_size kv_offloading_backend tokens_only
shutdown_timeout weight_transfer_config enable_log_requests
enable_return_routed_experts return_sampling_mask safetensors_prefetch_num_threads safetensors_prefetch_block_size
ir_op_priority distributed_timeout_seconds cpu_distributed_timeout_seconds numa_bind numa_bind_nodes numa_bind_cpus
device_ids dcp_comm_backend dcp_q_replicate dcp_kv_cache_interleave_size cp_kv_cache_interleave_size
data_parallel_multi_port_external_lb enable_hc_sp enable_batch_sharded_sampling enable_ep_weight_filter linear_backend
sparse_indexer_topk_backend all2all_backend enable_elastic_ep elastic_ep_max_dp_size ubatch_size
dbo_decode_token_threshold dp_sync_interval dbo_prefill_token_threshold disable_nccl_for_dp_synchronization
prefix_cache_retention_interval offload_group_size offload_num_in_group offload_prefetch_step offload_params
max_num_scheduled_tokens long_prefill_token_threshold_adaptive max_num_active_seqs max_num_queued_reqs
max_num_queued_tokens use_fp64_gumbel enable_trace_replay model_class_overrides enable_shm_tensor_arena
mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_encoder_attn_dtype mm_encoder_fp8_scale_path
mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin renderer_num_workers video_pruning_method
mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize lora_target_modules
enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras
max_lora_cls_labels scheduler_reserve_full_isl prefill_schedule_interval watermark aux_output_config spec_method
spec_model spec_tokens watermark_config diffusion_config per_request_spec_decode_metrics custom_histogram_buckets
jit_monitor_mode jit_monitor_verbose engram_config logging_config log_level log_config_file ec_manager_config
reasoning_config sleep_mode_offload_cudagraph sleep_preserve_parameter_names enable_cumem_allocator
enable_nccl_comm_suspend kv_cache_dtype_skip_layers prefix_match_unit enable_mamba_shared_prefix_checkpoint
replayssm_buffer_len use_replayssm mamba_backend mamba_ssu_algorithm enable_mamba_cache_stochastic_rounding
mamba_cache_philox_rounds swa_bounded_replay fault_tolerance_config enable_fault_tolerance fail_on_environ_validation
gdn_prefill_backend kda_prefill_backend kda_decode_backend
""")
"""Arguments of vLLM's engine in its releases up to 0.32."""

VLLM_FORMER = _words("""
calculate_kv_scales chat_template_text_format device disable_async_output_proc disable_image_processor
disable_log_requests disable_logprobs_during_spec_decoding disable_mm_preprocessor_cache enable_lora_bias
enable_multimodal_encoder_data_parallel enable_prompt_adapter enable_reasoning engine_use_ray guided_decoding_backend
guided_decoding_disable_additional_properties guided_decoding_disable_any_whitespace guided_decoding_disable_fallback
image_feature_size image_input_shape image_input_type image_processor image_processor_revision image_token_id
logits_processor_pattern long_lora_scaling_factors lora_extra_vocab_size max_context_len_to_capture max_log_len
max_paddings max_prompt_adapter_token max_prompt_adapters max_seq_len_to_capture multi_step_stream_outputs
ngram_prompt_lookup_max ngram_prompt_lookup_min num_lookahead_slots num_scheduler_steps num_speculative_tokens
override_neuron_config override_pooler_config preemption_mode qlora_adapter_name_or_path quantization_param_path
rope_scaling rope_theta scheduler_delay_factor spec_decoding_acceptance_method speculative_disable_by_batch_size
speculative_disable_mqa_scorer speculative_draft_tensor_parallel_size speculative_max_model_len speculative_model
speculative_model_quantization swap_space tokenizer_pool_extra_config tokenizer_pool_size tokenizer_pool_type
typical_acceptance_sampler_posterior_alpha typical_acceptance_sampler_posterior_threshold use_v2_block_manager
worker_use_ray
""")
"""Arguments of earlier releases, still found in files written for them."""


def reject_unknown(given: Mapping[str, Any], known: Iterable[str], where: str, what: str = "key") -> None:
    """Check that *given* has only keys in *known*.

    Raises:
        ValueError: If it has others; the text names them all, with similar known keys.
    """
    known = sorted(known)
    wrong = []
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.6)
            wrong.append(f"'{key}' (did you mean '{near[0]}'?)" if near else f"'{key}'")
    if wrong:
        raise ValueError(f"unknown {what}{'s' * (len(wrong) > 1)} in {where}: {', '.join(wrong)}")


def without(given: Mapping[str, Any], names: Iterable[str]) -> Dict[str, Any]:
    """*given* without the keys *names*."""
    dropped = set(names)
    return {key: value for key, value in given.items() if key not in dropped}
