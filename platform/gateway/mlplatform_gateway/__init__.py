"""Service in front of the Ray head: Ray's Jobs API, with jobs, logs and packages that outlive Ray.

One folder per feature; `app` lists their routes, and `parts` makes what they share.
"""
