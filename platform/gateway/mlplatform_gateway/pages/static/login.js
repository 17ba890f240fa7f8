// The part of the address that the log-in would lose: the page to which it shall lead.
if (location.hash) sessionStorage.setItem("wanted", location.hash);
