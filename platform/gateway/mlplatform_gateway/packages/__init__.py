"""Packages of jobs: uploaded once, stored by their content, removed when no job needs them."""
