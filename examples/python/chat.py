#!/usr/bin/env python3
"""Talks to `ferry serve` with the openai package, and shows what the experts did for each answer.

    pip install openai
    ferry serve --model MODEL &
    python3 examples/python/chat.py [--url http://127.0.0.1:8080/v1] [--key KEY]
"""
import argparse

import openai


def main():
    parser = argparse.ArgumentParser(description="Talks to `ferry serve`.")
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--key", default="none", help="what `ferry serve --api-key` was given")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer at most")
    a = parser.parse_args()
    client = openai.OpenAI(base_url=a.url, api_key=a.key)
    try:
        model = client.models.list().data[0].id
    except openai.APIConnectionError:
        raise SystemExit(f"nobody answers at {a.url}: expected a running `ferry serve`")
    messages = []
    while True:
        try:
            messages.append({"role": "user", "content": input(f"{model}> ")})
        except (EOFError, KeyboardInterrupt):
            return print()
        answer, experts = "", None
        # "ferry" is this server's own: the stack's counters, in the last chunk.
        stream = client.chat.completions.create(model=model, messages=messages, max_tokens=a.tokens, stream=True,
                                                extra_body={"ferry": True})
        try:
            for chunk in stream:
                piece = chunk.choices[0].delta.content or ""
                print(piece, end="", flush=True)
                answer += piece
                experts = (chunk.model_extra or {}).get("ferry", experts)
        except KeyboardInterrupt:
            stream.close()  # the server stops, too
        messages.append({"role": "assistant", "content": answer})
        print()
        if experts:
            d = experts["decode"]
            share = 100 * d["hits"] / max(1, d["requests"])
            print(f"[{share:.1f}% hits of {d['requests']} experts, {d['bytes'] / 1e6:.1f} MB copied]")


if __name__ == "__main__":
    main()
