"""Custom runtimes of MLServer, for jobs that it has none for."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from predictors import load


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


class Network(MLModel):
    async def load(self) -> bool:
        self.model = load(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("probabilities", self.model(np.asarray(rows)))
        return InferenceResponse(model_name=self.name, outputs=[output])
