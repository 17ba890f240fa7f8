"""The service in front of Ray's head: Ray's Jobs API with jobs, logs and packages that outlive Ray.

`api` answers people, `reconciler` starts and watches attempts, `states` says what each event means, `store` remembers;
`logs` keeps what jobs print, `carrier` brings it from the nodes; what is not of jobs goes to the head by `passage`.
"""
