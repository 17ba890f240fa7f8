// Runs on a page of its own before MLflow's, at the first visit, and sets what a browser has no value for yet.
// The keys are those of MLflow 3.17.2 (`<key>_v<version>`, values as JSON); a value that it has stored stays.
{
  const firstVisit = {
    // Experiments open on their runs. The switch at the top left changes it.
    "mlflow.workflowType_v1": "machine_learning",
    // On localhost, the assistant opens by itself until this is set. Its button stays.
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": true,
    // With MLFLOW_DISABLE_TELEMETRY the page sends no usage data, but MLflow shows its notice about it all the same.
    "mlflow.telemetry.info.alert.dismissed_v1": true,
    // Tour of MLflow's features for GenAI, above the experiments on the first page; a click unfolds it.
    "mlflow.home.getting-started.collapsed_v1": true,
    // Pop-ups about traces that cover the page until they are closed.
    "mlflow.detectIssues.guidanceShown_v1": true,
    "mlflow.flagForReview.guidanceShown_v1": true,
    "_mlflow_model_registry_promo_modal_dismissed_v1": true,
  };
  if (navigator.cookieEnabled) {
    for (const [key, value] of Object.entries(firstVisit)) {
      if (localStorage.getItem(key) === null) localStorage.setItem(key, JSON.stringify(value));
    }
  }
  // The cookie that came with this page lets the same address lead to MLflow; without cookies, which a browser refuses
  // together with its storage, a query does.
  if (navigator.cookieEnabled) location.reload();
  else location.replace(`?visited${location.hash}`);
}
