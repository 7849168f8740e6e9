"""Local OpenAI-compatible servers for tests: one around a tiny model, and any function from a payload to an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = Callable[[dict[str, Any]], Any]


class Served:
    """url: of the endpoint. seen: the payloads received, in order. answer: may be replaced at any time."""

    def __init__(self, answer: Answer):
        self.answer, self.seen, self.url = answer, [], ""  # type: tuple[Answer, list[dict[str, Any]], str]


@contextmanager
def served(answer: Answer, path: str = "/v1/completions") -> Iterator[Served]:
    """Serve ``answer``: it returns a body, or an integer for that HTTP status with an error in its body."""
    state = Served(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.seen.append(payload)
            body = state.answer(payload)
            status = body if isinstance(body, int) else 200
            sent = json.dumps({"error": "made to fail"} if isinstance(body, int) else body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}{path}"
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class Completions:
    """/v1/completions as vLLM serves it: BOS put before a string, special tokens not in the text, echo with logprobs."""

    def __init__(self, folder: Path):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model, self.tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        self.lock = threading.Lock()

    def __call__(self, payload: dict[str, Any]) -> dict[str, Any]:
        prompt = payload["prompt"]
        prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        ids = [self.tokenizer(p)["input_ids"] if isinstance(p, str) else p for p in prompts]
        with self.lock:
            choices = [{"index": i, **self.complete(row, payload)} for i, row in enumerate(ids)]
        return {"choices": choices, "usage": {"prompt_tokens": sum(map(len, ids))}}

    def complete(self, prompt: list[int], payload: dict[str, Any]) -> dict[str, Any]:
        import torch

        ids = list(prompt)
        for _ in range(payload["max_tokens"]):
            with torch.no_grad():
                logits = self.model(torch.tensor([ids])).logits[0]
            ids.append(int(logits[-1].argmax()))
            if ids[-1] == self.tokenizer.eos_token_id:
                break
        shown = ids if payload.get("echo") else ids[len(prompt) :]
        if shown[-1] == self.tokenizer.eos_token_id:
            shown = shown[:-1]
        text = self.tokenizer.decode(shown, skip_special_tokens=payload.get("skip_special_tokens", True))
        for stop in payload.get("stop") or []:
            text = text.split(stop)[0]
        return {"text": text, "logprobs": self.logprobs(ids, payload["logprobs"]) if payload.get("echo") else None}

    def logprobs(self, ids: list[int], k: int) -> dict[str, Any]:
        """As OpenAI and vLLM: the first token has none, the generated token is among them."""
        import torch

        with torch.no_grad():
            logp = torch.log_softmax(self.model(torch.tensor([ids[:-1]])).logits[0].float(), -1)
        tokens = [self.tokenizer.decode([i]) for i in ids]
        values: list[float | None] = [None, *(float(logp[i, token]) for i, token in enumerate(ids[1:]))]
        tops: list[dict[str, float] | None] = [None]
        for i, row in enumerate(logp):
            best = {self.tokenizer.decode([int(j)]): float(row[j]) for j in row.topk(k).indices}
            tops.append({tokens[i + 1]: float(row[ids[i + 1]])} | best)
        offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def chat_answer(content: str | None, **message: Any) -> dict[str, Any]:
    """A chat-completions answer with one choice."""
    finish = "stop" if content is not None else "content_filter"
    said = {"role": "assistant", "content": content, **message}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}
