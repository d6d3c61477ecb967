"""`tritonserver._api._model`."""

from naiad_embedded.inprocess import Model, ModelBatchFlag, ModelTxnPropertyFlag

__all__ = ["Model", "ModelBatchFlag", "ModelTxnPropertyFlag"]
