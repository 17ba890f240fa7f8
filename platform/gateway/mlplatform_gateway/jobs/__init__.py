"""Jobs: submission, states and tables, and the control loop that starts and watches their attempts.

A job passes through `api`, `submission` (its row), `views.assign` (its owner), `admission`, `store`, and then `loop`,
which runs `starting` (the plan, then Ray), `watcher` and `ending`.
"""
