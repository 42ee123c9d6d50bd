// Package web is the web page of a daemon, for people with a browser. It needs no account at another service, and
// loads nothing from another host.
//
// A view of the page is HTML that this package renders from the status document, which the loop publishes
// after each round. Reading needs no JavaScript. With it, the view stays current: the script requests the
// same address again with the parameter "poll", which names what it shows, and the response is the view as
// soon as it differs. Equal views are rendered once for all readers.
//
// The page never writes configuration. For what belongs there, the view "lines" shows what to commit.
// What callers with the role admin may do without a commit, the script requests from the HTTP API (package
// api), with the same rules as for every other client.
//
//	Loop -> status document -> snapshot -> view (a value) -> template -> HTML
//
// All text in the document may come from outside: a peer, a file name, an upstream. It reaches the page only
// through html/template. The content security policy allows nothing that is not of this daemon, and
// neither inline scripts nor inline styles.
//
// Reading order: site.go (routes, roles, headers), signin.go, asset.go, snapshot.go (rendering and waiting), query.go, then one
// file for each view: cluster.go, image.go, disks.go, plan.go, configuration.go, lines.go.
package web
