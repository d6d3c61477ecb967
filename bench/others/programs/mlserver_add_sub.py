"""The first job as a custom runtime of MLServer."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class AddSub(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        a, b = (NumpyCodec.decode_input(given) for given in payload.inputs)
        outputs = [
            NumpyCodec.encode_output("OUTPUT0", a + b),
            NumpyCodec.encode_output("OUTPUT1", a - b),
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)
