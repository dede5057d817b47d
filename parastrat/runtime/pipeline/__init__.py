"""Pipeline parallelism: a module cut into stages, each of which runs the module's own forward."""
