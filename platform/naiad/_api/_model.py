"""`tritonserver._api._model`."""

from naiad.inprocess import Model, ModelBatchFlag, ModelTxnPropertyFlag

__all__ = ["Model", "ModelBatchFlag", "ModelTxnPropertyFlag"]
