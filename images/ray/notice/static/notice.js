// A banner in JupyterLab when others need what its dev environment holds: until when it stays, and for whom. The gateway,
// through which these pages are opened, answers this; elsewhere nothing does, and the first answer ends the questions.
// An extension as JupyterLab's module federation expects it, without a build.
const PERIOD_MS = 5000;

const notice = {
  id: "mlplatform:notice",
  autoStart: true,
  activate: () => {
    const banner = document.createElement("div");
    banner.setAttribute("role", "alert");
    banner.id = "mlplatform-notice";
    banner.style.cssText =
      "position: fixed; z-index: 10000; inset: auto 0 0 0; padding: 6px 16px; " +
      "background: #b3261e; color: white; font: 14px system-ui, sans-serif; text-align: center";
    const ask = async () => {
      const answer = await fetch("/mlplatform/notice").catch(() => null);
      if (answer?.status === 404) clearInterval(timer);
      if (!answer?.ok) return;
      const leave = await answer.json();
      banner.remove();
      if (!leave) return;
      const time = new Date(leave.until).toLocaleTimeString();
      banner.textContent = `This dev environment ends at ${time}; save your files. ${leave.why}`;
      document.body.append(banner);
    };
    const timer = setInterval(ask, PERIOD_MS);
  },
};

window._JUPYTERLAB = window._JUPYTERLAB || {};
window._JUPYTERLAB["mlplatform-notice"] = {
  init: () => {},
  get: async () => () => notice,
};
