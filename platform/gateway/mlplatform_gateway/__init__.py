"""Service in front of the Ray head: Ray's Jobs API, with jobs, logs and packages that outlive Ray.

`http` answers requests for jobs and proxies all others to the head, `control` starts and watches attempts, `jobs`
stores jobs and defines their states, `logs` ships and stores what jobs print, `upstream` has the clients of Ray and
MLflow.
"""
