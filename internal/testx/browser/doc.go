// Package browser tests the web page in a real Chromium: views of real daemons, what a
// reader does with keyboard, mouse and narrow window, and what other web sites and peers may try. It contains nothing but tests.
//
// All tests share one process of Chromium, and those with TLS another one, which trusts an authority and has client certificates. Each tab has its own storage, as one in a new private window. A test fails if a tab of it
// writes to the console, opens a dialog or sends a request to another host, unless the test expects this.
//
// Host names that end in .test lead to this machine, as after DNS rebinding. No other host name can be resolved.
//
// Reading order: chromium_test.go (the browser and its tabs), daemon_test.go (what they see), then one file for each
// subject: views_test.go, live_test.go, tasks_test.go, attacks_test.go, certificates_test.go and proxy_test.go.
package browser
