"""Small models' folders, one for each way to write tool calls: the same vocabulary with every format's marks in it, and
chat templates that teach the formats as the published ones do, in fewer words."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from tests.support.tokenizers import CHATML, write_byte_level

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
SPECIAL_MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>", "<|python_end|>")

_BEGIN = "{{ '<|im_start|>' + message.role + '\\n' }}"
_END = "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
_TOOLS = "{% if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}"
_TOOLS_END = "{{ '<|im_end|>\\n' }}{% endif %}{% for message in messages %}"

HERMES = (
    f"{_TOOLS}{{{{ '<tool_call>{{name, arguments}}</tool_call>' }}}}{_TOOLS_END}{_BEGIN}"
    "{% if message.role == 'tool' %}{{ '<tool_response>' + message.content + '</tool_response>' }}"
    "{% else %}{{ message.content }}{% endif %}"
    '{% for call in message.tool_calls or [] %}{{ \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", '
    "\"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}"
    f"{_END}"
)
LLAMA = (
    f'{_TOOLS}{{{{ \'Answer {{"name": function name, "parameters": dictionary of arguments}}.\' }}}}{_TOOLS_END}'
    f"{_BEGIN}{{{{ message.content }}}}"
    '{% for call in message.tool_calls or [] %}{{ \'<|python_tag|>{"name": "\' + call.function.name + '
    "'\", \"parameters\": ' }}{{ call.function.arguments | tojson }}{{ '}' }}{% endfor %}"
    f"{_END}"
)
MISTRAL = (
    f"{_TOOLS}{_TOOLS_END}{_BEGIN}"
    "{% if message.tool_call_id and message.tool_call_id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}{{ '[TOOL_CALLS]' + call.function.name + "
    "'[CALL_ID]' + call.id + '[ARGS]' }}{{ call.function.arguments | tojson }}{% endfor %}"
    f"{_END}"
)
MISTRAL_LIST = (
    f"{_TOOLS}{_TOOLS_END}{_BEGIN}{{{{ message.content }}}}"
    "{% if message.tool_calls %}{{ '[TOOL_CALLS][' }}{% for call in message.tool_calls %}{{ '{\"name\": \"' + "
    "call.function.name + '\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}{% endif %}"
    f"{_END}"
)
PYTHONIC = (
    f"{_TOOLS}{{{{ 'Answer [func_name1(params_name1=value1), func_name2(params)].' }}}}{_TOOLS_END}{_BEGIN}"
    "{{ message.content }}{% if message.tool_calls %}{{ '[' }}{% for call in message.tool_calls %}"
    "{{ call.function.name + '(' }}{% for key, value in call.function.arguments.items() %}"
    "{{ key + '=' }}{{ value | tojson }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ')' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}{% endif %}"
    f"{_END}"
)
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' and '</think>' in message.content %}"
    "{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ message.content }}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% endif %}{% endif %}"
)
OPENED = THINKING.replace("{% endif %}{% endif %}", "{% else %}{{ '<think>\\n' }}{% endif %}{% endif %}")

TEMPLATES = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mistral_list": MISTRAL_LIST,
    "pythonic": PYTHONIC,
    "json": CHATML,
}
"""By the name of the format that each teaches; the last one knows no tools."""
DIALECTS = TEMPLATES | {"thinking": THINKING, "opened": OPENED}


def write_dialect(folder: Path, template: str) -> Path:
    """A folder with a tokenizer in it. All have the same token ids."""
    write_byte_level(folder, chat_template=template, tags=TAGS)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in SPECIAL_MARKS])
    backend.save(str(folder / "tokenizer.json"))
    return folder
