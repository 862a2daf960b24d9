from typing import Self, final

@final
class AnswerMessages:
    def __new__(cls, request_id: str, prompt_tokens: int) -> Self: ...
    @property
    def count(self) -> int: ...
    def add(self, tokens: list[int]) -> None: ...
    def chunk(self, tokens: list[int], cached_tokens: int, logprobs: bytes = b"") -> bytes: ...
    def complete(
        self,
        reason: str,
        cached_tokens: int,
        logprobs: bytes = b"",
        matched_text: str = "",
        matched_token: int | None = None,
    ) -> bytes: ...
