"""Lines of `.env`: those of one service, and empty ones."""

from mlplatform_stack import env_file


def test_lines_of_a_service_are_unchanged() -> None:
    ours = ['MAIL_SENDER="Ada <a$$b@x.org>"  # one\'s own\n', "export GRACE_SECONDS='30'\n", "GRACE_SECONDS=40"]
    text = "".join(["# GRACE_SECONDS=1\n", ours[0], "AWS_ACCESS_KEY_ID=foreign\nMAIL_SENDERS=x\n", *ours[1:]])
    assert env_file.lines_of(text, {"MAIL_SENDER", "GRACE_SECONDS"}) == "".join(ours)


def test_empty_setting_gets_its_default() -> None:
    text = "# mine\nRAY_PORT=\nMLFLOW_PORT=8001\nS3_PORT=''\nDOMAIN=\nCOMPOSE_PROFILES=\nUNKNOWN=\n"
    expected = text.replace("RAY_PORT=", "RAY_PORT=8265").replace("S3_PORT=''", "S3_PORT=9000")
    assert env_file.changed(text, env_file.defaults_of_empty(text)) == expected
    assert env_file.defaults_of_empty(expected) == {}
