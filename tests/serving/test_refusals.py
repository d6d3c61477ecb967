"""What cannot be served is said when a model is loaded, not answered wrongly."""

from support.server import ServerProcess

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'


def write(repository, name, config):
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(f'backend: "python" {TENSORS} {config}')


def test_label_file_that_is_named_and_not_there_fails_the_load(tmp_path):
    write(tmp_path / "models", "labelled", "")
    config = tmp_path / "models" / "labelled" / "config.pbtxt"
    config.write_text(config.read_text().replace("output {", 'output { label_filename: "labels.txt"'))

    with ServerProcess(tmp_path / "models", "--exit-on-error=false", work=tmp_path, wait="live") as server:
        [entry] = server.post("/v2/repository/index").json()

    assert entry["state"] == "UNAVAILABLE"
    assert "labels.txt" in entry["reason"]
