"""Code that uses private names of MLflow and uvicorn, each with the version seen and the reason."""
