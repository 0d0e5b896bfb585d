"""Fields of OpenAI's, vLLM's and SGLang's requests that this server does not have.

Each is refused by name, unless its value is null or one of those given here, which change nothing. An endpoint's own
field may be among them: then another endpoint lacks it.
"""

from __future__ import annotations

from typing import Any

REFUSED: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (False,),
    "best_of": (1,),
    "beam_width": (1,),
    "custom_params": ({},),
    "detokenize": (True,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "flat_logprobs": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
    "return_prompt_text": (False,),
    "return_routed_experts": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True,),
    "skip_reading_prefix_cache": (False,),
    "store": (False,),
    "stream_interval": (1,),
    "stream_reasoning": (True,),
    "include_reasoning": (True,),
    "parallel_tool_calls": (True, False),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
} | dict.fromkeys(
    (
        "add_generation_prompt",
        "audio",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "custom_logit_processor",
        "data_parallel_rank",
        "ebnf",
        "extra_key",
        "function_call",
        "functions",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "json_schema",
        "logprob_token_ids",
        "lora_path",
        "max_completion_tokens",
        "moderation",
        "output_kind",
        "prediction",
        "prompt_cache_options",
        "prompt_embeds",
        "reasoning_effort",
        "regex",
        "repetition_detection",
        "rid",
        "session_params",
        "stop_regex",
        "structural_tag",
        "suffix",
        "thinking_token_budget",
        "top_logprobs",
        "truncation_side",
        "web_search_options",
    ),
    (),
)

# Accepted, checked, and without effect, as their specification has it: they are notes of the caller's to itself, or
# speak of caches and layers that work otherwise here.
WITHOUT_EFFECT: frozenset[str] = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "spaces_between_special_tokens",
    }
)
