"""InferenceService: completion of raw prompts, and the tokenizer. Thin: the path of a call is streams.py's."""

from gateway.prompts import Prompts
from gateway.replies import Completions
from gateway.service import Gateway
from gateway.streams import Context, Streams
from tandem.v1 import inference_pb2 as pb


class InferenceServicer:
    """Methods as in proto/tandem/v1/inference.proto."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._streams = Streams(gateway, Prompts.of_generate, Completions)
        self.Generate = self._streams.unary
        self.StreamGenerate = self._streams.stream

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """The token ids of a text."""
        served = self._gateway.engine.served()
        served.admission.check_model(request.model)
        parse_special = request.parse_special if request.HasField("parse_special") else True
        return pb.TokenizeResponse(token_ids=await served.prompts.tokenize(request.text, parse_special))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """The text of token ids."""
        served = self._gateway.engine.served()
        served.admission.check_model(request.model)
        return pb.DetokenizeResponse(text=served.prompts.detokenize(request))
