MARK = "the model's own types"
