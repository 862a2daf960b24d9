"""Chat templates that do what those of known models do."""

TOOLS_FIRST = (
    "{%- if tools %}{{- '<|system|>' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}"
    "{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|end|>' }}"
    "{%- elif messages[0].role == 'system' %}{{- '<|system|>' + messages[0].content + '<|end|>' }}"
    "{%- endif %}"
)
CALLS = (
    "{%- for call in m.tool_calls %}"
    "{%- if call.function is defined %}{%- set call = call.function %}{%- endif %}"
    "{{- '<call>' + call.name + ':' }}{{- call.arguments | tojson }}{{- '</call>' }}{%- endfor %}"
)
PROMPT = "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
GROUPED = (
    TOOLS_FIRST + "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|user|>' }}{%- endif %}"
    "{{- '<result>' }}{{- m.content }}{{- '</result>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|end|>' }}{%- endif %}"
    "{%- elif m.role != 'system' or not loop.first %}{{- '<|' + m.role + '|>' }}"
    "{{- m.content or '' }}" + CALLS + "{{- '<|end|>' }}{%- endif %}{%- endfor %}" + PROMPT
)
LAST_QUESTION = (
    "{%- set ns = namespace(looking=true, last=messages | length - 1) %}"
    "{%- for m in messages[::-1] %}{%- set index = (messages | length - 1) - loop.index0 %}"
    "{%- if ns.looking and m.role == 'user' and m.content is string"
    " and not m.content.startswith('<result>') %}"
    "{%- set ns.looking = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}"
)
THINKING = (
    TOOLS_FIRST + LAST_QUESTION + "{%- for m in messages %}"
    "{%- set text = m.content if m.content is string else '' %}"
    "{%- if m.role == 'assistant' %}{%- set thought = '' %}"
    "{%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}"
    "{%- elif '</think>' in text %}"
    "{%- set thought = text.split('</think>')[0].split('<think>')[-1] %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{- '<|assistant|><think>' + thought.strip() + '</think>' + text }}"
    "{%- else %}{{- '<|assistant|>' + text }}{%- endif %}" + CALLS + "{{- '<|end|>' }}"
    "{%- elif m.role != 'system' or not loop.first %}{{- '<|' + m.role + '|>' + text + '<|end|>' }}"
    "{%- endif %}{%- endfor %}" + PROMPT
)
DATED = (
    "{{- bos_token }}{%- if not date is defined %}{%- set date = strftime_now('%d %b') %}"
    "{%- endif %}{%- if not tools is defined %}{%- set tools = none %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}{%- set told = messages[0]['content'] | trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set told = '' %}{%- endif %}"
    "{{- '<|system|>' + date + told }}"
    "{%- if tools %}{%- set asked = messages[0]['content'] | string | trim %}"
    "{%- set messages = messages[1:] %}{{- tools | tojson + asked }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if not (m.role == 'tool' or 'tool_calls' in m) %}"
    "{{- '<|' + m['role'] + '|>' + (m['content'] | string | trim) + '<|end|>' }}"
    "{%- elif 'tool_calls' in m %}"
    "{%- if not m.tool_calls | length == 1 %}{{- raise_exception('one call') }}{%- endif %}"
    "{{- m.tool_calls[0].function.arguments | tojson }}"
    "{%- else %}{{- '<|tool|>' }}{{- m.content | tojson }}{{- '<|end|>' }}{%- endif %}"
    "{%- endfor %}" + PROMPT
)
CHANNELS = (
    "{%- macro shown(tools) %}{%- for tool in tools %}{{- 'type ' + tool.function.name + note }}"
    "{%- endfor %}{%- endmacro %}"
    "{%- macro head() %}{{- strftime_now('%Y') }}{%- if tools %}{{- shown(tools) }}{%- endif %}"
    "{%- endmacro %}{%- macro ended(text) %}{{- text ~ last.name ~ '<|end|>' }}{%- endmacro %}"
    "{%- set note = '!' %}{{- head() }}{%- set last = namespace(name=none) %}"
    "{%- if messages[0].role == 'system' %}{%- set rest = messages[1:] %}"
    "{%- else %}{%- set rest = messages %}{%- endif %}"
    "{%- for m in rest %}{%- if m.role == 'assistant' %}{%- if 'tool_calls' in m %}"
    "{%- set later = namespace(found=false) %}{%- for other in rest[loop.index:] %}"
    "{%- if other.role == 'assistant' and 'tool_calls' not in other %}"
    "{%- set later.found = true %}{%- endif %}{%- endfor %}"
    "{%- if m.content and not later.found %}{{- '<analysis>' ~ m.content }}{%- endif %}"
    "{%- for call in m.tool_calls %}{%- set last.name = call.function.name %}"
    "{{- '<to>' + last.name ~ call.function.arguments | tojson }}{%- endfor %}"
    "{%- elif loop.last and not add_generation_prompt %}{{- '<return>' ~ m.content }}"
    "{%- else %}{{- '<final>' ~ m.content }}{%- set last.name = none %}{%- endif %}"
    "{%- elif m.role == 'tool' %}{%- if last.name is none %}{{- raise_exception('no call') }}"
    "{%- endif %}{{- '<from>' + last.name + '>' ~ m.content | tojson }}"
    "{%- else %}{{- ended('<user>' ~ m.content) }}{%- endif %}{%- endfor %}" + PROMPT
)
