MARK = "the model's own wire"
