"""First values of a model: what its builder did on the meta device, done for real; or a checkpoint's."""
