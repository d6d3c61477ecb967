import dataclasses
from typing import Any


@dataclasses.dataclass
class ChatCompletionRequest:
    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    tool_choice: str = "none"
    parallel_tool_calls: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self):
        if not all("name" in tool.get("function", {}) for tool in self.tools):
            raise ValueError("tools.0.function.name: Field required")
