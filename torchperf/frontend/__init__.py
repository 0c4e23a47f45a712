"""nn.Module -> Graph. torch and transformers are imported in this room only, and only when a model is captured."""
