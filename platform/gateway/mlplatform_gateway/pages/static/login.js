// The part of the address that the log-in would lose: the page to open after it.
if (location.hash) sessionStorage.setItem("wanted", location.hash);
