"""Fields that servers of OpenAI's API know and that cannot be had here, but for the values that ask
for nothing: those of OpenAI, vLLM, SGLang and TensorRT-LLM that change an answer or its form.

A field that is neither here nor in a request's own form changes no answer (`user`, `store`, hints
to a cache), or is unknown, and is ignored.
"""

from typing import Any

import msgspec

from .errors import ApiError


class RefusedFields(msgspec.Struct, kw_only=True):
    """Of chat and completions alike. Any JSON is read; see `check_refused`."""

    use_beam_search: Any = None
    length_penalty: Any = None
    early_stopping: Any = None
    prompt_logprobs: Any = None
    allowed_token_ids: Any = None
    truncate_prompt_tokens: Any = None
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    logits_processors: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    prompt_embeds: Any = None
    priority: Any = None
    vllm_xargs: Any = None
    lora_path: Any = None
    no_stop_trim: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None
    kv_transfer_params: Any = None
    disaggregated_params: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_number: Any = msgspec.field(name="bootstrap_room", default=None)
    transfer_id: Any = None
    remote_prefiller: Any = None
    remote_decoder: Any = None
    # chat alone
    functions: Any = None
    function_call: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    mm_processor_kwargs: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    verbosity: Any = None
    separate_reasoning: Any = None
    stream_reasoning: Any = None

    def check_refused(self) -> None:
        """ApiError 400, naming the field, for the first that asks for something."""
        for attribute, name in _NAMES:
            value = getattr(self, attribute)
            if value is not None and not any(value == each for each in _HARMLESS.get(name, _EMPTY)):
                why = _INSTEAD.get(name, "")
                raise ApiError(400, f"{name} is not supported{why}", param=name)


_NAMES = tuple(
    zip(RefusedFields.__struct_fields__, RefusedFields.__struct_encode_fields__, strict=True)
)
_EMPTY: tuple[Any, ...] = (False, [], {})
"""Values that ask for nothing; 0 equals False."""
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "prompt_logprobs": (),  # 0, which equals False, asks for those of the prompt's own tokens
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # matters only where they are not skipped
    "truncate_prompt_tokens": (),
    "functions": (),  # OpenAI replaced them by tools
    "function_call": (),
    "bootstrap_room": (),
    "kv_transfer_params": (),
    "disaggregated_params": (),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "transfer_id": (),
    "modalities": (["text"],),
    "web_search_options": (),  # {} asks for a search as well
    "verbosity": ("medium",),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
}
_INSTEAD = {
    "functions": ": use tools",
    "function_call": ": use tool_choice",
    "priority": ": use the header x-dynamo-priority",
    "guided_decoding_backend": ": the engine has its own",
}
