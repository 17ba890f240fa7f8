def test_help_imports_no_heavy_modules() -> None:
    # Beyond what mlplatform.pth imports whenever Python starts, which must be little as well.
    program = "import sys; start = set(sys.modules); print(*start); import mlplatform.cli.app; print(*set(sys.modules) - start)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    at_start, loaded = (
        {name.split(".")[1] for name in line.split() if name.startswith("mlplatform.")}
        for line in done.stdout.splitlines()
    )
    assert at_start == {"compat", "training"}, "each start of Python would also import these modules"
