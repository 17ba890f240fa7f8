"""HTTP of all features: the application, rights, log-in, errors, headers of responses."""
