// A banner in JupyterLab when others need what its dev environment holds. The gateway, through which the page is
// opened, sends until when it stays and for whom; elsewhere it answers 404, and nothing listens any more.
// An extension as JupyterLab's module federation expects it, without a build.
const notice = {
  id: "mlplatform:notice",
  autoStart: true,
  activate: () => {
    const { baseUrl } = JSON.parse(document.getElementById("jupyter-config-data").textContent);
    const banner = document.createElement("div");
    banner.setAttribute("role", "alert");
    banner.id = "mlplatform-notice";
    banner.style.cssText =
      "position: fixed; z-index: 10000; inset: auto 0 0 0; padding: 6px 16px; " +
      "background: #b3261e; color: white; font: 14px system-ui, sans-serif; text-align: center";
    new EventSource(`${baseUrl}mlplatform/notice`).onmessage = (event) => {
      const leave = JSON.parse(event.data);
      banner.remove();
      if (!leave) return;
      const time = new Date(leave.until).toLocaleTimeString();
      banner.textContent = `This dev environment ends at ${time}; save your files. ${leave.why}`;
      document.body.append(banner);
    };
  },
};

window._JUPYTERLAB = window._JUPYTERLAB || {};
window._JUPYTERLAB["mlplatform-notice"] = {
  init: () => {},
  get: async () => () => notice,
};
