"""Tests with many cases of one kind, or long ones, of which `make test` runs some and `make test-all` all.

What is left out are sizes, seeds, types and models beyond the first ones; every function runs with some of its cases.
"""

from __future__ import annotations

import pytest

#: file and function -> every how many-th case stays, at least one
EVERY = {
    "test_tactics::test_kernels_of_models": 3,
    "test_native::test_top_k": 2,
    "test_native::test_top_k_of_lines_that_are_all_alike": 2,
    "test_native::test_scatter_nd": 2,
    "test_native::test_scatter_elements": 2,
    "test_rule_spaces::test_candidates_keep_the_meaning": 3,
    "test_rule_spaces::test_candidates_compile_to_the_same": 3,
    "test_quantized_targets::test_models_in_c": 2,
    "test_jax::test_program": 3,
    "test_torch_models::test_model": 3,
    "test_torch_backend::test_gradients_of_grids": 3,
    "test_torch_backend_dynamic::test_text_models_of_any_batch_and_length": 3,
    "test_torch_dynamic::test_text_models_with_open_batch_and_length": 3,
    "test_torch_quantized::test_torchao": 2,
    "test_torch_special::test_special_numbers": 2,
    "test_tree_reduction::test_other_dtypes": 4,
    "test_tree_reduction::test_a_number_a_row": 3,
    "test_tree_reduction::test_places": 3,
    "test_tree_reduction::test_every_way_has_the_same_meaning": 2,
    "test_tree_reduction::test_places_across_rows": 3,
    "test_transposed_rows::test_short_rows": 4,
    "test_schedule_random::test_accepted_schedules_keep_the_meaning": 2,
    "test_open_images::test_every_size": 2,
    "test_random_chains::test_no_kernel_executes_far_more_than_it_is_asked_for": 2,
    "test_block_matmul::test_sizes": 3,
    "test_block_matmul::test_bits_and_zero_points": 3,
    "test_block_matmul::test_blocks": 3,
    "test_block_matmul::test_open_rows": 2,
    "test_clipped_windows::test_pools_of_windows_beyond_the_image": 3,
    "test_open_nest::test_what_rules_make": 2,
    "test_quantized::test_conv": 2,
    "test_quantized::test_matmul": 2,
    "test_quantized::test_processors_give_the_same_bits": 2,
    "test_chips::test_integers_are_the_same_bits_as_on_the_processor": 2,
    "test_vectorize_k::test_matmul": 3,
    "test_mathlib::test_bound": 2,
    "test_c_target::test_models_in_process": 2,
    "test_depthwise_chain::test_panels_of_channels": 2,
    "test_depthwise_chain::test_against_numpy": 2,
    "test_depthwise_chain::test_decisions_keep_the_meaning": 2,
    "test_depthwise::test_against_numpy": 2,
    "test_streaming::test_random_nets_against_numpy": 2,
    "test_streaming::test_random_int8_nets_have_the_bits_of_the_host": 3,
    "test_streaming::test_arenas_of_int8_models": 3,
    "test_streaming::test_arenas_of_float_models": 3,
    "test_streaming::test_random_inputs_under_sanitizers": 2,
    "test_nest_text::test_nests_of_models_are_read_back": 2,
    "test_rows::test_rows": 2,
    "test_optimized_transformers::test_as_onnx_runtime_optimizes_it": 3,
    "test_channels_first::test_tiles": 2,
    "test_channels_first::test_depthwise": 2,
    "test_channels_first::test_windows": 2,
    "test_interleaved::test_stacks": 2,
    "test_strided::test_slices": 2,
    "test_cross_row_reduction::test_arg_along_short_rows": 2,
    "test_narrow_reduction::test_every_number_of_columns": 3,
    "test_all_open::test_rows_of_any_length": 2,
    "test_open_executable::test_every_size": 2,
    "test_default_rules::test_reductions_of_dtypes": 2,
    "test_attention_blocks::test_partial_blocks": 2,
    "test_remainder_peeling::test_matmul": 2,
    "test_decoders::test_against_numpy": 2,
    "test_levels::test_continue_from_every_level": 2,
    "test_detection::test_max_roi_pool": 2,
    "test_open_leaks::test_other_numbers_for_symbols_make_the_same_program": 3,
    "test_package_cache::test_other_options_compile": 3,
    "test_tensor_cores::test_the_rules_own_tiles_fit_the_registers": 2,
    "test_op_db::test_entry": 2,
    "test_quantized_targets::test_instructions": 2,
    "test_mcu_targets::test_library": 4,
}


def thin(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases, always the same ones."""
    seen: dict[str, int] = {}
    kept, left = [], []
    for item in items:
        name = f"{item.path.stem}::{getattr(item, 'originalname', item.name)}"
        number = seen[name] = seen.get(name, -1) + 1
        (left if number % EVERY.get(name, 1) else kept).append(item)
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)
