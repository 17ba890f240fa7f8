"""Messages to people about their jobs, by mail or webhook."""
