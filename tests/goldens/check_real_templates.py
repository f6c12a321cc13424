#!/usr/bin/env python3
"""Compares `ferry tokenize --chat` with jinja2 in transformers' environment on models' own chat templates. Not in CI.

    pip install jinja2==3.1.6
    python3 tests/goldens/check_real_templates.py FERRY FOLDER

FERRY is the command, FOLDER has NAME.jinja files: llama.cpp's sources have some seventy in models/templates. Each renders
conversations with and without a system prompt, of several turns, with reasoning, tools, their calls and answers. Where jinja2
raises, Ferry has to refuse. Prints a line a template; fails where texts differ.
"""
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import make_jinja

HERE = pathlib.Path(__file__).resolve().parent
SYSTEM = {"role": "system", "content": "You are helpful. "}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Tells the weather.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The city's name, é <b>"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"}, "days": {"type": "integer"}}}}}]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(arguments):
    return {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}


CONVERSATIONS = {
    "one turn": [user("Hi")],
    "turns": [user("Hi"), assistant("Hello!"), user(" How are you? \n")],
    "system": [SYSTEM, user("Hi"), assistant("Hello!"), user("Bye")],
    "system alone": [SYSTEM],
    "two users": [user("a"), user("b")],
    "assistant first": [assistant("x"), user("y")],
    "reasoning": [SYSTEM, user("2+2?"), assistant("<think>\nsum\n</think>\n\n4"), user("3+3?"),
                  assistant("6", reasoning_content="Adding 3 and 3", thinking="Adding 3 and 3"), user("ok")],
    "call": [SYSTEM, user("Weather?"), assistant("", tool_calls=[call({"city": "Zürich", "days": 3})]),
             {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "sunny"}, assistant("Sunny."),
             user("Thanks")],
    "call with text": [user("Weather?"), assistant("Let me see.", tool_calls=[call('{"city": "Oslo"}')]),
                       {"role": "tool", "tool_call_id": "call00001", "content": "{\"t\": 5}"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}],
    "unicode": [SYSTEM, user("é😀漢字 ẞ '\"<|im_end|>")],
    "odd role": [{"role": "critic", "content": "x"}],
}
MORE = {"": {}, "tools": {"tools": TOOLS}, "thinking": {"enable_thinking": True}, "no thinking": {"enable_thinking": False}}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def expected(template, context):
    try:
        make_jinja.NOW = datetime.datetime.now()
        return make_jinja.make_environment().from_string(template).render(context)
    except Exception:  # jinja2 and Python raise many kinds
        return None


def ferry_text(ferry, folder, conversation):
    path = folder / "conversation.json"
    path.write_text(json.dumps(conversation), encoding="utf-8")
    done = subprocess.run([ferry, "tokenize", "--model", folder, "--chat", path, "--rendered"], capture_output=True)
    if done.returncode not in (0, 2):
        raise SystemExit(f"{conversation}: exit status {done.returncode}, {done.stderr.decode(errors='replace')[:300]}")
    return done.stdout.decode() if done.returncode == 0 else None


def main():
    ferry, templates = sys.argv[1], sorted(pathlib.Path(sys.argv[2]).glob("*.jinja"))
    if not templates:
        raise SystemExit(f"{sys.argv[2]}: no NAME.jinja is there")
    all_equal = True
    for template in templates:
        counts = {"equal": 0, "refused by both": 0, "differ": 0}
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copy(HERE / "tokenizers" / "qwen3" / "tokenizer.json", folder)
            shutil.copy(template, folder / "chat_template.jinja")
            (folder / "tokenizer_config.json").write_text(json.dumps(TOKENS))
            source = template.read_text(encoding="utf-8")
            for what, messages in CONVERSATIONS.items():
                for extra, more in MORE.items():
                    context = {**TOKENS, "tools": None, "documents": None, **more, "messages": messages,
                               "add_generation_prompt": True}
                    want, got = expected(source, context), ferry_text(ferry, folder, {"messages": messages, **more})
                    kind = "differ" if want != got else "equal" if want is not None else "refused by both"
                    counts[kind] += 1
                    if kind == "differ":
                        all_equal = False
                        print(f"    {template.stem}, {what}, {extra or 'plain'}: {str(got)[:200]!r}, not {str(want)[:200]!r}")
        print(f"{template.stem}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items() if n), flush=True)
    sys.exit(not all_equal)


if __name__ == "__main__":
    main()
