"""Every setting of the platform; only this package reads the environment.

`job.Settings` is what a job, a notebook or a laptop needs to reach a platform; the stack's containers and the embedded
platform carry it as environment variables, so user code sets nothing. A host's `.env` is read in sections
(`setting.Section`): those of `services` here, which the settings of the gateway inherit too, the rest in the stack.
"""
