"""Webhooks for promotions, under the name that user code imports; the code is `registry.webhooks`."""

from mlplatform.registry.webhooks import Promotion, Webhook, add, promotion, remove, send_example, webhooks

__all__ = ["Promotion", "Webhook", "add", "promotion", "remove", "send_example", "webhooks"]
