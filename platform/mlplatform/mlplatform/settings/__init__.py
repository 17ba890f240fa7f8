"""Every setting of the platform; only this package reads the environment.

`job.Settings` is what a job, a notebook or a laptop needs to reach a platform; the stack's containers and the embedded
platform carry it as environment variables, so user code sets nothing. `mlplatform_stack.settings.StackSettings` is the
host's `.env`, in sections (`setting.Section`), which the settings of the gateway and of other services inherit where
they read them.
"""
