"""ModelService: what is served and its bounds, as the engine and the settings say."""

from gateway.engine import Engine, Served
from gateway.streams import Context
from services.runtime.settings import GatewaySettings
from tandem.v1 import models_pb2 as pb


class ModelServicer:
    """Methods as in proto/tandem/v1/models.proto."""

    def __init__(self, engine: Engine, settings: GatewaySettings) -> None:
        self._engine = engine
        self._limits = limits_of(settings)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Every model that is served."""
        return pb.ListModelsResponse(models=[model_of(self._engine.served(), self._limits)])

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """One model, by name."""
        served = self._engine.served()
        served.admission.check_model(request.name)
        return pb.GetModelResponse(model=model_of(served, self._limits))


def model_of(served: Served, limits: pb.Limits) -> pb.Model:
    """What is served, and its bounds."""
    ready, card = served.ready, served.ready.card
    return pb.Model(
        name=card.name,
        context_length=card.context_length,
        vocab_size=card.vocab_size,
        eos_token_ids=card.eos_token_ids,
        backend=card.backend,
        dtype=card.dtype,
        # The card says 0 where a backend does not know.
        num_parameters=card.num_parameters or None,
        kv_bytes_per_token=card.kv_bytes_per_token or None,
        block_size=ready.block_size,
        num_blocks=ready.num_blocks,
        kv_capacity_tokens=ready.block_size * ready.num_blocks,
        max_num_seqs=ready.max_num_seqs,
        has_chat_template=served.has_chat_template,
        limits=limits,
    )


def limits_of(settings: GatewaySettings) -> pb.Limits:
    """Every bound that is advertised is the setting of the same name."""
    return pb.Limits(**{field.name: getattr(settings, field.name) for field in pb.Limits.DESCRIPTOR.fields})
