"""A VllmEngine request as one of ours: the same words, so that one set of rules judges both.

That contract has few optional fields: where its zero cannot be a value (top_p, repetition_penalty, n), zero is absent.
Its max_tokens is a wish: what the context cannot hold is left away, as the HTTP servers do whose clients come here.
Pure. Knows both messages; judges only what has no counterpart here, and says so by its name there.
"""

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from gateway.errors import Violation
from gateway.fields import refuse_if_any
from tandem.v1 import common_pb2, inference_pb2

MAX_INT32 = 2**31 - 1
SEEDS = 2**64

# What a worker of another make would serve.
_UNSERVED = ("mm_inputs", "extra_mm_inputs", "media_refs", "kv_transfer_params", "kv_transfer_params_json")


def translated(request: pb.GenerateRequest, context_length: int) -> inference_pb2.GenerateRequest:
    """The request as InferenceService knows it; raises CallError for what cannot be said there."""
    violations: list[Violation] = []
    for field, _ in request.ListFields():
        if field.name in _UNSERVED:
            violations.append(Violation(field.name, "is not served here"))
    if request.data_parallel_rank:
        violations.append(Violation("data_parallel_rank", f"there is rank 0 alone, is {request.data_parallel_rank}"))
    wanted = inference_pb2.GenerateRequest(request_id=request.request_id)
    if request.WhichOneof("input") == "text":
        wanted.text = request.text
    elif request.WhichOneof("input") == "tokenized":
        wanted.token_ids.ids.extend(request.tokenized.input_ids)
    params = request.sampling_params
    wanted.sampling.CopyFrom(_sampling(params, violations))
    wanted.output.CopyFrom(_output(params, violations))
    num_prompt_tokens = len(request.tokenized.input_ids)
    if params.HasField("truncate_prompt_tokens"):
        kept = params.truncate_prompt_tokens
        if kept == 0 or kept < -1:
            violations.append(Violation("sampling_params.truncate_prompt_tokens", f"must be -1 or >= 1, is {kept}"))
        else:
            wanted.truncate_prompt_tokens = context_length - 1 if kept == -1 else kept
            num_prompt_tokens = min(num_prompt_tokens, wanted.truncate_prompt_tokens)
    wanted.stopping.CopyFrom(_stopping(params, context_length - num_prompt_tokens))
    refuse_if_any(violations)
    return wanted


def _sampling(params: pb.SamplingParams, violations: list[Violation]) -> common_pb2.Sampling:
    sampling = common_pb2.Sampling(
        temperature=params.temperature if params.HasField("temperature") else None,
        top_p=params.top_p or None,
        top_k=min(params.top_k, MAX_INT32) or None,
        min_p=params.min_p or None,
        seed=params.seed % SEEDS if params.HasField("seed") else None,
        n=params.n or None,
        repetition_penalty=params.repetition_penalty or None,
        presence_penalty=params.presence_penalty or None,
        frequency_penalty=params.frequency_penalty or None,
    )
    for token_id, bias in sorted(params.logit_bias.items()):
        if token_id < 0:
            violations.append(Violation("sampling_params.logit_bias", f"must be for token ids >= 0, is for {token_id}"))
        else:
            sampling.logit_bias[token_id] = bias
    _constrain(sampling, params, violations)
    return sampling


def _constrain(sampling: common_pb2.Sampling, params: pb.SamplingParams, violations: list[Violation]) -> None:
    """What the output must be; ours holds from the first token on, as theirs does here."""
    match params.WhichOneof("constraint"):
        case None:
            pass
        case "choice":
            sampling.choice.texts.extend(params.choice.choices)
        case "json_schema" | "json_object" | "regex" | "grammar" as kind:
            setattr(sampling, kind, getattr(params, kind))
        case kind:
            violations.append(Violation(f"sampling_params.{kind}", "is not served here"))


def _stopping(params: pb.SamplingParams, num_left: int) -> common_pb2.Stopping:
    # A prompt that leaves no room at all is refused for what it is.
    max_tokens = min(params.max_tokens, max(num_left, 1)) if params.HasField("max_tokens") else None
    return common_pb2.Stopping(
        max_tokens=max_tokens,
        min_tokens=params.min_tokens or None,
        stop=params.stop,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos or None,
        include_stop=params.include_stop_str_in_output or None,
    )


def _output(params: pb.SamplingParams, violations: list[Violation]) -> common_pb2.Output:
    output = common_pb2.Output(skip_special_tokens=params.skip_special_tokens)
    for name in ("logprobs", "prompt_logprobs"):
        if params.HasField(name):
            value = getattr(params, name)
            if value < 0:
                violations.append(Violation(f"sampling_params.{name}", f"must be >= 0, is {value}"))
            else:
                setattr(output, name, value)
    return output
