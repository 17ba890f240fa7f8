"""Jobs: submission, states and tables, and the control loop that starts and watches their attempts."""
